"""`auto`: the portfolio. Proof where it is cheap, the best of all methods everywhere.

1. Infeasible by the working-set bound, or store-all fits: both are proofs.
2. Chen's baselines and the greedy descents; a lower bound from the gap program.
3. Checkmate's MILP where the graph is small enough for a proof.
4. Ruin and recreate and annealing until the gap to the bound is at most 0.1 % (less with more effort), or the effort
   is spent.

The answer's `method` is the one that made the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from remat_cli.problem import Solution, Status
from remat_cli.reporter import Task
from remat_cli.solve import greedy, local
from remat_cli.solve.anneal import Best
from remat_cli.solve.baselines import chen_greedy, chen_sqrt, store_all
from remat_cli.solve.bounds import infeasible_reason
from remat_cli.solve.gap_bound import gap_bound_ns
from remat_cli.solve.types import Effort, Request
from remat_cli.solve.verified import LIVE_BYTES, finish
from remat_cli.solve.work import Work

METHOD = "auto"
# The search ends at a gap of 1 to so many: 0.1 % is below what profiles can tell apart.
_GAP: dict[Effort, int] = {"quick": 1000, "normal": 4000, "thorough": 20_000}
# The MILP has n^2 Booleans and more; above this size it proves nothing within any effort.
_EXACT_NODES = 80
# Share of the effort for other orders, where Checkmate proved that none in node order fits.
_LAST_HOPE = 0.2


def solve(request: Request) -> Solution:
    """The best schedule of the portfolio with the best proved bound; an interrupt returns the best so far."""
    if reason := infeasible_reason(request.problem, request.capacity_bytes):
        return finish(request, METHOD, None, "infeasible", message=reason)
    whole = store_all(request)
    if whole.sequence is not None:
        return whole
    portfolio = _Portfolio(request)
    note = ""
    try:
        with request.reporter.task("searching for a schedule") as task:
            portfolio.search(task)
    except KeyboardInterrupt:
        if portfolio.best is None:
            raise
        note = "interrupted: the best schedule so far"
    return portfolio.answer(note)


@dataclass
class _Portfolio:
    """The cheapest solution so far, and the proved bound.

    `in_order`: Checkmate's answer, whose proofs hold for schedules that recompute in node order within a stage.
    """

    request: Request
    best: Solution | None = None
    bound_ns: int = 0
    in_order: Solution | None = None

    def answer(self, note: str) -> Solution:
        exact = self.in_order
        if self.best is None or self.best.cost_ns is None:
            if exact is not None and exact.status == "infeasible":
                return exact
            why = "no method found one within the effort"
            return finish(self.request, METHOD, None, "unknown", lower_bound_ns=self.bound_ns, message=why)
        cost_ns = self.best.cost_ns
        status: Status = "optimal" if cost_ns <= self.bound_ns else "feasible"
        answer = replace(self.best, status=status, scope=LIVE_BYTES, lower_bound_ns=self.bound_ns, message=note)
        if (
            status == "optimal"
            or exact is None
            or exact.lower_bound_ns is None
            or exact.lower_bound_ns <= self.bound_ns
        ):
            return answer
        if exact.status == "optimal" and exact.cost_ns == cost_ns:
            answer = replace(answer, status="optimal")
        return replace(answer, lower_bound_ns=min(exact.lower_bound_ns, cost_ns), scope=exact.scope)

    def search(self, task: Task) -> None:
        """All methods in turn; each stage is left out when there is nothing to gain from it."""
        request = self.request
        work = Work.of(request)
        self.bound_ns = request.problem.total_cost_ns
        for baseline in (chen_sqrt, chen_greedy):
            self.offer(baseline(request))
        holds = greedy.best_descent(request, work)
        if holds.fits():
            self.offer(finish(request, greedy.METHOD, holds.sequence(), "feasible"))
        task.advance(detail=self.progress())
        self.bound_ns = max(self.bound_ns, gap_bound_ns(request.problem, request.capacity_bytes))
        if len(request.problem.nodes) <= _EXACT_NODES and not self.close():
            self.prove()

        def offer(found: Best) -> bool:
            self.offer(finish(request, local.METHOD, found.sequence, "feasible"))
            task.advance(detail=self.progress())
            return self.close()

        if not self.close():
            exact = self.in_order
            hopeless = exact is not None and exact.status == "infeasible"
            local.refine(request, holds, work.share(_LAST_HOPE) if hopeless else work, offer)

    def offer(self, solution: Solution) -> None:
        if solution.cost_ns is None:
            return
        if self.best is None or self.best.cost_ns is None or solution.cost_ns < self.best.cost_ns:
            self.best = solution

    def close(self) -> bool:
        """True when there is nothing left to gain."""
        if self.best is None or self.best.cost_ns is None:
            return False
        bound_ns = self.bound_ns
        if self.in_order is not None and self.in_order.lower_bound_ns is not None:
            bound_ns = max(bound_ns, self.in_order.lower_bound_ns)
        return self.best.cost_ns - bound_ns <= bound_ns // _GAP[self.request.effort]

    def prove(self) -> None:
        """Checkmate's MILP, begun from the best schedule."""
        from remat_cli.solve.checkmate import solve as checkmate

        start = self.best.sequence if self.best is not None else self.request.warm_start
        self.in_order = checkmate(replace(self.request, warm_start=start))
        self.offer(self.in_order)

    def progress(self) -> str:
        if self.best is None or self.best.cost_ns is None:
            return "no schedule yet"
        gap = (self.best.cost_ns - self.bound_ns) / max(self.bound_ns, 1)
        return f"cost {self.best.cost_ns} ns, gap {gap:.2%} ({self.best.method})"
