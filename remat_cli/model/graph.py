"""The loaded graph: what every later stage reads, and the only thing that knows the ONNX file.

A `Graph` is normalised: sorted, SSA-checked, local functions inlined, dims fixed, dead nodes dropped, constants
folded, every output named, every tensor sized. `remat_cli.model.load.load_graph` makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Type and size of one tensor.

    `elem_type`: onnx.TensorProto.DataType of the elements (of the sequence's elements for sequences), 0 if unknown.
    `shape`: fixed dims; None when the shape hangs on values, or the value is no tensor.
    `size_bytes`: bytes without alignment; for values of unknown size what one run measured, 0 for strings.
    `fixed_size`: False for values of unknown size (data-dependent shapes, strings, sequences): their nodes run once,
    outside the arena, and the tensor is pinned.
    """

    name: str
    elem_type: int
    shape: tuple[int, ...] | None
    size_bytes: int
    container: Literal["tensor", "sequence", "optional"] = "tensor"
    fixed_size: bool = True


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node. `inputs` keeps the operator's gaps as ""; `outputs` leaves trailing gaps out and has no "" inside.

    `id`: name of the first output, which SSA makes unique. `label`: how messages name it, with the file's own name,
    such as ``Conv 'conv1'`` or ``Relu (node 12)``.
    `captures`: outer tensors that subgraphs read and `inputs` does not list.
    `view_of`: input tensor whose bytes the (only used) output shares; such a node takes no step.
    `once`: why the node may run only once ("random", "unknown size", "custom operator", ...), or "".
    `in_place`: positions in `inputs` that the first output may overwrite bit for bit, best first.
    """

    id: str
    label: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    proto: onnx.NodeProto
    captures: tuple[str, ...] = ()
    view_of: str | None = None
    once: str = ""
    in_place: tuple[int, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """All tensors that the node reads: inputs without gaps, then captures."""
        return tuple(name for name in self.inputs if name) + self.captures


@dataclass(frozen=True, slots=True)
class Weight:
    """A resident initialiser that stays in its file until an engine reads it.

    `file`, `offset`, `length`: where its raw little-endian bytes lie (inside the model file itself for embedded
    weights). `inline`: the value where the file does not hold raw bytes (float_data, int64_data, strings).
    `overridable`: the initialiser is also a graph input, so a feed may replace it.
    """

    name: str
    elem_type: int
    shape: tuple[int, ...]
    length: int
    file: Path | None = None
    offset: int = 0
    inline: onnx.TensorProto | None = None
    overridable: bool = False


@dataclass(frozen=True)
class Graph:
    """A normalised ONNX graph. Names are ONNX tensor names.

    `inputs`: graph inputs that must be fed. `weights`: resident, fed by pointer. `constants`: small values that are
    embedded into the models of the nodes that read them (shapes, axes, scalars); resident too.
    `state`: output -> input pairs that one training step hands to the next (metadata ``remat.state``).
    `dims`: symbolic dims fixed by the user. `opsets`: domain -> version.
    `notes`: what loading did and users should know (dead nodes left out, constants folded, names given).
    """

    path: Path
    ir_version: int
    opsets: Mapping[str, int]
    dims: Mapping[str, int]
    nodes: tuple[GraphNode, ...]
    tensors: Mapping[str, TensorInfo]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, Weight]
    constants: Mapping[str, onnx.TensorProto]
    state: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
