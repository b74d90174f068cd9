"""The baselines of the field: store everything, and the checkpointing of Chen et al. (2016), on any graph.

Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost" splits a chain of forward nodes into
segments, keeps the tensors between segments, drops the others, and recomputes a whole segment when the backward
pass arrives at it. Checkmate's appendix B carries this to other graphs by linearising them: nodes in topological
order stand for the chain. Here:

* the turn: the gap between two nodes across which store-all holds most bytes (graph outputs aside). Nodes before it
  are the forward pass. Tensors that cross the turn are saved tensors; only these are dropped;
* a checkpoint at a segment's end keeps all tensors that cross the end on their way to a later forward node, so a
  segment can be recomputed from the checkpoints before it and itself, whatever the graph looks like. On a chain
  that is one tensor;
* every other forward tensor is dropped after its last reader in the forward pass. When a later node first reads one
  of a segment's dropped tensors, all of these that later nodes read are recomputed in one sweep and held to their
  last reader;
* the last segment is kept, as in the paper: it is still live when the backward pass begins;
* graph outputs, and whatever the nodes make that may not rerun when they would have to, are kept.

`chen_sqrt` ends a segment every sqrt(forward nodes) nodes. `chen_greedy` (Chen's algorithm 3) ends one as soon as
its tensors exceed b bytes, tries many b, and takes the cheapest schedule that fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isqrt

from remat_cli.problem import Problem, Solution, Status
from remat_cli.solve.bounds import infeasible_reason
from remat_cli.solve.stages import pin_blocked
from remat_cli.solve.types import Request
from remat_cli.solve.verified import finish, measured
from remat_cli.units import format_bytes

# chen-greedy tries segment sizes from the largest tensor to the whole forward pass, each 1/_FINENESS over the last.
_FINENESS = 8


def store_all(request: Request) -> Solution:
    """Every node once, in order: the cheapest schedule there is, so optimal when it fits."""
    problem = request.problem
    sequence = tuple(range(len(problem.nodes)))
    needed = measured(problem, sequence, "store-all").peak_bytes
    if needed > request.capacity_bytes:
        return _too_much(request, "store-all", needed)
    return finish(request, "store-all", sequence, "optimal", lower_bound_ns=problem.total_cost_ns)


def chen_sqrt(request: Request) -> Solution:
    """Chen et al. with segments of about sqrt(forward nodes) nodes."""
    return _best_of(request, "chen-sqrt", [_sqrt_ends(request.problem)])


def chen_greedy(request: Request) -> Solution:
    """Chen et al. with segments by bytes: the cheapest over many segment sizes."""
    return _best_of(request, "chen-greedy", _greedy_ends(request.problem))


def chen_sequences(problem: Problem) -> Iterator[tuple[int, ...]]:
    """All schedules of both, whatever they need: what other methods begin from."""
    for ends in dict.fromkeys([_sqrt_ends(problem), *_greedy_ends(problem)]):
        yield checkpointed(problem, ends)


def checkpointed(problem: Problem, ends: Sequence[int]) -> tuple[int, ...]:
    """The computes of a checkpointed schedule; `ends`: the last node of every segment but the last, ascending."""
    holds = _checkpoint_holds(problem, turning_point(problem), ends)
    return pin_blocked(problem, holds)[1].sequence


def turning_point(problem: Problem) -> int:
    """The last forward node: store-all holds most bytes, graph outputs aside, right after it."""
    kept = set(problem.kept)
    change = [0] * (len(problem.nodes) + 1)
    for i, tensor in enumerate(problem.tensors):
        if tensor.producer is not None and i not in kept and problem.readers[i]:
            change[tensor.producer] += tensor.size_bytes
            change[problem.readers[i][-1]] -= tensor.size_bytes
    best = held = most = 0
    for v in range(len(problem.nodes)):
        held += change[v]
        if held > most:
            best, most = v, held
    return best


def _checkpoint_holds(problem: Problem, turn: int, ends: Sequence[int]) -> list[int]:
    """Bit sets for `remat_cli.solve.stages.runs_from_holds` (see the head of this module)."""
    n = len(problem.nodes)
    segment = _segments(turn, ends)
    begins: list[int] = [0] * (n + 2)
    stops: list[int] = [0] * (n + 2)

    def hold(tensor: int, first: int, last: int) -> None:
        if first <= last:
            begins[first] |= 1 << tensor
            stops[last + 1] |= 1 << tensor

    dropped: list[list[tuple[int, list[int]]]] = [[] for _ in range(len(ends))]
    for i, tensor in enumerate(problem.tensors):
        if (v := tensor.producer) is None:
            continue
        late = [w for w in problem.readers[i] if w > turn]
        if _stays(problem, segment, i, v):
            hold(i, v + 1, n)
        else:
            dropped[segment[v]].append((i, late))
            hold(i, v + 1, max((w for w in problem.readers[i] if w <= turn), default=v))
    for members in dropped:
        first = min((late[0] for _, late in members if late), default=n)
        for i, late in members:
            if late:
                hold(i, first + 1, late[-1])
    holds = [0]
    for t in range(1, n + 1):
        holds.append((holds[-1] & ~stops[t]) | begins[t])
    return holds


def _segments(turn: int, ends: Sequence[int]) -> list[int]:
    """For each forward node, the number of its segment."""
    segment: list[int] = []
    for number, end in enumerate([*ends, turn]):
        segment += [number] * (end + 1 - len(segment))
    return segment


def _stays(problem: Problem, segment: Sequence[int], tensor: int, producer: int) -> bool:
    """True for what a checkpointed schedule never drops: checkpoints, the last segment, all after the turn."""
    if producer >= len(segment) or segment[producer] == segment[-1]:
        return True
    if tensor in problem.kept or not problem.nodes[producer].recomputable:
        return True
    return any(w < len(segment) and segment[w] > segment[producer] for w in problem.readers[tensor])


def _sqrt_ends(problem: Problem) -> tuple[int, ...]:
    forward = turning_point(problem) + 1
    length = max(1, isqrt(forward))
    return tuple(range(length - 1, forward - 1, length))


def _greedy_ends(problem: Problem) -> list[tuple[int, ...]]:
    sizes = problem.write_bytes[: turning_point(problem) + 1]
    limit, total = max(sizes, default=0), sum(sizes)
    found = [_ends_by_bytes(sizes, limit)]
    while limit < total:
        limit += limit // _FINENESS + 1
        found.append(_ends_by_bytes(sizes, limit))
    return list(dict.fromkeys(found))


def _ends_by_bytes(sizes: Sequence[int], limit: int) -> tuple[int, ...]:
    ends: list[int] = []
    total = 0
    for v, size in enumerate(sizes[:-1]):
        total += size
        if total > limit:
            ends.append(v)
            total = 0
    return tuple(ends)


def _best_of(request: Request, method: str, candidates: Sequence[Sequence[int]]) -> Solution:
    problem = request.problem
    best: tuple[int, int, tuple[int, ...]] | None = None
    least = -1
    for ends in candidates:
        sequence = checkpointed(problem, ends)
        timeline = measured(problem, sequence, method)
        least = timeline.peak_bytes if least < 0 else min(least, timeline.peak_bytes)
        if timeline.peak_bytes <= request.capacity_bytes:
            found = (timeline.compute_ns, timeline.peak_bytes, sequence)
            best = found if best is None else min(best, found)
    if best is None:
        return _too_much(request, method, least)
    status: Status = "optimal" if best[0] == problem.total_cost_ns else "feasible"
    return finish(request, method, best[2], status, lower_bound_ns=problem.total_cost_ns)


def _too_much(request: Request, method: str, needed: int) -> Solution:
    if (reason := infeasible_reason(request.problem, request.capacity_bytes)) is not None:
        return finish(request, method, None, "infeasible", message=reason)
    message = (
        f"it needs {needed} live bytes ({format_bytes(needed)}), and has {request.capacity_bytes}"
        f" ({format_bytes(request.capacity_bytes)})"
    )
    return finish(request, method, None, "unknown", message=message)
