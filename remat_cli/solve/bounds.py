"""What any schedule needs at least: the proofs of infeasibility that take no solver.

Nothing here assumes an order of first computations: a bound holds for every schedule that
`remat_cli.memory.replay` accepts.
"""

from __future__ import annotations

from typing import NamedTuple

from remat_cli.problem import Problem
from remat_cli.solve.stages import bits, in_place_candidates, producer_of
from remat_cli.units import format_bytes


class WorkingSet(NamedTuple):
    """`bytes`: every schedule has a step with at least as many live bytes. `node`: the node that needs them (-1 for a
    problem without nodes)."""

    bytes: int
    node: int


def working_set_bound(problem: Problem) -> WorkingSet:
    """The largest of: what one node's step needs, over all nodes; what the last step of a schedule needs.

    A node's first step holds its inputs, outputs and workspace, less its first output when that may run in place.
    It also holds every tensor that only an ancestor made, that can never be made again, and that a descendant
    reads or the end wants: no schedule can do without it there. The last step of a schedule that frees early is one
    of some node, with all graph outputs live; the cheapest such node counts.
    """
    return max(_largest_step(problem), _last_step(problem), key=lambda bound: bound.bytes)


def infeasible_reason(problem: Problem, capacity_bytes: int) -> str | None:
    """Why no schedule fits `capacity_bytes`, naming the node; None when the working-set bound proves nothing."""
    step, last = _largest_step(problem), _last_step(problem)
    if max(step.bytes, last.bytes) <= capacity_bytes:
        return None
    bound = max(step, last, key=lambda bound: bound.bytes)
    node = problem.nodes[bound.node]
    what = f"the step of {node.id} ({node.op_type})"
    if last.bytes > step.bytes:
        what = f"the last step, at best that of {node.id} ({node.op_type}) beside all graph outputs,"
    return (
        f"{what} needs {bound.bytes} live bytes ({format_bytes(bound.bytes)}),"
        f" and there are {capacity_bytes} ({format_bytes(max(0, capacity_bytes))})"
    )


def _largest_step(problem: Problem) -> WorkingSet:
    """The node whose first step needs most: inputs, outputs, workspace, and what must be live across it."""
    across = _live_across(problem)
    candidates = in_place_candidates(problem)
    best = WorkingSet(0, -1)
    for v, node in enumerate(problem.nodes):
        needed = problem.write_bytes[v] + node.workspace_bytes + sum(_size(problem, i) for i in problem.reads[v])
        needed += sum(_size(problem, i) for i in across[v] if i not in problem.reads[v])
        if any(i not in across[v] for i in candidates[v]):
            needed -= _size(problem, node.outputs[0])
        if needed > best.bytes or best.node < 0:
            best = WorkingSet(needed, v)
    return best


def _live_across(problem: Problem) -> list[set[int]]:
    """For each node, tensors that are live before, during and after its first step in any schedule.

    Such a tensor is made by an ancestor that runs once, and read by a descendant or live at the end.
    """
    n = len(problem.nodes)
    across: list[set[int]] = [set() for _ in range(n)]
    updates = {t.producer for t in problem.tensors if t.state_of is not None}
    once = [v for v in range(n) if (not problem.nodes[v].recomputable or v in updates) and problem.write_bytes[v]]
    if not once:
        return across
    ancestors, descendants = _relatives(problem)
    kept = set(problem.kept)
    for u in once:
        for i in problem.writes[u]:
            between = descendants[u] if i in kept else 0
            for w in problem.readers[i]:
                between |= ancestors[w] & descendants[u]
            for v in bits(between):
                across[v].add(i)
    return across


def _relatives(problem: Problem) -> tuple[list[int], list[int]]:
    """Bit sets of each node's ancestors and of its descendants, itself left out."""
    n = len(problem.nodes)
    ancestors = [0] * n
    descendants = [0] * n
    for v in range(n):
        for i in problem.reads[v]:
            u = producer_of(problem, i)
            ancestors[v] |= ancestors[u] | 1 << u
    for v in range(n - 1, -1, -1):
        for i in problem.reads[v]:
            descendants[producer_of(problem, i)] |= descendants[v] | 1 << v
    return ancestors, descendants


def _last_step(problem: Problem) -> WorkingSet:
    """The cheapest way to end: the last step of a schedule has all graph outputs live beside what its node needs.

    Nodes that run once and have readers cannot be last.
    """
    kept = set(problem.kept)
    kept_bytes = sum(_size(problem, i) for i in kept)
    candidates = in_place_candidates(problem)
    best: WorkingSet | None = None
    for v, node in enumerate(problem.nodes):
        if not node.recomputable and any(problem.readers[i] for i in node.outputs):
            continue
        needed = kept_bytes + node.workspace_bytes
        needed += sum(_size(problem, i) for i in node.outputs if i not in kept)
        needed += sum(_size(problem, i) for i in problem.reads[v] if i not in kept)
        if any(i not in kept for i in candidates[v]):
            needed -= _size(problem, node.outputs[0])
        if best is None or needed < best.bytes:
            best = WorkingSet(needed, v)
    return best or WorkingSet(kept_bytes, -1)


def _size(problem: Problem, tensor: int) -> int:
    return problem.tensors[tensor].size_bytes
