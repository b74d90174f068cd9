"""`greedy`: begin with store-all, evict holds until every stage fits, then hold again what still fits.

Two descents, the better of which is kept: *cold* goes straight to the capacity, *laddered* by way of 95 %, 90 %, ...
of the store-all peak, where each rung starts from the state of the one before (the budget ladder); and a third from
the warm start, if there is one. Deterministic: a fixed order, integers, and work counted instead of timed.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.problem import Solution
from remat_cli.solve.bounds import infeasible_reason
from remat_cli.solve.evict import Fitter, refill
from remat_cli.solve.holds import Holds, spans_of
from remat_cli.solve.instance import flatten
from remat_cli.solve.types import Request
from remat_cli.solve.verified import finish
from remat_cli.solve.work import Work

METHOD = "greedy"
_RUNG_PERCENT = 5
# No descent may use more than this part of what is left of the work.
_DESCENT_SHARE = 0.15


def solve(request: Request) -> Solution:
    """The cheapest schedule of all descents; "unknown" when none fits."""
    if reason := infeasible_reason(request.problem, request.capacity_bytes):
        return finish(request, METHOD, None, "infeasible", message=reason)
    best = best_descent(request, Work.of(request))
    if not best.fits():
        return finish(request, METHOD, None, "unknown", message="evicting tensors did not bring the peak down to it")
    proved = len(best.sequence()) == len(request.problem.nodes)
    return finish(request, METHOD, best.sequence(), "optimal" if proved else "feasible")


def best_descent(request: Request, work: Work) -> Holds:
    """The best state of all descents: one that fits, else the one with the fewest bytes over the capacity."""
    instance = flatten(request.problem)
    capacity = request.capacity_bytes
    cold = Holds(instance, capacity, work)
    peak = int(cold.peak.max(initial=0))
    candidates = [descend(cold, (capacity,), work)]
    laddered = Holds(instance, capacity, work)
    candidates.append(descend(laddered, rungs(peak, capacity), work))
    if request.warm_start is not None and (spans := spans_of(instance, request.warm_start)) is not None:
        candidates.append(descend(Holds(instance, capacity, work, spans), (capacity,), work))
    return min(candidates, key=lambda holds: (holds.excess(), holds.total))


def rungs(peak: int, capacity: int) -> tuple[int, ...]:
    """95 %, 90 %, ... of `peak` as far as they are above `capacity`, then `capacity`."""
    above = (peak * percent // 100 for percent in range(100 - _RUNG_PERCENT, 0, -_RUNG_PERCENT))
    return (*(rung for rung in above if rung > capacity), capacity)


def descend(holds: Holds, capacities: Sequence[int], work: Work) -> Holds:
    """Fit `holds` to each capacity in turn; returns them, as far as they came. Their capacity ends as the last."""
    holds.work = work.share(_DESCENT_SHARE)
    for capacity in capacities:
        holds.capacity = capacity
        fits = Fitter(holds).fit()
        if fits:
            refill(holds)
        holds.commit()
        if not fits:
            break
    holds.capacity = capacities[-1]
    work.done += holds.work.done
    holds.work = work
    return holds
