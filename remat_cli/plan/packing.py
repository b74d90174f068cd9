"""Dynamic storage allocation: offsets for blocks with lifetimes, as low as orders and a search find them.

First fit and best fit over eight orders, then a squeaky-wheel search (Joslin & Clements, JAIR 1999): blocks that end
above the bound move towards the front of the order, and the order is packed again. Work is counted in placed
blocks and random numbers come from a fixed seed, so the answer is the same on any machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SEED = 0
# Blocks placed in all: about half a second. Small plans need far less, as they reach the bound.
WORK = 40_000


@dataclass(frozen=True)
class _Layout:
    """One packing of an order (a permutation of blocks): offsets by block, and the top."""

    order: tuple[int, ...]
    offsets: Ints
    top: int
    best_fit: bool


def pack(starts: Sequence[int], ends: Sequence[int], sizes: Sequence[int], bound: int) -> list[int]:
    """Offsets >= 0, one for each block, which lives during starts <= k < ends; empty blocks lie at 0.

    `bound`: a lower bound on the top, at which the work stops. All sizes together must fit 62 bits.
    """
    solid = [i for i, size in enumerate(sizes) if size > 0]
    offsets = [0] * len(sizes)
    if solid:
        packer = _Packer([starts[i] for i in solid], [ends[i] for i in solid], [sizes[i] for i in solid], bound)
        for i, offset in zip(solid, packer.solve().tolist(), strict=True):
            offsets[i] = offset
    return offsets


class _Packer:
    def __init__(self, starts: list[int], ends: list[int], sizes: list[int], bound: int) -> None:
        self.starts, self.ends, self.sizes = starts, ends, sizes
        self.bound = bound
        self.count = len(sizes)
        self.work = WORK

    def solve(self) -> Ints:
        best = self._best_of_orders()
        if best.top > self.bound:
            best = self._search(best)
        return best.offsets

    def _best_of_orders(self) -> _Layout:
        best: _Layout | None = None
        for order in self._orders():
            for best_fit in (False, True):
                found = self._fit(order, best_fit, None if best is None else best.top - 1)
                best = found or best
                assert best is not None
                if best.top <= self.bound or self.work <= 0:
                    return best
        assert best is not None
        return best

    def _orders(self) -> Iterator[tuple[int, ...]]:
        starts, ends, sizes, blocks = self.starts, self.ends, self.sizes, range(self.count)
        spans = [end - start for start, end in zip(starts, ends, strict=True)]
        peaks = self._peaks()
        keys = (
            lambda i: (-peaks[i], -sizes[i]),
            lambda i: (-sizes[i], -spans[i]),
            lambda i: (-sizes[i] * spans[i], -sizes[i]),
            lambda i: (-peaks[i], -spans[i], -sizes[i]),
            lambda i: (-spans[i], -sizes[i]),
            lambda i: (-sizes[i] * sizes[i] * spans[i], i),
            lambda i: (starts[i], -sizes[i]),
            lambda i: (-ends[i], -sizes[i]),
        )
        for key in keys:
            yield tuple(sorted(blocks, key=key))

    def _peaks(self) -> list[int]:
        """For each block, the most bytes that live at any time of its life."""
        change = np.zeros(max(self.ends) + 1, np.int64)
        np.add.at(change, self.starts, self.sizes)
        np.subtract.at(change, self.ends, self.sizes)
        live = np.cumsum(change)
        return [int(live[start:end].max()) for start, end in zip(self.starts, self.ends, strict=True)]

    def _search(self, best: _Layout) -> _Layout:
        """Squeaky wheel: from the current layout, raise the priority of some blocks that end too high."""
        draw = random.Random(SEED).random
        current = best
        sizes = np.array(self.sizes, np.int64)
        while self.work > 0 and best.top > self.bound:
            limit = self.bound if draw() < 0.5 else max(self.bound, current.top * 98 // 100)
            high = np.flatnonzero(current.offsets + sizes > limit).tolist()
            keep = (0.2, 0.5, 1.0)[int(draw() * 3)]
            chosen = [i for i in high if draw() < keep] or [high[int(draw() * len(high))]]
            order = self._promote(current.order, chosen, (0.0, 0.3, 0.7)[int(draw() * 3)], draw)
            found = self._fit(order, best.best_fit, current.top + current.top // 100)
            self.work -= 1
            if found is None:
                continue
            if found.top <= current.top or draw() < 0.05:
                current = found
            if found.top < best.top:
                best = found
        return best

    def _promote(self, order: tuple[int, ...], chosen: Sequence[int], factor: float, draw: object) -> tuple[int, ...]:
        """Move `chosen` to about `factor` of their rank; sometimes swap two blocks as well."""
        assert callable(draw)
        ranks: list[float] = [0.0] * self.count
        for rank, i in enumerate(order):
            ranks[i] = rank
        for i in chosen:
            ranks[i] = ranks[i] * factor - draw()
        if draw() < 0.3:
            i, j = int(draw() * self.count), int(draw() * self.count)
            ranks[i], ranks[j] = ranks[j], ranks[i]
        return tuple(sorted(range(self.count), key=lambda i: (ranks[i], i)))

    def _fit(self, order: tuple[int, ...], best_fit: bool, limit: int | None) -> _Layout | None:
        """Place blocks in this order, each in the lowest (or tightest) gap; None as soon as one ends above `limit`."""
        count = self.count
        # Placed blocks in order of their offsets.
        start, end, low, high = (np.zeros(count, np.int64) for _ in range(4))
        offsets = np.zeros(count, np.int64)
        top = 0
        for placed, i in enumerate(order):
            size, first, last = self.sizes[i], self.starts[i], self.ends[i]
            beside = np.flatnonzero((start[:placed] < last) & (end[:placed] > first))
            offset = _gap(low[beside], high[beside], size, best_fit) if beside.size else 0
            self.work -= 1
            if limit is not None and offset + size > limit:
                return None
            top = max(top, offset + size)
            offsets[i] = offset
            k = int(np.searchsorted(low[:placed], offset, side="right"))
            for column, value in ((start, first), (end, last), (low, offset), (high, offset + size)):
                column[k + 1 : placed + 1] = column[k:placed]
                column[k] = value
        return _Layout(order, offsets, top, best_fit)


def _gap(low: Ints, high: Ints, size: int, best_fit: bool) -> int:
    """The lowest (or tightest) place for `size` bytes between blocks [low, high), which come in order of `low`."""
    tops = np.maximum.accumulate(high)
    gaps = low.copy()
    gaps[1:] -= tops[:-1]
    wide = np.flatnonzero(gaps >= size)
    if not wide.size:
        return int(tops[-1])
    k = int(wide[np.argmin(gaps[wide])]) if best_fit else int(wide[0])
    return int(tops[k - 1]) if k else 0
