"""State of a training graph: which output takes the place of which input in the next iteration.

It is the metadata entry ``remat.state`` of the file, a JSON object {output: input}, as ``remat grad`` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from remat_cli.errors import ModelError
from remat_cli.model.draft import Draft
from remat_cli.model.element_types import type_name
from remat_cli.model.graph import TensorInfo
from remat_cli.model.names import quoted, shape_text

KEY = "remat.state"


def read_state(draft: Draft, tensors: Mapping[str, TensorInfo]) -> dict[str, str]:
    """Output -> input pairs, in the file's order; empty when the file has none.

    Raises ModelError for text that is no such object, unknown names, and pairs of different type or shape.
    """
    text = draft.metadata.get(KEY)
    if not text:
        return {}
    where = f"{draft.path}: metadata {KEY}"
    try:
        state = json.loads(text, object_pairs_hook=_no_repeats)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where}: is not a JSON object of output: input ({error})") from None
    if not isinstance(state, dict):
        raise ModelError(f"{where}: is not a JSON object of output: input")
    feedable = {*draft.inputs, *(name for name, weight in draft.weights.items() if weight.overridable)}
    taken: set[str] = set()
    for output, source in state.items():
        if output not in draft.outputs:
            raise ModelError(f"{where}: {quoted(output)} is not a graph output")
        if not isinstance(source, str) or source not in feedable:
            raise ModelError(f"{where}: {quoted(str(source))}, the state of {quoted(output)}, is not a graph input")
        if source in taken:
            raise ModelError(f"{where}: input {quoted(source)} has two new states")
        taken.add(source)
        _check_pair(where, tensors[output], tensors[source])
    return state


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{quoted(key)} is given twice")
        found[key] = value
    return found


def _check_pair(where: str, output: TensorInfo, source: TensorInfo) -> None:
    if output.elem_type != source.elem_type or output.shape != source.shape or output.container != "tensor":
        new, old = (f"{quoted(info.name)} ({_text(info)})" for info in (output, source))
        raise ModelError(f"{where}: {new} cannot be the next {old}")


def _text(info: TensorInfo) -> str:
    shape = "unknown shape" if info.shape is None else shape_text(info.shape)
    return f"{type_name(info.elem_type)}, {shape}"
