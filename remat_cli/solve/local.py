"""Ruin and recreate on top of the greedy descent: hold a window of tensors again, evict anew with noise, keep if not
worse. Worse means: more bytes over capacity, then more cost, so it also repairs states that do not fit yet."""

from __future__ import annotations

import random

import numpy as np

from remat_cli.solve.evict import Fitter, Style, refill
from remat_cli.solve.holds import Holds
from remat_cli.solve.instance import flatten
from remat_cli.solve.types import Request
from remat_cli.solve.work import Work

_WIDTHS = (3, 6, 12, 25, 50)
_NOISE = (0.0, 0.2, 0.6, 1.2)
_POWER = (1, 2, 2, 3)
# A window of recomputes may have this many tensors, so that recreating it stays cheap.
_WINDOW_TENSORS = 12
_LARGE = 600
_REACH_ROUNDS = 100


def reach(request: Request, work: Work) -> Holds | None:
    """A state that fits, where the greedy descents found none; None when the rounds or the work run out."""
    holds = Holds(flatten(request.problem), work)
    Fitter(holds, request.capacity_bytes).fit()
    holds.commit()
    rng = random.Random(request.seed)
    return holds if settle(holds, request.capacity_bytes, rng, _REACH_ROUNDS) else None


def settle(holds: Holds, capacity: int, rng: random.Random, rounds: int) -> bool:
    """Improve in rounds of 20 until every stage fits. True when it does.

    Changes stay on the journal, so that the caller can undo them all.
    """
    for _ in range(rounds):
        if bytes_over(holds, capacity) == 0:
            return True
        if holds.work.spent():
            return False
        improve(holds, capacity, rng, 20, commit=False)
    return bytes_over(holds, capacity) == 0


def improve(holds: Holds, capacity: int, rng: random.Random, iterations: int, *, commit: bool = True) -> None:
    """Up to `iterations` ruins and recreates; `holds` never gets worse."""
    for _ in range(iterations):
        recomputes = [(s, v) for s, run in enumerate(holds.run) if len(run) > 1 for v in run if v != s]
        if not recomputes or holds.work.spent():
            return
        before = (bytes_over(holds, capacity), holds.total)
        mark = holds.mark()
        holds.retain_all(_window(holds, recomputes, rng))
        style = Style(_NOISE[rng.randrange(4)], _POWER[rng.randrange(4)], rng)
        fits = Fitter(holds, capacity, style).fit()
        if (fits or before[0]) and holds.total * 50 < before[1] * 51:
            refill(holds, capacity)
        if (bytes_over(holds, capacity), holds.total) > before:
            holds.rollback(mark)
        elif commit:
            holds.commit()


def bytes_over(holds: Holds, capacity: int) -> int:
    """How far all stages together are above the capacity."""
    return int(np.maximum(holds.peak - capacity, 0).sum())


def _window(holds: Holds, recomputes: list[tuple[int, int]], rng: random.Random) -> list[int]:
    """Storages to hold throughout: those that a window of stages recomputes, or those that a window of nodes makes."""
    instance = holds.instance
    stage, node = recomputes[rng.randrange(len(recomputes))]
    width = max(2, _WIDTHS[rng.randrange(len(_WIDTHS))] * (1 if instance.n < _LARGE else 2))
    if rng.randrange(10) < 3:
        low = stage - rng.randrange(width)
        span = range(max(0, low), min(instance.n, low + width))
        made = {t for s in span for v in holds.run[s] if v != s for t in instance.writes[v]}
        chosen = sorted(made)
        if len(chosen) > _WINDOW_TENSORS:
            chosen = [t for t in chosen if rng.randrange(len(chosen)) < _WINDOW_TENSORS]
        return chosen
    low = node - rng.randrange(width)
    span = range(max(0, low), min(instance.n, low + width))
    chosen = [t for v in span for t in instance.writes[v]]
    if rng.randrange(10) < 3:
        chosen = [t for t in chosen if rng.randrange(10) < 6]
    return chosen
