"""`local`: greedy descents, then ruin and recreate and annealing in turn, which share the effort.

Ruin and recreate holds a window of storages throughout and fits again with noise, and is good at packing; annealing
(`remat_cli.solve.anneal`) rearranges, and finds schedules where the descents found none.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from remat_cli.problem import Solution
from remat_cli.solve.anneal import Annealer, Best, heat_for
from remat_cli.solve.bounds import infeasible_reason
from remat_cli.solve.evict import Fitter, Style, refill
from remat_cli.solve.greedy import best_descent
from remat_cli.solve.holds import Holds, spans_of
from remat_cli.solve.types import Request
from remat_cli.solve.verified import finish
from remat_cli.solve.work import Work

METHOD = "local"
_WIDTHS = (3, 6, 12, 25, 50)
_NOISE = (0, 2, 5, 10)
_POWER = (1, 2, 2, 3)
# A window of recomputes may have this many storages, so that recreating it stays cheap.
_WINDOW = 12
_LARGE = 600
# Shares of the work that is left: packing, then annealing, then packing again; nearly all for annealing where nothing
# fits yet, since half an annealing finds nothing.
_PACK_SHARE, _ANNEAL_SHARE, _REPAIR_SHARE = 0.15, 0.75, 0.95
# Packing hands its remaining work on after this many iterations without gain.
_IDLE = 300

# Told of every better schedule; answers whether it is good enough to stop.
Offer = Callable[[Best], bool]


def solve(request: Request) -> Solution:
    """The cheapest schedule found; "unknown" when none fits."""
    if reason := infeasible_reason(request.problem, request.capacity_bytes):
        return finish(request, METHOD, None, "infeasible", message=reason)
    work = Work.of(request)
    start = best_descent(request, work)
    found: list[Best] = []
    if start.fits():
        found.append(Best(start.total, start.sequence()))

    def offer(best: Best) -> bool:
        found.append(best)
        return False

    refine(request, start, work, offer)
    if not found:
        return finish(request, METHOD, None, "unknown", message="no schedule was found within the effort")
    sequence = found[-1].sequence
    proved = len(sequence) == len(request.problem.nodes)
    return finish(request, METHOD, sequence, "optimal" if proved else "feasible")


def refine(request: Request, start: Holds, work: Work, offer: Offer) -> None:
    """Improve `start` until `work` is spent or `offer` has enough; each better schedule that fits is offered."""
    rng = random.Random(request.seed)
    search = _Search(start, work, offer)
    if start.fits() and search.pack(rng, work.share(_PACK_SHARE)):
        return
    if not search.anneal(rng, work.share(_ANNEAL_SHARE if start.fits() else _REPAIR_SHARE)):
        search.pack(rng, work.share(1.0))


class _Search:
    """The state that the searches hand on, and the best schedule so far. Each returns True when that is enough."""

    def __init__(self, start: Holds, work: Work, offer: Offer) -> None:
        self.holds = start
        self.work = work
        self.offer = offer
        self.best = Best(start.total, start.sequence()) if start.fits() else None

    def _offer(self, best: Best | None) -> bool:
        if best is None or (self.best is not None and self.best.cost <= best.cost):
            return False
        self.best = best
        return self.offer(best)

    def pack(self, rng: random.Random, work: Work) -> bool:
        """Ruin and recreate until nothing was gained for a while."""
        holds = self.holds
        holds.work = work
        idle = 0
        enough = False
        while idle < _IDLE and not work.spent() and not enough:
            before = (holds.excess(), holds.total)
            if not ruin_and_recreate(holds, rng):
                break
            gained = (holds.excess(), holds.total) < before
            idle = 0 if gained else idle + 1
            if gained and holds.fits():
                enough = self._offer(Best(holds.total, holds.sequence()))
        self.work.done += work.done
        holds.work = self.work
        return enough

    def anneal(self, rng: random.Random, work: Work) -> bool:
        """Anneal; the state becomes that of the best schedule."""
        annealer = Annealer(self.holds, rng, heat_for(self.holds, work))
        enough = annealer.run(work, self._offer)
        if self.best is not None:
            instance = self.holds.instance
            self.holds = Holds(instance, self.holds.capacity, self.work, spans_of(instance, self.best.sequence))
        return enough


def ruin_and_recreate(holds: Holds, rng: random.Random) -> bool:
    """Hold a window of storages throughout, then fit and refill again; undone when the state got worse: more bytes
    over the capacity, or as many and more cost. False when nothing is recomputed."""
    recomputes = holds.recomputes()
    if not recomputes:
        return False
    holds.work.done += 100 + holds.instance.n // 2
    excess, cost = holds.excess(), holds.total
    mark = holds.mark()
    holds.retain_all(_window(holds, recomputes, rng))
    style = Style(_POWER[_below(rng, 4)], _NOISE[_below(rng, 4)], rng)
    fits = Fitter(holds, style).fit(stubborn=excess > 0)
    if (fits or excess) and holds.total * 50 < cost * 51:
        refill(holds)
    if (holds.excess(), holds.total) > (excess, cost):
        holds.rollback(mark)
    else:
        holds.commit()
    return True


def _window(holds: Holds, recomputes: list[tuple[int, int]], rng: random.Random) -> list[int]:
    """Storages that a window of stages recomputes, or those that a window of nodes makes."""
    instance = holds.instance
    stage, node = recomputes[_below(rng, len(recomputes))]
    width = max(2, _WIDTHS[_below(rng, len(_WIDTHS))] * (1 if instance.n < _LARGE else 2))
    by_stage = _below(rng, 10) < 3
    low = (stage if by_stage else node) - _below(rng, width)
    span = range(max(0, low), min(instance.n, low + width))
    if by_stage:
        chosen = sorted({t for s in span for v in holds.order[s][:-1] for t in instance.writes[v]})
        if len(chosen) > _WINDOW:
            chosen = [t for t in chosen if _below(rng, len(chosen)) < _WINDOW]
        return chosen
    chosen = [t for v in span for t in instance.writes[v]]
    if _below(rng, 10) < 3:
        chosen = [t for t in chosen if _below(rng, 10) < 6]
    return chosen


def _below(rng: random.Random, n: int) -> int:
    """A random integer from 0 to n - 1, the same in every version of Python."""
    return int(rng.random() * n)
