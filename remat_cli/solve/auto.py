"""`auto`: the portfolio. Proof where it is cheap, the best of all methods everywhere.

1. Infeasible by the working-set bound, or store-all fits: both are proofs.
2. Chen's baselines and both greedy descents.
3. Ruin and recreate from the best state until the gap to the bound is at most 0.1 %, or the effort is spent.
4. Checkmate's MILP where the graph is small enough for a proof.

The answer's `method` is the one that made the schedule.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from remat_cli.problem import Solution
from remat_cli.solve import greedy
from remat_cli.solve.baselines import chen_greedy, chen_sqrt, store_all
from remat_cli.solve.bounds import infeasible_reason
from remat_cli.solve.gap_bound import gap_bound_ns
from remat_cli.solve.holds import Holds
from remat_cli.solve.local import improve, reach
from remat_cli.solve.types import Effort, Request
from remat_cli.solve.verified import finish
from remat_cli.solve.work import Work, allowance

METHOD = "auto"
# A gap of 0.1 % is below what profiles can tell apart.
_GAP = 1000
# The MILP has n^2 binaries and more; above this size it proves nothing within any effort.
_EXACT_NODES = 80
# Ruin and recreate runs in rounds; it ends after this many that gained nothing.
_ROUND = 20
_PATIENCE: dict[Effort, int] = {"quick": 10, "normal": 60, "thorough": 400}


@dataclass
class _Best:
    """The cheapest solution so far, and the proved bound."""

    bound_ns: int
    solution: Solution | None = None

    def offer(self, solution: Solution) -> None:
        if solution.cost_ns is None:
            return
        if self.solution is None or self.solution.cost_ns is None or solution.cost_ns < self.solution.cost_ns:
            self.solution = solution

    def close(self) -> bool:
        """True when there is nothing left to gain."""
        if self.solution is None or self.solution.cost_ns is None:
            return False
        return self.solution.cost_ns - self.bound_ns <= self.bound_ns // _GAP


def solve(request: Request) -> Solution:
    """The best schedule of the portfolio with the best proved bound; an interrupt returns the best so far."""
    if reason := infeasible_reason(request.problem, request.capacity_bytes):
        return finish(request, METHOD, None, "infeasible", message=reason)
    whole = store_all(request)
    if whole.sequence is not None:
        return whole
    best = _Best(request.problem.total_cost_ns)
    note = ""
    try:
        _search(request, best)
    except KeyboardInterrupt:
        if best.solution is None:
            raise
        note = "interrupted: the best schedule so far"
    if best.solution is None:
        return finish(request, METHOD, None, "unknown", lower_bound_ns=best.bound_ns, message="no method found one")
    cost = best.solution.cost_ns
    proved = cost is not None and cost <= best.bound_ns
    return replace(
        best.solution, status="optimal" if proved else "feasible", lower_bound_ns=best.bound_ns, message=note
    )


def _search(request: Request, best: _Best) -> None:
    work = allowance(request)
    with request.reporter.task("searching for a schedule") as task:
        for baseline in (chen_sqrt, chen_greedy):
            best.offer(baseline(request))
        holds = greedy.best_descent(request, work)
        if holds is not None:
            best.offer(finish(request, greedy.METHOD, holds.sequence(), "feasible"))
        else:
            holds = reach(request, work)
            if holds is not None:
                best.offer(finish(request, "local", holds.sequence(), "feasible"))
        task.advance(detail=_progress(best))
        best.bound_ns = gap_bound_ns(request.problem, request.capacity_bytes)
        if len(request.problem.nodes) <= _EXACT_NODES and not best.close():
            _prove(request, best)
        if holds is not None and not best.close():
            _improve(request, best, holds, work, task.advance)
        task.advance(detail=_progress(best))


def _improve(request: Request, best: _Best, holds: Holds, work: Work, advance: object) -> None:
    """Ruin and recreate in rounds, each of which may end the search."""
    rng = random.Random(request.seed)
    idle = 0
    while idle < _PATIENCE[request.effort] and not work.spent() and not best.close():
        before = holds.total
        improve(holds, request.capacity_bytes, rng, _ROUND)
        idle = 0 if holds.total < before else idle + 1
        best.offer(finish(request, "local", holds.sequence(), "feasible"))
        if callable(advance):
            advance(1, _progress(best))
        if len(holds.sequence()) == len(request.problem.nodes):
            return


def _prove(request: Request, best: _Best) -> None:
    """Checkmate's MILP, begun from the best schedule. Its bound is no proof where nodes can run in place."""
    from remat_cli.solve.checkmate import solve as checkmate

    start = best.solution.sequence if best.solution is not None else request.warm_start
    answer = checkmate(replace(request, warm_start=start))
    best.offer(answer)
    if answer.lower_bound_ns is not None and not any(node.in_place_inputs for node in request.problem.nodes):
        best.bound_ns = max(best.bound_ns, answer.lower_bound_ns)


def _progress(best: _Best) -> str:
    if best.solution is None or best.solution.cost_ns is None:
        return "no schedule yet"
    gap = (best.solution.cost_ns - best.bound_ns) / max(best.bound_ns, 1)
    return f"cost {best.solution.cost_ns} ns, gap {gap:.2%} ({best.solution.method})"
