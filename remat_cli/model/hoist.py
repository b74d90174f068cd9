"""Large initialisers inside bodies of If, Loop and Scan become weights of the graph, so that they are counted and stay
in their files; what must stay inside is read in."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import TensorProto

from remat_cli.model.draft import Draft
from remat_cli.model.subgraphs import bodies, rename_reads
from remat_cli.model.weights import weight_of, weight_tensor
from remat_cli.model.wire import LARGE_BYTES


def hoist_body_weights(draft: Draft) -> None:
    """Move initialisers of more than `LARGE_BYTES` out of all bodies; they become captures of the outer node."""
    for node in draft.nodes:
        for body in bodies(node):
            _hoist(draft, body, node.output[0])
        if node.op_type != "Constant" or node.domain:
            _read_attributes(draft, [node])


def _hoist(draft: Draft, body: onnx.GraphProto, owner: str) -> None:
    listed = {value.name for value in body.input}
    for tensor in list(body.initializer):
        weight = weight_of(tensor, draft.path)
        if weight.length <= LARGE_BYTES or tensor.name in listed:
            tensor.CopyFrom(weight_tensor(weight))
        else:
            _move(draft, body, tensor, tensor.name, owner)
            body.initializer.remove(tensor)
    for node in list(body.node):
        for inner in bodies(node):
            _hoist(draft, inner, owner)
        value = next((a.t for a in node.attribute if a.name == "value" and node.op_type == "Constant"), None)
        if value is not None and weight_of(value, draft.path).length > LARGE_BYTES:
            _move(draft, body, value, node.output[0], owner)
            body.node.remove(node)


def _move(draft: Draft, body: onnx.GraphProto, tensor: TensorProto, inner_name: str, owner: str) -> None:
    """Make `tensor`, which `body` knows as `inner_name`, a weight of the graph under a name that no tensor has."""
    moved = TensorProto()
    moved.CopyFrom(tensor)
    moved.name = draft.new_name(f"{owner}/{inner_name}")
    draft.weights[moved.name] = weight_of(moved, draft.path)
    rename_reads(body, inner_name, moved.name)


def _read_attributes(draft: Draft, nodes: Iterable[onnx.NodeProto]) -> None:
    """Tensors in attributes have to be in the node. (Constant nodes of the top level are left to `fold`.)"""
    for node in nodes:
        for attribute in node.attribute:
            tensors = [attribute.t] if attribute.HasField("t") else list(attribute.tensors)
            for tensor in tensors:
                if tensor.data_location == TensorProto.EXTERNAL:
                    tensor.CopyFrom(weight_tensor(weight_of(tensor, draft.path)))
        for body in bodies(node):
            _read_attributes(draft, body.node)
