"""The child of `sizing_run`: loads one model, perhaps runs it, and tells types and sizes.

Called as ``python -m remat_cli.model.sizing_child FOLDER``; reads ``model.onnx`` and ``job.json``, writes
``result.json`` with {"values": {name: [elem_type, shape, bytes, container]}} or {"error": text}.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from remat_cli.model.element_types import STRING, numpy_dtype, tensor_bytes
from remat_cli.model.feeds import seeded_value
from remat_cli.ort_session import Device, make_session

_ORT_NAMES = {"float": "FLOAT", "double": "DOUBLE", "float16": "FLOAT16", "string": "STRING", "bool": "BOOL"}


def main(folder: Path) -> None:
    """Do the job of `folder`."""
    job = json.loads((folder / "job.json").read_text())
    try:
        session = make_session(folder / "model.onnx", Device())
        values = _inferred(session, job["names"]) if job["mode"] == "infer" else _measured(session, job)
        answer: dict[str, Any] = {"values": values}
    except Exception as error:
        # onnxruntime raises its own classes and RuntimeError alike; the parent sorts the text.
        answer = {"error": str(error)}
    (folder / "result.json").write_text(json.dumps(answer))


def _inferred(session: Any, names: list[str]) -> dict[str, list[Any]]:
    values = {}
    for output in session.get_outputs():
        elem_type = _elem_type(output.type)
        shape = output.shape
        # onnxruntime gives [] for scalars and for unknown ranks alike.
        if elem_type in (0, STRING) or not shape or output.name not in names:
            continue
        if all(isinstance(dim, int) and dim >= 0 for dim in shape):
            values[output.name] = [elem_type, shape, tensor_bytes(elem_type, shape), "tensor"]
    return values


def _elem_type(text: str) -> int:
    """Element type of ``tensor(float)``; 0 for all that is no tensor."""
    match = re.fullmatch(r"tensor\((\w+)\)", text)
    if match is None:
        return 0
    name = _ORT_NAMES.get(match[1], match[1].upper())
    return int(TensorProto.DataType.Value(name)) if name in TensorProto.DataType.keys() else 0  # noqa: SIM118 - no mapping


def _measured(session: Any, job: dict[str, Any]) -> dict[str, list[Any]]:
    feeds = {entry["name"]: _value(entry) for entry in job["feeds"]}
    types = {output.name: output.type for output in session.get_outputs()}
    # OrtValues take no strings, and do not open sequences and optionals; `run` does not know the newest types.
    strings = any(entry["elem_type"] == STRING for entry in job["feeds"])
    plain = [name for name, kind in types.items() if strings or not kind.startswith("tensor(")]
    others = [name for name in types if name not in plain]
    values: dict[str, list[Any]] = {}
    if others:
        found = session.run_with_ort_values(others, {name: _ort_value(*pair) for name, pair in feeds.items()})
        for name, value in zip(others, found, strict=True):
            values[name] = _tensor(value.element_type(), value.shape())
    if plain:
        for name, value in zip(plain, session.run(plain, {k: v for k, (v, _) in feeds.items()}), strict=True):
            values[name] = _opened(value, types[name])
    return values


def _tensor(elem_type: int, shape: Sequence[int]) -> list[Any]:
    return [elem_type, list(shape), tensor_bytes(elem_type, shape), "tensor"]


def _opened(value: Any, type_text: str) -> list[Any]:
    """Sizes of a value that `run` gave: an array, a list of arrays (a sequence), or None (an empty optional)."""
    if type_text.startswith("tensor("):
        return _tensor(_elem_type(type_text), np.asarray(value).shape)
    container = "optional" if type_text.startswith("optional") else "sequence"
    inner = re.search(r"tensor\(\w+\)", type_text)
    elem_type = _elem_type(inner[0]) if inner else 0
    items = value if isinstance(value, list) else [] if value is None else [value]
    size = 0 if elem_type == STRING else sum(np.asarray(item).nbytes for item in items)
    return [elem_type, [], size, container]


def _value(entry: dict[str, Any]) -> tuple[np.ndarray, int]:
    """The array of one feed, and its element type."""
    shape, elem_type = tuple(entry["shape"]), entry["elem_type"]
    if "strings" in entry:
        return np.array(entry["strings"], dtype=object).reshape(shape), elem_type
    if "seed" in entry:
        return seeded_value(entry["name"], elem_type, shape, entry["seed"]), elem_type
    if "tensor" in entry:
        array = numpy_helper.to_array(TensorProto.FromString(Path(entry["tensor"]).read_bytes()))
        return array.astype(object) if elem_type == STRING else array, elem_type
    return _from_file(entry, elem_type, shape), elem_type


def _ort_value(value: np.ndarray, elem_type: int) -> Any:
    import onnxruntime as ort

    # numpy's own types have kind "V" only where ml_dtypes adds one that onnxruntime's binding does not know.
    storage = value.view(np.dtype(f"u{value.dtype.itemsize}")) if value.dtype.kind == "V" else value
    storage = np.ascontiguousarray(storage).reshape(value.shape)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(storage, elem_type)


def _from_file(entry: dict[str, Any], elem_type: int, shape: tuple[int, ...]) -> np.ndarray:
    """The bytes of a file, mapped: weights are not read before a kernel wants them."""
    if entry["length"] == 0:
        return np.zeros(shape, numpy_dtype(elem_type))
    raw = np.memmap(entry["file"], np.uint8, "c", entry["offset"], (entry["length"],))
    dtype = numpy_dtype(elem_type)
    if dtype.itemsize * int(np.prod(shape)) != entry["length"]:
        # Packed types: the kernel reads the first bytes of a storage with one byte an element.
        padded = np.zeros(int(np.prod(shape)), np.uint8)
        padded[: entry["length"]] = raw
        return padded.reshape(shape)
    return raw.view(dtype).reshape(shape)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
