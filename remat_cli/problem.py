"""The rematerialization problem and its solution: what solvers read and write.

A `Problem` is a list of nodes in topological order over a table of tensors. It knows nothing of ONNX. The
memory rule that gives it a meaning is `remat_cli.memory`.

Views are tensors without storage of their own: they name the storage of another tensor. A view has no node and
takes no step. Solvers see storages only, through `Problem.reads`, `Problem.writes` and `Problem.kept`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from remat_cli.units import align

Kind = Literal["input", "weight", "constant", "activation", "gradient", "state", "output", "pinned", "view"]
RESIDENT_KINDS: frozenset[str] = frozenset({"input", "weight", "constant"})

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor. Indices refer to `Problem.tensors`.

    `size_bytes`: storage rounded up to the alignment; 0 for views, states and residents (those are part of
    `Problem.fixed_bytes`).
    `producer`: index of the node that makes it; None for residents (inputs, weights, constants).
    For a view, `producer` is None too: its storage is `view_of`'s.
    `state_of`: the resident that this tensor overwrites (``W/new`` on ``W``).
    """

    id: str
    size_bytes: int
    kind: Kind
    producer: int | None = None
    view_of: int | None = None
    state_of: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One computation. `inputs` and `outputs` are tensor indices, in the operator's order, gaps left out.

    `workspace_bytes`: scratch that counts during this node's step alone (problem files). Scratch that is
    committed once beside the arena is part of `Problem.fixed_bytes` instead.
    `recomputable`: False for nodes that may run only once (random, stateful, of unknown size).
    `in_place_inputs`: inputs whose storage the first output may take over when that input dies in the step.
    """

    id: str
    op_type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    cost_ns: int
    workspace_bytes: int = 0
    recomputable: bool = True
    in_place_inputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Problem:
    """A graph to schedule. Node v of `nodes` may only read tensors made by nodes before v.

    `outputs`: tensor indices that must be live at the end. `fixed_bytes`: everything that is resident all the
    time, so `budget_bytes = fixed_bytes + capacity_bytes`.
    """

    name: str
    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...]
    outputs: tuple[int, ...]
    fixed_bytes: int = 0
    alignment: int = 1
    batch: int | None = field(default=None, compare=False)

    @cached_property
    def root(self) -> tuple[int, ...]:
        """For each tensor, the tensor that owns its storage (itself unless it is a view)."""
        roots: list[int] = []
        for index in range(len(self.tensors)):
            target = index
            while (parent := self.tensors[target].view_of) is not None:
                target = parent
            roots.append(target)
        return tuple(roots)

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the distinct non-resident storages that it reads, ascending."""
        return tuple(
            tuple(sorted({self.root[t] for t in node.inputs if self.is_made(self.root[t])})) for node in self.nodes
        )

    @cached_property
    def writes(self) -> tuple[tuple[int, ...], ...]:
        """For each node, its output tensors (always storages, some of size 0)."""
        return tuple(node.outputs for node in self.nodes)

    @cached_property
    def write_bytes(self) -> tuple[int, ...]:
        """For each node, the bytes of all its outputs."""
        return tuple(sum(self.tensors[t].size_bytes for t in outs) for outs in self.writes)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor, the nodes that read its storage, ascending (empty for views and residents)."""
        readers: list[list[int]] = [[] for _ in self.tensors]
        for v, roots in enumerate(self.reads):
            for t in roots:
                readers[t].append(v)
        return tuple(tuple(r) for r in readers)

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Non-resident storages that must be live at the end, ascending."""
        return tuple(sorted({self.root[t] for t in self.outputs if self.is_made(self.root[t])}))

    @cached_property
    def last_stage(self) -> tuple[int, ...]:
        """For each node v, the last stage in which v may run; stage s runs node s for the first time, last of all.

        n for ordinary nodes: kept outputs may be recomputed after the last node. v itself for nodes that run once.
        For readers of a state's resident, the stage of its update, which comes after all that its stage recomputes.
        """
        n = len(self.nodes)
        updates = {t.state_of: t.producer for t in self.tensors if t.state_of is not None}
        last = []
        for v, node in enumerate(self.nodes):
            overwritten = [updates[self.root[t]] for t in node.inputs if self.root[t] in updates]
            once = not node.recomputable or v in updates.values()
            last.append(v if once else min([n, *(u for u in overwritten if u is not None)]))
        return tuple(last)

    @cached_property
    def total_cost_ns(self) -> int:
        """Cost of computing every node once (store-all)."""
        return sum(node.cost_ns for node in self.nodes)

    def is_made(self, tensor: int) -> bool:
        """True when the tensor is made by a node (not resident, not a view)."""
        return self.tensors[tensor].producer is not None


@dataclass(frozen=True)
class Solution:
    """A method's answer. `sequence` is the order of computes (node indices), already replayed by the oracle.

    `status`: "optimal" and "infeasible" are proofs within `scope` (for example "live bytes" for the full model or
    "live bytes, reduced" for a restricted one); "feasible" has a sequence without proof; "unknown" has none.
    `method`: the method that made the sequence. `lower_bound_ns`: proved bound on the cost, or None.
    `message`: one line for people (why there is no schedule, which node needs more).
    """

    method: str
    status: Status
    sequence: tuple[int, ...] | None = None
    cost_ns: int | None = None
    live_peak_bytes: int | None = None
    lower_bound_ns: int | None = None
    scope: str = "live bytes"
    message: str = ""


@dataclass(frozen=True, slots=True)
class NodeCost:
    """What one node costs on a device: its time, and the scratch that its kernel takes while it runs."""

    cost_ns: int
    workspace_bytes: int = 0


def committed_workspace(largest_bytes: int, alignment: int) -> int:
    """Bytes that are committed beside the arena for the largest kernel workspace of any node.

    A 32nd more than the kernel takes: the allocator rounds each piece up and keeps headers, and the peak that the
    operating system sees must stay within the budget, not come out 0.1 % above it.
    """
    return align(largest_bytes + largest_bytes // 32, alignment)
