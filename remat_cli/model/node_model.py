"""One-node models: what is profiled and what the arena engine runs.

Names in such a model are canonical (inputs ``i0``, captures ``c0``, outputs ``o0``, tensors inside subgraphs ``s0``),
so two nodes that compute the same thing have the same model, byte for byte, and share one session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto

from remat_cli.model.graph import Graph, GraphNode, TensorInfo


@dataclass(frozen=True)
class NodeBindings:
    """How the names of a one-node model map to the graph's: pairs (name in the model, tensor of the graph).

    `inputs` leaves out gaps and constants, which the model embeds. One tensor may be bound to several inputs.
    """

    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


def node_signature(graph: Graph, node: GraphNode) -> str:
    """SHA-256 of the one-node model: operator, domain, opset, attributes, subgraphs, dtypes, shapes, gaps and the
    values of embedded constants, but no name of the graph."""
    return hashlib.sha256(node_model(graph, node)).hexdigest()


def node_model(graph: Graph, node: GraphNode) -> bytes:
    """The node alone, as a serialised model whose inputs are all its non-constant inputs and captures."""
    canonical = _Canonical(graph, node)
    body = GraphProto(name="node", node=[canonical.proto])
    for name, tensor in canonical.inputs():
        if tensor in graph.constants:
            constant = body.initializer.add()
            constant.CopyFrom(graph.constants[tensor])
            constant.name = name
            constant.ClearField("doc_string")
        else:
            body.input.append(value_info(name, graph.tensors[tensor]))
    for name, tensor in canonical.outputs():
        body.output.append(value_info(name, graph.tensors[tensor]))
    model = ModelProto(ir_version=graph.ir_version, graph=body)
    for domain in sorted({"", *canonical.domains}):
        if domain in graph.opsets:
            model.opset_import.add(domain=domain, version=graph.opsets[domain])
    return bytes(model.SerializeToString(deterministic=True))


def node_bindings(graph: Graph, node: GraphNode) -> NodeBindings:
    """Which tensors of the graph the names of `node_model(graph, node)` stand for."""
    canonical = _Canonical(graph, node)
    inputs = tuple((name, tensor) for name, tensor in canonical.inputs() if tensor not in graph.constants)
    return NodeBindings(inputs, tuple(canonical.outputs()))


def value_info(name: str, info: TensorInfo) -> ValueInfoProto:
    """The declaration of a tensor under another name; tensors of unknown size are declared without a shape."""
    tensor = TypeProto.Tensor(elem_type=info.elem_type)
    if info.container == "tensor" and info.shape is not None:
        tensor.shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=dim) for dim in info.shape)
        tensor.shape.SetInParent()
    kind = TypeProto(tensor_type=tensor)
    if info.container == "sequence":
        kind = TypeProto(sequence_type=TypeProto.Sequence(elem_type=kind))
    elif info.container == "optional":
        kind = TypeProto(optional_type=TypeProto.Optional(elem_type=kind))
    return ValueInfoProto(name=name, type=kind)


@dataclass
class _Canonical:
    """The node under canonical names."""

    graph: Graph
    node: GraphNode
    proto: NodeProto = field(init=False)
    captured: dict[str, str] = field(default_factory=dict)
    domains: set[str] = field(default_factory=set)
    inner: int = 0

    def __post_init__(self) -> None:
        self.proto = NodeProto(op_type=self.node.op_type, domain=self.node.domain)
        self.proto.input.extend(f"i{k}" if name else "" for k, name in enumerate(self.node.inputs))
        self.proto.output.extend(f"o{k}" for k in range(len(self.node.outputs)))
        self.domains.add(self.node.domain)
        self._copy_attributes(self.node.proto, self.proto, {})

    def inputs(self) -> list[tuple[str, str]]:
        explicit = [(f"i{k}", name) for k, name in enumerate(self.node.inputs) if name]
        return explicit + [(name, tensor) for tensor, name in self.captured.items()]

    def outputs(self) -> list[tuple[str, str]]:
        return [(f"o{k}", name) for k, name in enumerate(self.node.outputs)]

    def _copy_attributes(self, source: NodeProto, target: NodeProto, scope: Mapping[str, str]) -> None:
        for attribute in sorted(source.attribute, key=lambda a: str(a.name)):
            copy = target.attribute.add()
            if attribute.type == AttributeProto.GRAPH:
                copy.name, copy.type = attribute.name, attribute.type
                copy.g.CopyFrom(self._body(attribute.g, scope))
            elif attribute.type == AttributeProto.GRAPHS:
                copy.name, copy.type = attribute.name, attribute.type
                copy.graphs.extend(self._body(body, scope) for body in attribute.graphs)
            else:
                copy.CopyFrom(attribute)
                copy.ClearField("doc_string")

    def _body(self, source: GraphProto, outer: Mapping[str, str]) -> GraphProto:
        """A subgraph with its own tensors renamed; names that no scope defines are captures of the node."""
        scope = dict(outer)
        body = GraphProto(name="body")
        for value in source.input:
            body.input.append(self._renamed(value, self._define(value.name, scope)))
        for tensor in source.initializer:
            name = scope[tensor.name] if tensor.name in _names(source.input) else self._define(tensor.name, scope)
            copy = body.initializer.add()
            copy.CopyFrom(tensor)
            copy.name = name
        for sparse in source.sparse_initializer:
            copy_sparse = body.sparse_initializer.add()
            copy_sparse.CopyFrom(sparse)
            copy_sparse.values.name = self._define(sparse.values.name, scope)
        for node in source.node:
            copy_node = body.node.add(op_type=node.op_type, domain=node.domain)
            copy_node.input.extend(self._resolve(name, scope) for name in node.input)
            self._copy_attributes(node, copy_node, scope)
            copy_node.output.extend(self._define(name, scope) if name else "" for name in node.output)
            self.domains.add(node.domain)
        for value in source.output:
            body.output.append(self._renamed(value, self._resolve(value.name, scope)))
        return body

    def _define(self, name: str, scope: dict[str, str]) -> str:
        scope[name] = f"s{self.inner}"
        self.inner += 1
        return scope[name]

    def _resolve(self, name: str, scope: Mapping[str, str]) -> str:
        if not name or name in scope:
            return scope.get(name, "")
        return self.captured.setdefault(name, f"c{len(self.captured)}")

    @staticmethod
    def _renamed(value: ValueInfoProto, name: str) -> ValueInfoProto:
        return ValueInfoProto(name=name, type=value.type) if value.HasField("type") else ValueInfoProto(name=name)


def _names(values: object) -> set[str]:
    return {value.name for value in values}  # type: ignore[attr-defined]
