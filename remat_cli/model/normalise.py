"""From the parsed file to a Draft: versions, local functions, initialisers and inputs.

Later passes: `structure`, `hoist`, `dims`, `fold`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from remat_cli.errors import ModelError
from remat_cli.model.dims import fix_dims
from remat_cli.model.draft import Draft
from remat_cli.model.fold import Infer, fold_constants
from remat_cli.model.graph import Weight
from remat_cli.model.hoist import hoist_body_weights
from remat_cli.model.inline import inline_functions
from remat_cli.model.limits import check_versions
from remat_cli.model.names import quoted
from remat_cli.model.sparse import dense
from remat_cli.model.structure import check_names, close_gaps, drop_dead_with_note, sort_nodes
from remat_cli.model.subgraphs import all_names, bodies
from remat_cli.model.tidy_bodies import tidy_bodies
from remat_cli.model.weights import weight_of, weight_tensor

MAX_CONSTANT_ELEMENTS = 1024
MAX_FLOAT_CONSTANT_ELEMENTS = 16
# Operators through which small float vectors reach shapes (the scales of Resize); elsewhere they are parameters.
_SHAPE_READERS = frozenset({"Resize", "Upsample", "Concat", "Cast", "Identity", "Slice", "Squeeze", "Unsqueeze"})
_FLOATS = frozenset(
    value for name, value in TensorProto.DataType.items() if name.startswith(("FLOAT", "DOUBLE", "BFLOAT", "COMPLEX"))
)


def normalise(
    model: onnx.ModelProto,
    path: Path,
    dims: Mapping[str, int],
    feeds: Mapping[str, np.ndarray[Any, Any]],
    infer: Infer,
) -> Draft:
    """The Draft of `model`, which `remat_cli.model.wire.read_model` read from `path`: all passes, in order.

    Raises ModelError for files that are newer than the runtime, ill-formed, or have dims that stay open.
    """
    check_versions(model, path)
    draft = make_draft(inline_functions(model, path), path)
    close_gaps(draft, draft.nodes)
    check_names(draft)
    sort_nodes(draft)
    drop_dead_with_note(draft)
    tidy_bodies(draft)
    hoist_body_weights(draft)
    fix_dims(draft, dims, feeds)
    fold_constants(draft, infer)
    if not draft.nodes:
        raise ModelError(
            f"{path}: all its nodes are constants or dead: nothing to schedule", "check the model's outputs"
        )
    return draft


def make_draft(model: onnx.ModelProto, path: Path) -> Draft:
    """The file's content as a Draft; weights stay in their files, small constants are read."""
    graph = model.graph
    if not graph.node:
        raise ModelError(f"{path}: the graph has no nodes: nothing to schedule", "check that this is the right file")
    if not graph.output:
        raise ModelError(f"{path}: the graph has no outputs, so none of its {len(graph.node)} nodes is needed")
    _clean(graph.node)
    initialisers = _initialisers(model, path)
    draft = Draft(
        path=path,
        ir_version=model.ir_version,
        opsets=_opsets(model),
        nodes=list(graph.node),
        inputs=_inputs(model, path, initialisers),
        outputs=list(dict.fromkeys(value.name for value in graph.output)),
        weights={},
        constants={},
        declared={value.name: value.type for value in (*graph.value_info, *graph.output) if value.name},
        metadata={entry.key: entry.value for entry in model.metadata_props},
        names=set(all_names(graph)),
    )
    readers = _shape_vectors(draft.nodes)
    for name, weight in initialisers.items():
        if is_constant(weight, name in readers):
            draft.constants[name] = weight_tensor(weight)
        else:
            draft.weights[name] = weight
    if len(draft.outputs) < len(graph.output):
        draft.notes.append("graph outputs that are listed twice are counted once")
    if model.training_info:
        draft.notes.append("training_info of the file is ignored; `remat grad` makes training graphs")
    return draft


def is_constant(weight: Weight, reaches_shapes: bool) -> bool:
    """True for values that are embedded into node models: small integers, strings, and scalars.

    Small float vectors are parameters (biases, scales of norms), which training changes, unless they reach a shape.
    """
    count = prod(weight.shape)
    if weight.overridable:
        return False
    if weight.elem_type not in _FLOATS:
        return count <= MAX_CONSTANT_ELEMENTS
    return not weight.shape or (reaches_shapes and count <= MAX_FLOAT_CONSTANT_ELEMENTS)


def _shape_vectors(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    return {name for node in nodes if node.op_type in _SHAPE_READERS for name in node.input}


def _opsets(model: onnx.ModelProto) -> dict[str, int]:
    """Versions of the domains that nodes use, the default domain as ""; 1 for domains that the file does not import."""
    imports: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        imports[domain] = max(entry.version, imports.get(domain, 0))
    used = {node.domain for node in _walk(model.graph.node)}
    return {domain: imports.get(domain, 1) for domain in sorted(used | ({""} & set(imports)))}


def _walk(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from _walk(body.node)


def _clean(nodes: Iterable[onnx.NodeProto]) -> None:
    """Drop what has no meaning for a schedule: texts, device hints, and shapes inside bodies, which may be wrong."""
    for node in _walk(nodes):
        node.domain = "" if node.domain == "ai.onnx" else node.domain
        for field in ("doc_string", "metadata_props", "device_configurations"):
            if field in node.DESCRIPTOR.fields_by_name:
                node.ClearField(field)
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
        for body in bodies(node):
            body.ClearField("value_info")
            body.ClearField("doc_string")


def _inputs(model: onnx.ModelProto, path: Path, initialisers: Mapping[str, Weight]) -> dict[str, onnx.TypeProto]:
    inputs: dict[str, onnx.TypeProto] = {}
    for position, value in enumerate(model.graph.input):
        if value.name in initialisers:
            continue
        if not value.name or value.name in inputs:
            what = f"{quoted(value.name)} is listed twice" if value.name else "has no name"
            raise ModelError(f"{path}: graph input {position} {what}")
        if value.type.WhichOneof("value") is None:
            raise ModelError(f"{path}: graph input {quoted(value.name)} has no type")
        kind = onnx.TypeProto()
        kind.CopyFrom(value.type)
        inputs[value.name] = kind
    return inputs


def _initialisers(model: onnx.ModelProto, path: Path) -> dict[str, Weight]:
    listed = {value.name for value in model.graph.input}
    # Before IR 4 every initialiser had to be listed as an input, so that says nothing (onnx IR.md, initializers).
    overridable = listed if model.ir_version >= 4 else set()
    found: dict[str, Weight] = {}
    sparse = [dense(tensor, path) for tensor in model.graph.sparse_initializer]
    for position, tensor in enumerate([*model.graph.initializer, *sparse]):
        if not tensor.name or tensor.name in found:
            what = f"{quoted(tensor.name)} is given twice" if tensor.name else "has no name"
            raise ModelError(f"{path}: initialiser {position} {what}")
        found[tensor.name] = weight_of(tensor, path, tensor.name in overridable)
    return found
