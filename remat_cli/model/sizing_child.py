"""The child of `sizing_run`: loads one model, perhaps runs it, and tells types and sizes.

Called as ``python -m remat_cli.model.sizing_child FOLDER``; reads ``model.onnx`` and ``job.json``, writes
``result.json`` with {"values": {name: [elem_type, shape, bytes, container]}} or {"error": text}.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

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
        if elem_type == STRING:
            continue
        if elem_type and all(isinstance(dim, int) and dim >= 0 for dim in shape) and output.name in names:
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
    import onnxruntime as ort

    feeds = {entry["name"]: _ort_value(ort, entry) for entry in job["feeds"]}
    outputs = session.get_outputs()
    tensors = [output.name for output in outputs if output.type.startswith("tensor(")]
    others = [output.name for output in outputs if not output.type.startswith("tensor(")]
    values = {}
    if tensors:
        for name, value in zip(tensors, session.run_with_ort_values(tensors, feeds), strict=True):
            elem_type, shape = value.element_type(), value.shape()
            values[name] = [elem_type, shape, tensor_bytes(elem_type, shape), "tensor"]
    for name in others:
        # Only `run` opens sequences and optionals; their values stay in this process.
        arrays = {key: value.numpy() for key, value in feeds.items()}
        values[name] = _opened(session.run([name], arrays)[0], next(o.type for o in outputs if o.name == name))
    return values


def _opened(value: Any, type_text: str) -> list[Any]:
    container = "optional" if type_text.startswith("optional") else "sequence"
    inner = re.search(r"tensor\(\w+\)", type_text)
    elem_type = _elem_type(inner[0]) if inner else 0
    items = value if isinstance(value, list) else [] if value is None else [value]
    size = 0 if elem_type == STRING else sum(np.asarray(item).nbytes for item in items)
    return [elem_type, [], size, container]


def _ort_value(ort: Any, entry: dict[str, Any]) -> Any:
    shape = tuple(entry["shape"])
    elem_type = entry["elem_type"]
    if "strings" in entry:
        return ort.OrtValue.ortvalue_from_numpy(np.array(entry["strings"], dtype=object).reshape(shape))
    if "seed" in entry:
        value = seeded_value(entry["name"], elem_type, shape, entry["seed"])
    elif "tensor" in entry:
        tensor = TensorProto.FromString(Path(entry["tensor"]).read_bytes())
        from onnx import numpy_helper

        value = numpy_helper.to_array(tensor)
    else:
        value = _from_file(entry, elem_type, shape)
    if elem_type == STRING:
        return ort.OrtValue.ortvalue_from_numpy(value.astype(object))
    storage = value.view(np.dtype(f"u{value.dtype.itemsize}")) if value.dtype.kind == "V" else value
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(storage).reshape(shape), elem_type)


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
