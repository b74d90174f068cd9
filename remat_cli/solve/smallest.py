"""The smallest capacity that a schedule is found for: what infeasible budgets are answered with."""

from __future__ import annotations

import random
from dataclasses import dataclass

from remat_cli.memory import replay_sequence
from remat_cli.problem import Problem, Solution
from remat_cli.reporter import Reporter
from remat_cli.solve.baselines import chen_sequences
from remat_cli.solve.bounds import working_set_bound
from remat_cli.solve.evict import Fitter, refill
from remat_cli.solve.greedy import METHOD, holds_of, live_peak
from remat_cli.solve.holds import Holds
from remat_cli.solve.instance import flatten
from remat_cli.solve.local import settle
from remat_cli.solve.types import Request
from remat_cli.solve.verified import finish
from remat_cli.solve.work import Work

# Work of the whole search (about 4 s), and of one attempt.
_WORK = 4_000_000
_ATTEMPT_WORK = 600_000
_ROUNDS = 10
# The search ends when found and impossible capacities are this close: 1/500.
_CLOSE = 500


@dataclass(frozen=True)
class Smallest:
    """`capacity_bytes`: the smallest found, `solution` its schedule. No schedule needs less than
    `lower_bound_bytes`, because of `node` (an index)."""

    capacity_bytes: int
    solution: Solution
    lower_bound_bytes: int
    node: int


def smallest_feasible(problem: Problem, *, reporter: Reporter | None = None) -> Smallest:
    """Bisect between the working-set bound and the best peak so far, each attempt starting from the best state."""
    bound = working_set_bound(problem)
    search = _Search(problem)
    reporter = reporter or Reporter()
    with reporter.task("looking for the smallest budget") as task:
        low = bound.bytes
        if search.attempt(low):
            low = search.peak
        while search.peak - low > max(search.peak // _CLOSE, problem.alignment) and not search.work.spent():
            middle = (low + search.peak) // 2
            if not search.attempt(middle):
                low = middle
            task.advance(detail=f"{search.peak} bytes")
    request = Request(problem, search.peak)
    proved = len(search.sequence) == len(problem.nodes)
    solution = finish(request, search.method, search.sequence, "optimal" if proved else "feasible")
    return Smallest(search.peak, solution, bound.bytes, bound.node)


class _Search:
    """The schedule of the lowest peak so far, and the state that attempts start from."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.work = Work(_WORK)
        self.instance = flatten(problem)
        self.holds = Holds(self.instance, self.work)
        self.method = "store-all"
        self.sequence: tuple[int, ...] = tuple(range(len(problem.nodes)))
        timeline = replay_sequence(problem, self.sequence)
        self.peak, self.cost = timeline.peak_bytes, timeline.compute_ns
        for sequence in chen_sequences(problem):
            self._offer("chen-greedy", sequence)

    def _offer(self, method: str, sequence: tuple[int, ...]) -> bool:
        timeline = replay_sequence(self.problem, sequence)
        if (timeline.peak_bytes, timeline.compute_ns) >= (self.peak, self.cost):
            return False
        self.method, self.sequence = method, sequence
        self.peak, self.cost = timeline.peak_bytes, timeline.compute_ns
        return True

    def attempt(self, capacity: int) -> bool:
        """Fit from the best state, else from store-all. True when the oracle's peak is within `capacity`."""
        for holds in (self.holds, Holds(self.instance, self.work), self._from_best()):
            if holds is None:
                continue
            mark = holds.mark()
            part = self.work.part(_ATTEMPT_WORK)
            holds.work = part
            fits = Fitter(holds, capacity).fit() or settle(holds, capacity, random.Random(0), _ROUNDS)
            if fits:
                refill(holds, capacity)
            self.work.charge(part)
            holds.work = self.work
            if fits or live_peak(self.problem, holds) < self.peak:
                self._offer(METHOD, holds.sequence())
            if fits:
                holds.commit()
                self.holds = holds
                return True
            holds.rollback(mark)
        return self.peak <= capacity

    def _from_best(self) -> Holds | None:
        if self.method == METHOD:
            return None
        return holds_of(self.instance, self.problem, self.sequence, self.work)
