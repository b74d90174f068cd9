"""Which nodes draw random numbers that no seed fixes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import onnx

from remat_cli.model.subgraphs import bodies

if TYPE_CHECKING:
    from remat_cli.model.graph import Graph, GraphNode


def unseeded_random_node(graph: Graph) -> GraphNode | None:
    """The first node that draws other numbers in every process, or None: its outputs can be compared with nothing."""
    for node in graph.nodes:
        if node.once.startswith("random") and not all(_has_seed(n) for n in _nodes(node.proto) if _takes_seed(n)):
            return node
    return None


def _nodes(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The node, and all nodes inside it."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        for body in bodies(current):
            pending.extend(body.node)


def _takes_seed(node: onnx.NodeProto) -> bool:
    """Operators without a schema of ONNX (onnxruntime's own) are taken to want a seed when they were called random."""
    if not onnx.defs.has(node.op_type, node.domain):
        return bool(node.domain)
    return "seed" in onnx.defs.get_schema(node.op_type, domain=node.domain).attributes


def _has_seed(node: onnx.NodeProto) -> bool:
    return any(attribute.name == "seed" for attribute in node.attribute)
