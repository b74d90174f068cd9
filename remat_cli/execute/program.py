"""A plan over a graph as a list of calls: which node runs when, and where each of its tensors lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from remat_cli.errors import InternalError
from remat_cli.execute.values import is_held
from remat_cli.memory import Free, Step
from remat_cli.plan.convert import problem_of, steps_of_plan
from remat_cli.plan.placement import Block, ComputeBlocks, Placement, place
from remat_cli.problem import RESIDENT_KINDS, Problem, committed_workspace
from remat_cli.units import align

if TYPE_CHECKING:
    from remat_cli.model.graph import Graph, GraphNode
    from remat_cli.plan.types import Plan

# Kernels of onnxruntime's CPU provider that take scratch of a tensor's size from the C heap (copies of indices in a
# vector); all others with much scratch take it from the shared allocator.
_ON_THE_HEAP = frozenset({"ScatterElements", "Scatter", "ScatterND", "OneHot", "TopK", "Unique"})
_SMALL_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class Resident:
    """On an input, weight or constant; a state's update lies on what it overwrites."""

    name: str


@dataclass(frozen=True, slots=True)
class InArena:
    """At a fixed offset of the arena, in bytes."""

    offset: int


@dataclass(frozen=True, slots=True)
class Held:
    """A value of unknown size, kept in Python under the name of the tensor that owns it."""

    name: str


Location = Resident | InArena | Held


@dataclass(frozen=True, slots=True)
class Call:
    """Run `node`. `step`: index of its step in the plan. `where`: each tensor that it reads or writes."""

    node: GraphNode
    step: int
    where: Mapping[str, Location]


@dataclass(frozen=True, slots=True)
class Drop:
    """Let go of a held value."""

    name: str


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Return so many bytes of the shared scratch to the system: the next kernel takes as much from the C heap."""

    size: int


Action = Call | Drop | GiveBack


@dataclass(frozen=True)
class Program:
    """What an arena engine executes.

    `fixed_bytes`: aligned residents and the largest workspace. `arena_bytes`: what all other tensors need.
    `copies`: (where a state output lies, the resident that takes its value before the next iteration), for states
    that could not be updated in place.
    """

    calls: tuple[Action, ...]
    outputs: Mapping[str, Location]
    copies: tuple[tuple[str, str], ...]
    fixed_bytes: int
    arena_bytes: int
    workspace_bytes: int
    alignment: int

    @property
    def peak_bytes(self) -> int:
        return self.fixed_bytes + self.arena_bytes


def build_program(plan: Plan, graph: Graph, alignment: int) -> Program:
    """The program of `plan`, which must be legal and made for `graph`.

    Another alignment than the plan's means another device: sizes are rounded again, and all storages placed anew.
    """
    problem = problem_of(plan)
    workspace = plan.predicted.workspace_bytes
    if alignment != problem.alignment:
        problem, workspace = _realigned(problem, plan, graph, alignment)
    steps = steps_of_plan(plan, problem)
    placement = place(problem, steps)
    workspaces = {node.id: node.workspace_bytes for node in plan.nodes}
    return _Builder(problem, graph, placement, workspaces).program(steps, workspace)


def _realigned(problem: Problem, plan: Plan, graph: Graph, alignment: int) -> tuple[Problem, int]:
    workspace = committed_workspace(max((node.workspace_bytes for node in plan.nodes), default=0), alignment)
    tensors = tuple(
        replace(t, size_bytes=align(graph.tensors[t.id].size_bytes, alignment)) if t.size_bytes else t
        for t in problem.tensors
    )
    residents = [t.id for t in problem.tensors if t.kind in RESIDENT_KINDS]
    fixed = sum(align(graph.tensors[name].size_bytes, alignment) for name in residents) + workspace
    return replace(problem, tensors=tensors, fixed_bytes=fixed, alignment=alignment), workspace


class _Builder:
    def __init__(self, problem: Problem, graph: Graph, placement: Placement, workspaces: Mapping[str, int]) -> None:
        self.problem = problem
        self.workspaces = workspaces
        self.graph = graph
        self.placement = placement
        self.index = {tensor.id: t for t, tensor in enumerate(problem.tensors)}
        self.nodes = {node.id: node for node in graph.nodes}

    def program(self, steps: Sequence[Step], workspace_bytes: int) -> Program:
        outputs = {name: self._location(name, self.placement.final) for name in self.graph.outputs}
        copies = tuple(
            (name, resident) for name, resident in self.graph.state.items() if outputs[name] != Resident(resident)
        )
        return Program(
            calls=tuple(self._calls(steps)),
            outputs=outputs,
            copies=copies,
            fixed_bytes=self.problem.fixed_bytes,
            arena_bytes=self.placement.arena_bytes,
            workspace_bytes=workspace_bytes,
            alignment=self.problem.alignment,
        )

    def _calls(self, steps: Sequence[Step]) -> list[Action]:
        computes = {compute.step: compute for compute in self.placement.computes}
        calls: list[Action] = []
        for k, step in enumerate(steps):
            if not isinstance(step, Free):
                call = self._call(computes[k])
                scratch = self.workspaces[call.node.id]
                if call.node.op_type in _ON_THE_HEAP and scratch >= _SMALL_BYTES:
                    calls.append(GiveBack(scratch))
                calls.append(call)
            elif is_held(self.graph.tensors[name := self.problem.tensors[step.tensor].id]):
                calls.append(Drop(name))
        return calls

    def _call(self, compute: ComputeBlocks) -> Call:
        problem = self.problem
        row = problem.nodes[compute.node]
        node = self.nodes[row.id]
        names = tuple(problem.tensors[t].id for t in row.outputs)
        if names != node.outputs:
            raise InternalError(f"the plan's node {row.id} makes {names}, the graph's {node.outputs}")
        where = {name: self._location(name, compute.inputs) for name in node.reads}
        for t, block in zip(row.outputs, compute.outputs, strict=True):
            where[problem.tensors[t].id] = self._storage(t, self.placement.blocks[block])
        return Call(node, compute.step, where)

    def _location(self, name: str, blocks: Mapping[int, int]) -> Location:
        """Where `name` is to be read; `blocks`: storage -> block, for storages that nodes make."""
        root = self.problem.root[self.index[name]]
        if not self.problem.is_made(root):
            return Resident(self.problem.tensors[root].id)
        return self._storage(root, self.placement.blocks[blocks[root]])

    def _storage(self, root: int, block: Block) -> Location:
        tensor = self.problem.tensors[root]
        if tensor.state_of is not None:
            return Resident(self.problem.tensors[tensor.state_of].id)
        if is_held(self.graph.tensors[tensor.id]):
            return Held(tensor.id)
        return InArena(block.offset_bytes)
