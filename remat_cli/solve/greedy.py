"""`greedy`: begin with store-all, evict holds until every stage fits, then hold again what still fits.

Two descents, the better of which is kept: *cold* goes straight to the capacity, *laddered* by way of 95 %, 90 %, ...
of the store-all peak, where each rung starts from the state of the one before (the budget ladder). Deterministic:
a fixed order, and work counted instead of timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from remat_cli.memory import replay_sequence
from remat_cli.problem import Problem, Solution
from remat_cli.solve.bounds import infeasible_reason
from remat_cli.solve.evict import Fitter, refill
from remat_cli.solve.holds import Holds
from remat_cli.solve.instance import Instance, flatten
from remat_cli.solve.stages import stages_of
from remat_cli.solve.types import Request
from remat_cli.solve.verified import finish
from remat_cli.solve.work import Work, allowance

METHOD = "greedy"
_RUNG_PERCENT = 5


def solve(request: Request) -> Solution:
    """The cheapest schedule of both descents and of the repaired warm start; "unknown" when none fits."""
    if reason := infeasible_reason(request.problem, request.capacity_bytes):
        return finish(request, METHOD, None, "infeasible", message=reason)
    best = best_descent(request, allowance(request))
    if best is None:
        return finish(request, METHOD, None, "unknown", message="evicting tensors did not bring the peak down to it")
    proved = len(best.sequence()) == best.instance.n
    return finish(request, METHOD, best.sequence(), "optimal" if proved else "feasible")


def best_descent(request: Request, work: Work) -> Holds | None:
    """The cheapest state that fits, of all descents; None when none fits."""
    instance = flatten(request.problem)
    best: Holds | None = None
    for holds in _descents(request, instance, work):
        if best is None or holds.total < best.total:
            best = holds
    return best


def _descents(request: Request, instance: Instance, work: Work) -> Iterator[Holds]:
    capacity = request.capacity_bytes
    cold = Holds(instance, work)
    if descend(cold, (capacity,)):
        yield cold
    laddered = Holds(instance, work)
    if descend(laddered, rungs(int(laddered.peak.max(initial=0)), capacity)):
        yield laddered
    if request.warm_start is not None:
        warm = holds_of(instance, request.problem, request.warm_start, work)
        if warm is not None and descend(warm, (capacity,)):
            yield warm


def rungs(peak: int, capacity: int) -> tuple[int, ...]:
    """95 %, 90 %, ... of `peak` as far as they are above `capacity`, then `capacity`."""
    above = (peak * percent // 100 for percent in range(100 - _RUNG_PERCENT, 0, -_RUNG_PERCENT))
    return (*(rung for rung in above if rung > capacity), capacity)


def descend(holds: Holds, capacities: Sequence[int]) -> bool:
    """Fit `holds` to each capacity in turn. True when it fits the last; a rung that fails ends the descent."""
    for capacity in capacities:
        if not Fitter(holds, capacity).fit():
            return False
        refill(holds, capacity)
        holds.commit()
    return True


def holds_of(instance: Instance, problem: Problem, sequence: Sequence[int], work: Work) -> Holds | None:
    """The state of an older schedule: store-all, minus each hold that the schedule does without.

    None when the sequence does not run the nodes' first computations in the problem's order.
    """
    stages = stages_of(problem, sequence)
    if stages is None:
        return None
    holds = Holds(instance, work)
    for b, stage in enumerate(stages):
        for v in stage[:-1]:
            for t in instance.writes[v]:
                a = holds.touch_before(t, b)
                if a is not None and holds.held[t][b] and holds.recompute_cost(t, b) is not None:
                    holds.release(t, a, b)
    holds.commit()
    return holds


def live_peak(problem: Problem, holds: Holds) -> int:
    """The oracle's peak of a state; never above the state's own."""
    return replay_sequence(problem, holds.sequence()).peak_bytes
