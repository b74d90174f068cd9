"""Fold what is known before the run: Constant nodes and shape arithmetic become constants.

Exporters write the shape of nearly every Reshape as a chain of Shape, Gather and Concat nodes (58 % of the nodes of one
DenseNet file). Such chains are worth nothing to a scheduler, and hide shapes from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from remat_cli.errors import ModelError
from remat_cli.model.draft import Draft
from remat_cli.model.fold_ops import MAX_BYTES, OPERATORS, evaluate
from remat_cli.model.infer_node import Shapes, infer_node
from remat_cli.model.names import listed
from remat_cli.model.sparse import dense
from remat_cli.model.structure import drop_dead
from remat_cli.model.weights import weight_of, weight_tensor

Infer = Callable[[onnx.ModelProto], Shapes]
_Array = np.ndarray[Any, Any]
_UNKNOWN = (0, None)

_SCALAR_FIELDS = {
    "value_float": ("f", np.float32), "value_floats": ("floats", np.float32),
    "value_int": ("i", np.int64), "value_ints": ("ints", np.int64),
}  # fmt: skip


def fold_constants(draft: Draft, infer: Infer) -> None:
    """Replace nodes of known value by constants, as long as that makes more values known.

    `infer` gives element type and shape (None if unknown) of the tensors of a model. Nodes whose value only an
    operator's kernel can compute to the last bit (Exp, MatMul, ...), random ones, and results of more than `MAX_BYTES`
    stay ordinary nodes.
    """
    constant_nodes = [node for node in draft.nodes if _is_constant_node(node)]
    for node in constant_nodes:
        _absorb(draft, node)
    _remove(draft, constant_nodes)
    folded = [draft.label(node) for node in constant_nodes]
    values = {name: array for name, t in draft.constants.items() if (array := _array(t)) is not None}
    asks = made = True
    # Without Shape nodes one pass folds all there is; with them, folded values may make further shapes known.
    while asks and made and any(_may_fold(node, values) for node in draft.nodes):
        asks = any(_asks_shape(node) for node in draft.nodes)
        done = _fold_once(draft, values, dict(infer(draft.to_model())) if asks else {})
        folded += [draft.label(node) for node in done]
        _remove(draft, done)
        made = bool(done)
    drop_dead(draft)
    if folded:
        nodes = "node became a constant" if len(folded) == 1 else "nodes became constants"
        draft.notes.append(f"{len(folded)} {nodes}: {listed(folded, 20)}")


def _is_constant_node(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and not node.domain


def _absorb(draft: Draft, node: onnx.NodeProto) -> None:
    """The value of a Constant node; large ones become weights and stay in the file."""
    name = node.output[0]
    tensor = _constant_value(draft, node)
    tensor.name = name
    weight = weight_of(tensor, draft.path)
    count = prod(weight.shape)
    if weight.length > MAX_BYTES or count > 1024:
        draft.weights[name] = weight
    else:
        draft.constants[name] = weight_tensor(weight)


def _constant_value(draft: Draft, node: onnx.NodeProto) -> TensorProto:
    """Source: https://onnx.ai/onnx/operators/onnx__Constant.html (exactly one attribute holds the value)."""
    for attribute in node.attribute:
        if attribute.name == "value" and attribute.HasField("t"):
            value = TensorProto()
            value.CopyFrom(attribute.t)
            return value
        if attribute.name in _SCALAR_FIELDS:
            field, dtype = _SCALAR_FIELDS[attribute.name]
            return numpy_helper.from_array(np.array(getattr(attribute, field), dtype))
        if attribute.name in ("value_string", "value_strings"):
            strings = [attribute.s] if attribute.name == "value_string" else list(attribute.strings)
            dims = [] if attribute.name == "value_string" else [len(strings)]
            return TensorProto(data_type=TensorProto.STRING, dims=dims, string_data=strings)
        if attribute.name == "sparse_value":
            return dense(attribute.sparse_tensor, draft.path)
    raise ModelError(f"{draft.path}: {draft.label(node)} has no value")


def _array(tensor: TensorProto) -> _Array | None:
    """Constants of numpy's own numeric types; others take no part in folding."""
    if tensor.data_type == TensorProto.STRING:
        return None
    array: _Array = numpy_helper.to_array(tensor)
    return array if array.dtype.kind in "biuf" else None


def _asks_shape(node: onnx.NodeProto) -> bool:
    return node.op_type in ("Shape", "Size") and not node.domain


def _may_fold(node: onnx.NodeProto, values: Mapping[str, _Array]) -> bool:
    if node.domain or not node.input:
        return False
    return _asks_shape(node) or (node.op_type in OPERATORS and all(not name or name in values for name in node.input))


def _fold_once(draft: Draft, values: dict[str, _Array], shapes: Shapes) -> list[onnx.NodeProto]:
    """One pass in topological order; results are known to the nodes after. Returns the nodes that were folded.

    A folded value often is the shape of the next tensor, so types are inferred anew, node by node, on the way: else a
    model of n layers could need n rounds.
    """
    made: list[onnx.NodeProto] = []
    opset = draft.opsets.get("", 1)
    for node in draft.nodes:
        if not _may_fold(node, values):
            if made and shapes and any(shapes.get(name, _UNKNOWN)[1] is None for name in node.output):
                shapes.update(infer_node(node, shapes, draft.constants, draft.opsets))
            continue
        results = _known_shape(node, shapes) or evaluate(node, [values.get(name) for name in node.input], opset)
        if results is None or len(results) < len(node.output):
            continue
        for name, array in zip(node.output, results, strict=False):
            tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
            values[name], draft.constants[name] = array, tensor
            shapes[name] = (tensor.data_type, tuple(array.shape))
        made.append(node)
    return made


def _known_shape(node: onnx.NodeProto, shapes: Shapes) -> list[_Array] | None:
    """Shape and Size of a tensor of known shape (onnx Shape-15: `start` and `end` are clamped like a Python slice)."""
    if not _asks_shape(node):
        return None
    _, shape = shapes.get(node.input[0], _UNKNOWN)
    if shape is None:
        return None
    if node.op_type == "Size":
        return [np.array(prod(shape), np.int64)]
    options = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return [np.array(shape[options.get("start", 0) : options.get("end")], np.int64)]


def _remove(draft: Draft, nodes: Iterable[onnx.NodeProto]) -> None:
    gone = {node.output[0] for node in nodes}
    draft.nodes = [node for node in draft.nodes if node.output[0] not in gone]
