"""Fitting holds into their capacity: while a stage is over it, drop the holds that cover most bytes per cost.

Three moves drop a storage t over its gap (a, b) across the stage in need:

* evict: stage b makes t again;
* remake: an earlier stage c makes t again, while the inputs of its producer are still live, and holds it to b;
* swap: stage b makes t again, and the inputs of its producer that would be gone by then are held to b instead.

Two more help a stage whose own recomputes are the trouble: evict a hold that begins or ends there, or make one of
its recomputes earlier. A move that makes a worse peak than the one it mends is undone and not tried again.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

import numpy as np

from remat_cli.solve.holds import Holds

EVICT, REMAKE, SWAP, EARLIER = range(4)
# (kind, storage, a, c, b): the gap is (a, b), the storage is made again in stage c.
Move = tuple[int, int, int, int, int]

_SCALE_BITS = 20
_NOISE_BITS = 10


@dataclass(frozen=True, slots=True)
class Style:
    """How moves are ranked: by (bytes covered) ** (power / 2) per cost, times a random factor of 1 to 1 + noise / 8."""

    power: int = 2
    noise: int = 0
    rng: random.Random | None = None


class Fitter:
    """One descent of `holds` to their capacity."""

    def __init__(self, holds: Holds, style: Style | None = None) -> None:
        self.holds = holds
        self.style = style or Style()
        self._stuck: set[Move] = set()
        self._over_bytes: list[int] = []
        self._over_stages: list[int] = []

    def fit(self, *, stubborn: bool = False) -> bool:
        """Mend the worst stage until all fit (True), the work is spent, or a stage cannot be mended (False).

        `stubborn`: go on with the next worst stage when one cannot be mended, for states that shall come closer.
        """
        holds = self.holds
        given_up = np.zeros(holds.instance.n, dtype=bool)
        while not holds.fits():
            s = int(np.argmax(np.where(given_up, 0, holds.peak)))
            if int(holds.peak[s]) <= holds.capacity or given_up[s] or holds.work.spent():
                return False
            if not self._relieve(s):
                if not stubborn:
                    return False
                given_up[s] = True
        return True

    def _relieve(self, s: int) -> bool:
        """Lower the peak of stage s, to the capacity if possible. False when no move lowers it."""
        before = int(self.holds.peak[s])
        self._relieve_across(s, before)
        if int(self.holds.peak[s]) < before:
            return True
        return self._relieve_at(s) or self._make_earlier(s)

    # -- moves across the stage ------------------------------------------------------------------------------

    def _relieve_across(self, s: int, before: int) -> None:
        """Moves on storages that pass by stage s, best first; values are computed when a candidate comes up."""
        holds = self.holds
        self._measure_excess()
        factor: dict[int, int] = {}
        heap = [(-value, t) for value, t in self._passing(s, factor)]
        heapq.heapify(heap)
        while heap and int(holds.peak[s]) > holds.capacity and not holds.work.spent():
            _, t = heapq.heappop(heap)
            if not (holds.held[t][s] and holds.held[t][s + 1]):
                continue
            best = max(self._moves(t, s), default=None)
            if best is None:
                continue
            value = best[0] * factor[t]
            if heap and value < -heap[0][0]:
                heapq.heappush(heap, (-value, t))
            elif not self._attempt(best[1], s, before):
                self._stuck.add(best[1])
                heapq.heappush(heap, (-value, t))

    def _measure_excess(self) -> None:
        over = np.maximum(self.holds.peak - self.holds.capacity, 0)
        self._over_bytes = [0, *np.cumsum(over).tolist()]
        self._over_stages = [0, *np.cumsum(over > 0).tolist()]

    def _covered(self, size: int, a: int, b: int) -> int:
        """Bytes over capacity that `size` less in the stages between a and b takes away, at most."""
        if b <= a + 1:
            return 0
        stages = self._over_stages[b] - self._over_stages[a + 1]
        return min(size * stages, self._over_bytes[b] - self._over_bytes[a + 1])

    def _value(self, covered: int, cost: int) -> int:
        power = self.style.power
        if power != 2:
            covered = isqrt(covered) if power == 1 else covered * isqrt(covered)
        return (covered << _SCALE_BITS) // cost if cost else covered << (2 * _SCALE_BITS)

    def _passing(self, s: int, factor: dict[int, int]) -> Iterator[tuple[int, int]]:
        """Storages held across stage s, each with the most that a move could be worth."""
        holds, instance = self.holds, self.holds.instance
        noise, rng = self.style.noise, self.style.rng
        holds.work.done += instance.count // 8
        for t, row in enumerate(holds.held):
            if not (row[s] and row[s + 1] and instance.size[t]):
                continue
            gap = holds.gap_over(t, s)
            if gap is None:
                continue
            covered = self._covered(instance.size[t], *gap)
            if covered <= 0:
                continue
            made = instance.producer[t]
            cost = 0 if made in holds.runs[gap[1]] else instance.cost[made]
            factor[t] = 8 << _NOISE_BITS
            if noise and rng is not None:
                factor[t] += noise * rng.getrandbits(_NOISE_BITS)
            yield self._value(covered, cost) * factor[t], t

    def _moves(self, t: int, s: int) -> Iterator[tuple[int, Move]]:
        """What can be done with t across stage s, with values."""
        holds, instance = self.holds, self.holds.instance
        gap = holds.gap_over(t, s)
        if gap is None:
            return
        a, b = gap
        size = instance.size[t]
        cost = holds.recompute_cost(t, b)
        if cost is not None and (EVICT, t, a, b, b) not in self._stuck:
            yield self._value(self._covered(size, a, b), cost), (EVICT, t, a, b, b)
        inputs = holds.missing_inputs(t, b)
        if not inputs:
            return
        made = instance.producer[t]
        if instance.last_stage[made] >= b and (SWAP, t, a, b, b) not in self._stuck:
            covered = self._covered(size, a, b)
            covered -= sum(self._covered(instance.size[i], max(e, a), b) for i, e in inputs)
            if covered > 0 and sum(instance.size[i] for i, _ in inputs) < size:
                yield self._value(covered, instance.cost[made]), (SWAP, t, a, b, b)
        for c in {e for _, e in inputs}:
            if c > s and (REMAKE, t, a, c, b) not in self._stuck:
                earlier = holds.recompute_cost(t, c)
                if earlier is not None and (cost is None or earlier < cost):
                    yield self._value(self._covered(size, a, c), earlier), (REMAKE, t, a, c, b)

    def _attempt(self, move: Move, s: int, before: int) -> bool:
        """Do `move` to relieve stage s; undo it (False) when it makes a peak above both `before` and the capacity."""
        kind, t, a, c, b = move
        if kind == SWAP:
            return self._attempt_swap(t, a, b, s)
        holds, instance = self.holds, self.holds.instance
        limit = max(holds.capacity, before)
        made = instance.producer[t]
        least = int(holds.base[c]) - instance.size[t] + instance.step_bytes[made]
        if not instance.in_place[made] and least > limit:
            return False
        mark = holds.mark()
        holds.release(t, a, c)
        if int(holds.peak[c]) <= limit:
            return True
        holds.rollback(mark)
        return False

    def _attempt_swap(self, t: int, a: int, b: int, s: int) -> bool:
        holds, instance = self.holds, self.holds.instance
        before = int(holds.peak[s])
        inputs = holds.missing_inputs(t, b)
        for i, e in inputs:
            room = max(holds.capacity, before - 1) - instance.size[i]
            if e + 1 < a and int(holds.peak[e + 1 : a].max()) > room:
                return False
        low = min([a, *(e for _, e in inputs)])
        old = holds.peak[low : b + 1].copy()
        mark = holds.mark()
        holds.swap(t, a, b, inputs)
        new = holds.peak[low : b + 1]
        worse = bool(((new > holds.capacity) & (new > old)).any())
        if int(holds.peak[s]) < before and not worse:
            return True
        holds.rollback(mark)
        return False

    # -- moves at the stage itself ---------------------------------------------------------------------------

    def _relieve_at(self, s: int) -> bool:
        """Evict holds that begin or end at stage s, cheapest per byte first. True when its peak fell."""
        holds, capacity = self.holds, self.holds.capacity
        lowered = False
        for _, t, a, b in sorted(set(self._meeting(s))):
            if not holds.is_gap(t, a, b) or not holds.held[t][b] or holds.recompute_cost(t, b) is None:
                continue
            other = b if a == s else a
            before, beside = int(holds.peak[s]), int(holds.peak[other])
            mark = holds.mark()
            holds.release(t, a, b)
            if int(holds.peak[s]) < before and int(holds.peak[other]) <= max(capacity, beside, before - 1):
                lowered = True
                if int(holds.peak[s]) <= capacity:
                    break
            else:
                holds.rollback(mark)
                self._stuck.add((EVICT, t, a, b, b))
        return lowered

    def _meeting(self, s: int) -> Iterator[tuple[int, int, int, int]]:
        """(cost per byte, t, a, b) of held gaps that begin or end at stage s."""
        holds, instance = self.holds, self.holds.instance
        for v in sorted(holds.runs[s]):
            for t in (*instance.reads[v], *instance.writes[v]):
                touches = holds.touches[t]
                k = bisect_left(touches, s)
                for a, b in zip(touches[max(k - 1, 0) : k + 1], touches[max(k, 1) : k + 2], strict=False):
                    if not instance.size[t] or not holds.held[t][b]:
                        continue
                    cost = holds.recompute_cost(t, b)
                    if cost is not None and (EVICT, t, a, b, b) not in self._stuck:
                        yield (cost << _SCALE_BITS) // instance.size[t], t, a, b

    def _make_earlier(self, s: int) -> bool:
        """Make one recompute of stage s in an earlier stage, where its inputs are live, and hold it to s."""
        holds, instance = self.holds, self.holds.instance
        for _, t, c in sorted(set(self._late(s))):
            if int(holds.peak[c + 1 : s].max(initial=0)) + instance.size[t] <= holds.capacity:
                before, beside = int(holds.peak[s]), int(holds.peak[c])
                mark = holds.mark()
                holds.retain(t, c, s)
                if int(holds.peak[s]) < before and int(holds.peak[c]) <= max(holds.capacity, beside):
                    return True
                holds.rollback(mark)
            self._stuck.add((EARLIER, t, c, c, s))
        return False

    def _late(self, s: int) -> Iterator[tuple[int, int, int]]:
        """(cost per byte, t, c): storages that stage s makes again and stage c could make instead."""
        holds, instance = self.holds, self.holds.instance
        for v in holds.order[s][:-1]:
            for t in instance.writes[v]:
                if not instance.size[t] or holds.held[t][s]:
                    continue
                a = holds.touch_before(t, s)
                for i in instance.reads[v]:
                    c = holds.touch_before(i, s)
                    if c <= a or holds.held[i][s] or (EARLIER, t, c, c, s) in self._stuck:
                        continue
                    cost = holds.recompute_cost(t, c)
                    if cost is not None:
                        yield (cost << _SCALE_BITS) // instance.size[t], t, c


def refill(holds: Holds) -> None:
    """Hold recomputed storages again where the capacity allows, most cost per byte and stage first."""
    instance, capacity = holds.instance, holds.capacity
    wishes = []
    for b, v in holds.recomputes():
        for t in instance.writes[v]:
            if not holds.held[t][b]:
                room = (b - holds.touch_before(t, b)) * max(1, instance.size[t])
                wishes.append((-((instance.cost[v] << _SCALE_BITS) // room), v, t, b))
    for _, v, t, b in sorted(wishes):
        if holds.held[t][b] or v not in holds.runs[b]:
            continue
        a = holds.touch_before(t, b)
        if int(holds.peak[a + 1 : b].max(initial=0)) + instance.size[t] > capacity:
            continue
        before = holds.total
        mark = holds.mark()
        holds.retain(t, a, b)
        if holds.total >= before or max(int(holds.peak[a]), int(holds.peak[b])) > capacity:
            holds.rollback(mark)
