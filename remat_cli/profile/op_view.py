"""One node as the cost formulas see it: shapes, element types and attributes by position and name."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from remat_cli.model.graph import Graph, GraphNode, TensorInfo

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class OpView:
    """A node of a graph. Positions follow the operator's ONNX page; gaps and missing inputs read as None or 0."""

    graph: Graph
    node: GraphNode

    @property
    def op_type(self) -> str:
        return self.node.op_type

    def input(self, position: int) -> TensorInfo | None:
        """The input at `position`, None where the node has none."""
        names = self.node.inputs
        return self.graph.tensors[names[position]] if position < len(names) and names[position] else None

    def output(self, position: int = 0) -> TensorInfo | None:
        """The output at `position`, None where the node has none."""
        names = self.node.outputs
        return self.graph.tensors[names[position]] if position < len(names) else None

    def in_shape(self, position: int) -> tuple[int, ...]:
        """Shape of an input; () when it is missing or unknown."""
        return _shape(self.input(position))

    def out_shape(self, position: int = 0) -> tuple[int, ...]:
        """Shape of an output; () when it is missing or unknown."""
        return _shape(self.output(position))

    def in_count(self, position: int) -> int:
        """Elements of an input, 0 when it is missing or its shape is unknown."""
        return _count(self.input(position))

    def out_count(self, position: int = 0) -> int:
        """Elements of an output, 0 when it is missing or its shape is unknown."""
        return _count(self.output(position))

    def in_bytes(self, position: int) -> int:
        info = self.input(position)
        return info.size_bytes if info else 0

    def read_bytes(self) -> int:
        """Bytes of all distinct tensors that the node reads."""
        return sum(self.graph.tensors[name].size_bytes for name in dict.fromkeys(self.node.reads))

    def written_bytes(self) -> int:
        """Bytes of all outputs."""
        return sum(self.graph.tensors[name].size_bytes for name in self.node.outputs)

    def int_attribute(self, name: str, default: int) -> int:
        attribute = self._attribute(name)
        return int(attribute.i) if attribute is not None else default

    def ints_attribute(self, name: str) -> tuple[int, ...]:
        """The attribute's integers, () when it is not set."""
        attribute = self._attribute(name)
        return tuple(attribute.ints) if attribute is not None else ()

    def text_attribute(self, name: str, default: str) -> str:
        attribute = self._attribute(name)
        return attribute.s.decode("utf-8", "replace") if attribute is not None else default

    def axis(self, default: int, rank: int) -> int:
        """The attribute `axis`, counted from the front of `rank` dims."""
        axis = self.int_attribute("axis", default)
        return axis + rank if axis < 0 else axis

    def _attribute(self, name: str) -> onnx.AttributeProto | None:
        return next((a for a in self.node.proto.attribute if a.name == name), None)


def _shape(info: TensorInfo | None) -> tuple[int, ...]:
    return info.shape if info is not None and info.shape is not None else ()


def _count(info: TensorInfo | None) -> int:
    return prod(info.shape) if info is not None and info.shape is not None else 0
