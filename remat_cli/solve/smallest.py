"""The smallest capacity that a schedule is found for: what infeasible budgets are answered with."""

from __future__ import annotations

import random
from dataclasses import dataclass

from remat_cli.memory import replay_sequence
from remat_cli.problem import Problem, Solution
from remat_cli.reporter import Reporter
from remat_cli.solve import greedy, local
from remat_cli.solve.anneal import Annealer, heat_for
from remat_cli.solve.baselines import chen_sequences
from remat_cli.solve.bounds import working_set_bound
from remat_cli.solve.evict import Fitter, refill
from remat_cli.solve.holds import Holds, spans_of
from remat_cli.solve.instance import flatten
from remat_cli.solve.types import Request
from remat_cli.solve.verified import finish
from remat_cli.solve.work import Work

# Work of the whole search, a few seconds, and the parts of what is left that one descent or annealing may take.
_WORK = 4_000_000
_DESCENT_SHARE, _ANNEAL_SHARE = 0.1, 0.2
# The search ends when found and failed capacities are this close: 1/200.
_CLOSE = 200


@dataclass(frozen=True)
class Smallest:
    """`capacity_bytes`: the smallest found; `solution`: a schedule that needs just that much. No schedule needs less
    than `lower_bound_bytes`, because of `node` (an index)."""

    capacity_bytes: int
    solution: Solution
    lower_bound_bytes: int
    node: int


def smallest_feasible(problem: Problem, *, reporter: Reporter | None = None) -> Smallest:
    """Try the working-set bound, then go down from the lowest peak so far, towards what failed.

    Store-all is the answer where it already needs no more than the bound: then no budget below 100 % is feasible.
    """
    bound = working_set_bound(problem)
    search = _Search(problem)
    with (reporter or Reporter()).task("looking for the smallest budget") as task:
        low = bound.bytes
        if search.peak > low and not search.attempt(low, annealing=False):
            while search.peak - low > max(search.peak // _CLOSE, problem.alignment) and not search.work.spent():
                # Far below the best peak an attempt is work for nothing.
                target = max((low + search.peak) // 2, search.peak * 9 // 10)
                if not search.attempt(target):
                    low = target
                task.advance(detail=f"{search.peak} bytes")
    request = Request(problem, search.peak)
    proved = len(search.sequence) == len(problem.nodes)
    solution = finish(request, search.method, search.sequence, "optimal" if proved else "feasible")
    return Smallest(search.peak, solution, bound.bytes, bound.node)


class _Search:
    """The schedule of the lowest peak so far."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.work = Work(_WORK)
        self.instance = flatten(problem)
        self.method = "store-all"
        self.sequence: tuple[int, ...] = tuple(range(len(problem.nodes)))
        timeline = replay_sequence(problem, self.sequence)
        self.peak, self.cost = timeline.peak_bytes, timeline.compute_ns
        for sequence in chen_sequences(problem):
            self._offer("chen-greedy", sequence)

    def attempt(self, capacity: int, *, annealing: bool = True) -> bool:
        """Fit from the best state, then from store-all, then anneal. True when the oracle's peak is within it."""
        warm, cold = self._best_state(capacity), Holds(self.instance, capacity, self.work)
        for holds in (warm, cold):
            if self._descend(holds):
                return True
        if not annealing:
            return False
        nearest = min((warm, cold), key=Holds.excess)
        work = self.work.share(_ANNEAL_SHARE)
        annealer = Annealer(nearest, random.Random(0), heat_for(nearest, work))
        if annealer.run(work, lambda best: True):
            assert annealer.best is not None
            self._offer(local.METHOD, annealer.best.sequence)
        return self.peak <= capacity

    def _descend(self, holds: Holds) -> bool:
        holds.work = self.work.share(_DESCENT_SHARE)
        if Fitter(holds).fit():
            refill(holds)
        holds.commit()
        self.work.done += holds.work.done
        holds.work = self.work
        self._offer(greedy.METHOD, holds.sequence())
        return self.peak <= holds.capacity

    def _best_state(self, capacity: int) -> Holds:
        return Holds(self.instance, capacity, self.work, spans_of(self.instance, self.sequence))

    def _offer(self, method: str, sequence: tuple[int, ...]) -> None:
        timeline = replay_sequence(self.problem, sequence)
        if (timeline.peak_bytes, timeline.compute_ns) < (self.peak, self.cost):
            self.method, self.sequence = method, sequence
            self.peak, self.cost = timeline.peak_bytes, timeline.compute_ns
