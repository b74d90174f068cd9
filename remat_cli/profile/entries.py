"""What is measured: one entry a distinct node signature, and which values its inputs need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from remat_cli.model.element_types import STRING
from remat_cli.model.graph import Graph, GraphNode, TensorInfo
from remat_cli.model.node_model import node_bindings, node_model
from remat_cli.model.subgraphs import bodies
from remat_cli.profile.op_view import OpView


@dataclass(frozen=True)
class Operand:
    """An input or output of a node model: its name there, and the tensor of the graph it stands for."""

    name: str
    tensor: TensorInfo


@dataclass(frozen=True)
class Entry:
    """One distinct node, named by its first occurrence.

    `bounds`: input name -> exclusive bound of index values. `needs_values`: only real input values make sense
    (unknown sizes, strings, sequences, control flow), so everything before the node is run as well.
    """

    node: GraphNode
    model: bytes
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    bounds: Mapping[str, int]
    needs_values: bool

    @property
    def operand_bytes(self) -> int:
        """Bytes that must be there to run the node once."""
        return sum(operand.tensor.size_bytes for operand in (*self.inputs, *self.outputs))


def distinct_entries(graph: Graph) -> tuple[list[Entry], dict[str, int]]:
    """The entries in the order of their first nodes, and node id -> position of its entry; views have none."""
    entries: list[Entry] = []
    known: dict[bytes, int] = {}
    of_node: dict[str, int] = {}
    for node in graph.nodes:
        if node.view_of is not None:
            continue
        model = node_model(graph, node)
        if model not in known:
            known[model] = len(entries)
            entries.append(_entry(graph, node, model))
        of_node[node.id] = known[model]
    return entries, of_node


def _entry(graph: Graph, node: GraphNode, model: bytes) -> Entry:
    bindings = node_bindings(graph, node)
    inputs = tuple(Operand(name, graph.tensors[tensor]) for name, tensor in bindings.inputs)
    outputs = tuple(Operand(name, graph.tensors[tensor]) for name, tensor in bindings.outputs)
    names = {operand.name for operand in inputs}
    bounds = {f"i{k}": bound for k, bound in index_bounds(OpView(graph, node)).items() if f"i{k}" in names}
    special = bool(bodies(node.proto)) or any(_is_special(operand.tensor) for operand in (*inputs, *outputs))
    return Entry(node, model, inputs, outputs, bounds, special)


def _is_special(tensor: TensorInfo) -> bool:
    return not tensor.fixed_size or tensor.container != "tensor" or tensor.elem_type == STRING or tensor.shape is None


def index_bounds(op: OpView) -> dict[int, int]:
    """Input position -> exclusive bound of the indices that it holds, for operators that read indices.

    Sources: the operators' ONNX pages.
    """
    data = op.in_shape(0)
    if op.op_type in ("Gather", "GatherElements", "ScatterElements", "Scatter") and data:
        return {1: data[op.axis(0, len(data))]}
    if op.op_type == "GatherND" and op.in_shape(1):
        first = op.int_attribute("batch_dims", 0)
        return {1: min(data[first : first + op.in_shape(1)[-1]], default=1)}
    if op.op_type == "ScatterND" and op.in_shape(1):
        return {1: min(data[: op.in_shape(1)[-1]], default=1)}
    if op.op_type == "OneHot" and op.out_shape():
        return {0: op.out_shape()[op.axis(-1, len(op.out_shape()))]}
    if op.op_type in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss") and len(data) > 1:
        return {1: data[1]}
    if op.op_type == "MaxUnpool":
        return {1: prod(op.out_shape())}
    if op.op_type == "EmbedLayerNormalization":
        return {k: table[0] for k, table in ((0, op.in_shape(2)), (1, op.in_shape(4))) if table}
    return {}
