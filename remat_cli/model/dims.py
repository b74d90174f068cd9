"""Fix the symbolic dims of graph inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from remat_cli.errors import ModelError
from remat_cli.model.draft import Draft
from remat_cli.model.names import listed, quoted

_Places = dict[str, list[tuple[str, int]]]


def fix_dims(draft: Draft, dims: Mapping[str, int], feeds: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Give every dim of every input to be fed a value: from `dims`, else from the shapes of `feeds`.

    A dim is named as the model names it, or ``input:axis`` where the model has no name for it.
    Raises ModelError for names that the model lacks, values below zero, and dims that stay open.
    """
    places = _open_dims(draft)
    for name, value in dims.items():
        if name not in places:
            known = f"its symbolic dims are {listed(map(quoted, places))}" if places else "all its dims are fixed"
            raise ModelError(f"{draft.path}: has no symbolic dim {quoted(name)}; {known}")
        if value < 0:
            raise ModelError(f"{draft.path}: dim {quoted(name)} cannot be {value}", f"give --dim {name}=N with N >= 0")
    values = {**_dims_of_feeds(draft, places, feeds), **dims}
    missing = [name for name in places if name not in values]
    if missing:
        _refuse_open(draft, places, missing)
    for name, uses in places.items():
        draft.dims[name] = int(values[name])
        for tensor, axis in uses:
            dim = draft.inputs[tensor].tensor_type.shape.dim[axis]
            dim.Clear()
            dim.dim_value = int(values[name])
    for kind in draft.declared.values():
        for dim in kind.tensor_type.shape.dim:
            if dim.dim_param in draft.dims:
                dim.dim_value = draft.dims[dim.dim_param]


def _open_dims(draft: Draft) -> _Places:
    """Dim name -> (input, axis) pairs, in the model's order."""
    places: _Places = {}
    for name, kind in draft.inputs.items():
        if not kind.HasField("tensor_type"):
            continue
        if not kind.tensor_type.HasField("shape"):
            raise ModelError(
                f"{draft.path}: input {quoted(name)} has no shape in the file, not even a rank",
                "export the model again with input shapes",
            )
        for axis, dim in enumerate(kind.tensor_type.shape.dim):
            if not _is_fixed(dim):
                places.setdefault(dim.dim_param or f"{name}:{axis}", []).append((name, axis))
    return places


def _is_fixed(dim: onnx.TensorShapeProto.Dimension) -> bool:
    # Some exporters write -1 for a dim that is open.
    return bool(dim.HasField("dim_value") and dim.dim_value >= 0)


def _dims_of_feeds(draft: Draft, places: _Places, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for dim_name, uses in places.items():
        for tensor, axis in uses:
            feed = feeds.get(tensor)
            if feed is None:
                continue
            rank = len(draft.inputs[tensor].tensor_type.shape.dim)
            if feed.ndim != rank:
                raise ModelError(f"{draft.path}: input {quoted(tensor)} has {rank} dims, its feed has {feed.ndim}")
            size = feed.shape[axis]
            if found.setdefault(dim_name, size) != size:
                raise ModelError(
                    f"{draft.path}: feeds give dim {quoted(dim_name)} two values, {found[dim_name]} and {size} "
                    f"(input {quoted(tensor)}, dim {axis})"
                )
    return found


def _refuse_open(draft: Draft, places: _Places, missing: list[str]) -> None:
    texts = []
    for name in missing:
        tensor, axis = places[name][0]
        named = f" {quoted(name)}" if name != f"{tensor}:{axis}" else ""
        texts.append(f"input {quoted(tensor)}, dim {axis}{named}")
    options = " ".join(f"--dim {_shell(f'{name}=N')}" for name in missing[:5])
    raise ModelError(f"{draft.path}: dims without a value: {listed(texts, 5)}", f"add {options}")


def _shell(text: str) -> str:
    return text if text.replace("=", "").replace("_", "").replace(":", "").isalnum() else f"'{text}'"
