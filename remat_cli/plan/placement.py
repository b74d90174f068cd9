"""Static placement: one offset in one arena for every storage of a schedule, so that a plan's peak is a fact.

The problem is dynamic storage allocation: blocks with a size and a lifetime, no two that live together may overlap,
and the top should be low. `live_bound_bytes`, the live bytes at the peak, is a lower bound; `place` stops as soon as it
is reached. Orders and search are in `remat_cli.plan.packing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remat_cli.errors import InputError
from remat_cli.memory import Compute, Step, replay
from remat_cli.plan.packing import pack
from remat_cli.problem import Problem

# Sums of sizes stay below this, so that 64-bit offsets cannot overflow.
_MAX_TOTAL_BYTES = 2**62


@dataclass(frozen=True, slots=True)
class Block:
    """One storage for part of a schedule: bytes [offset, offset + size) during steps start <= k < end.

    `tensors`: what it holds, in turn: more than one where nodes run in place. Empty for a node's own workspace.
    `start_step` is the compute step that fills it, `end_step` the free step that releases it: the end of the schedule
    for graph outputs, `start_step` + 1 for what only exists during its step (workspace, and the second copy of an
    output that is still live).
    """

    tensors: tuple[int, ...]
    start_step: int
    end_step: int
    size_bytes: int
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class ComputeBlocks:
    """Where one compute step reads and writes: numbers are indices of `Placement.blocks`.

    `inputs`: storage (`Problem.root` of an input) -> block, for storages that nodes make; residents have none.
    `outputs`: one block for each of the node's outputs, in order. A state output, which lies on its resident, has a
    block of no bytes. `workspace`: block of the node's own scratch (problem files), or None.
    """

    step: int
    node: int
    inputs: Mapping[int, int]
    outputs: tuple[int, ...]
    workspace: int | None = None


@dataclass(frozen=True)
class Placement:
    """A placed schedule. `final`: storage -> block, for storages that are live at the end (graph outputs)."""

    arena_bytes: int
    live_bound_bytes: int
    blocks: tuple[Block, ...]
    computes: tuple[ComputeBlocks, ...]
    final: Mapping[int, int]


def place(problem: Problem, steps: Sequence[Step]) -> Placement:
    """Offsets for all storages of `steps`, which must be legal (IllegalStepError).

    Deterministic: the same storages and steps give the same offsets on any machine. Offsets are sums of sizes, so they
    are multiples of the alignment when all sizes are. Raises InputError when sizes add up to more than 2^62 bytes.
    """
    bound = replay(problem, steps).peak_bytes
    walk = _Walk(problem, len(steps))
    for k, step in enumerate(steps):
        if isinstance(step, Compute):
            walk.compute(k, step)
        else:
            walk.ends[walk.live.pop(step.tensor)] = k
    if sum(walk.sizes) > _MAX_TOTAL_BYTES:
        raise InputError(f"{problem.name}: sizes of all storages add up to {sum(walk.sizes)} bytes, more than 2^62")
    offsets = pack(walk.starts, walk.ends, walk.sizes, bound)
    blocks = tuple(
        Block(tuple(tensors), start, end, size, offset)
        for tensors, start, end, size, offset in zip(
            walk.tensors, walk.starts, walk.ends, walk.sizes, offsets, strict=True
        )
    )
    arena = max((b.offset_bytes + b.size_bytes for b in blocks), default=0)
    return Placement(arena, bound, blocks, tuple(walk.computes), dict(sorted(walk.live.items())))


class _Walk:
    """Lifetimes of blocks, found by walking over legal steps."""

    def __init__(self, problem: Problem, step_count: int) -> None:
        self.problem = problem
        self.step_count = step_count
        self.tensors: list[list[int]] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.sizes: list[int] = []
        self.live: dict[int, int] = {}
        self.computes: list[ComputeBlocks] = []

    def compute(self, k: int, step: Compute) -> None:
        problem, node = self.problem, self.problem.nodes[step.node]
        inputs = {t: self.live[t] for t in problem.reads[step.node]}
        outputs = []
        for position, t in enumerate(node.outputs):
            if position == 0 and step.in_place_of is not None:
                block = self.live.pop(problem.root[step.in_place_of])
                self.tensors[block].append(t)
                self.live[t] = block
            elif t in self.live:
                # The node runs for another output: this one keeps its old copy.
                block = self._new([t], k, k + 1, problem.tensors[t].size_bytes)
            else:
                block = self.live[t] = self._new([t], k, self.step_count, problem.tensors[t].size_bytes)
            outputs.append(block)
        workspace = self._new([], k, k + 1, node.workspace_bytes) if node.workspace_bytes else None
        self.computes.append(ComputeBlocks(k, step.node, inputs, tuple(outputs), workspace))

    def _new(self, tensors: list[int], start: int, end: int, size: int) -> int:
        self.tensors.append(tensors)
        self.starts.append(start)
        self.ends.append(end)
        self.sizes.append(size)
        return len(self.sizes) - 1
