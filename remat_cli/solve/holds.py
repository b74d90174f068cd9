"""The state of the stage heuristics: which storage is held into which stage, what each stage runs, and its peak.

A storage is touched at a stage when a node of that stage makes or reads it. Between two consecutive touches lies a
gap, over which it is either held throughout or not at all. Holds decide everything else: stage s runs node s and
whatever it takes to have the inputs that are not held into s (the minimal R given S of Jain et al., MLSys 2020,
section 4.3). `Holds` keeps stages, touches, costs and exact peaks up to date under single changes, and undoes them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from remat_cli.solve.instance import Instance
from remat_cli.solve.work import Work

Ints = npt.NDArray[np.int64]
Gap = tuple[int, int]
_Undo = tuple[int, int, int, object, object]
_HOLD, _RUN, _PEAK = 0, 1, 2


class Holds:
    """Holds of one instance; begins as store-all.

    `held[t][s]`: t is live when stage s begins (s = n: at the end). `run[s]`: the nodes of stage s, ascending.
    `touches[t]`: stages that make or read t, ascending; n is the last touch of kept storages.
    `peak[s]`: bytes at the worst step of stage s under the memory rule; the oracle frees dead copies earlier, so its
    peak is never above. `total`: cost of all stages.
    """

    def __init__(self, instance: Instance, work: Work | None = None) -> None:
        n = instance.n
        self.instance = instance
        self.work = work or Work(1 << 62)
        self.held = [bytearray(n + 1) for _ in range(instance.count)]
        self.starts: list[set[int]] = [set() for _ in range(n)]
        self.base: Ints = np.zeros(n + 1, dtype=np.int64)
        self.peak: Ints = np.zeros(n, dtype=np.int64)
        self.touches: list[list[int]] = [
            sorted({instance.producer[t], *instance.readers[t]}) for t in range(instance.count)
        ]
        for t in instance.kept:
            self.touches[t].append(n)
        self.run: list[tuple[int, ...]] = [(v,) for v in range(n)]
        self.total = sum(instance.cost)
        self._journal: list[_Undo] = []
        self._dirty: set[int] = set()
        for t in range(instance.count):
            first, last = self.touches[t][0], self.touches[t][-1]
            if last > first:
                self._write(t, first, last, True)
        for s in range(n):
            self.peak[s] = self._simulate(s)
        self._journal.clear()

    # -- questions -------------------------------------------------------------------------------------------

    def sequence(self) -> tuple[int, ...]:
        """All stages, one after the other."""
        return tuple(v for stage in self.run for v in stage)

    def gap_over(self, t: int, s: int) -> Gap | None:
        """The gap (a, b) of t with a < s < b, None when t is touched at s or not needed after it."""
        touches = self.touches[t]
        k = bisect_left(touches, s)
        if k == 0 or k >= len(touches) or touches[k] == s:
            return None
        return touches[k - 1], touches[k]

    def is_gap(self, t: int, a: int, b: int) -> bool:
        """True when a and b are consecutive touches of t."""
        touches = self.touches[t]
        k = bisect_left(touches, a)
        return k + 1 < len(touches) and touches[k] == a and touches[k + 1] == b

    def touch_before(self, t: int, s: int) -> int | None:
        """The last touch of t before stage s."""
        touches = self.touches[t]
        k = bisect_left(touches, s)
        return touches[k - 1] if k else None

    def recompute_cost(self, t: int, s: int) -> int | None:
        """What it would add to stage s to make t there; None when a node that it takes may not run in s."""
        instance = self.instance
        held, producer, reads, cost = self.held, instance.producer, instance.reads, instance.cost
        last_stage = instance.last_stage
        runs = self.run[s]
        first = producer[t]
        if first in runs:
            return 0
        seen = {first}
        stack = [first]
        added = 0
        while stack:
            v = stack.pop()
            if last_stage[v] < s:
                return None
            added += cost[v]
            for i in reads[v]:
                if not held[i][s]:
                    p = producer[i]
                    if p not in seen and p not in runs:
                        seen.add(p)
                        stack.append(p)
        self.work.done += 1 + len(seen)
        return added

    def missing_inputs(self, t: int, s: int) -> list[int]:
        """The inputs of t's producer that are neither held into stage s nor made there."""
        instance = self.instance
        runs = self.run[s]
        return [
            i for i in instance.reads[instance.producer[t]] if not self.held[i][s] and instance.producer[i] not in runs
        ]

    # -- changes ---------------------------------------------------------------------------------------------

    def mark(self) -> int:
        """A point to roll back to."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Undo every change since `mark`."""
        journal = self._journal
        while len(journal) > mark:
            kind, x, y, before, after = journal.pop()
            if kind == _HOLD:
                self._write(x, y, int(before), not after)  # type: ignore[call-overload]
            elif kind == _PEAK:
                self.peak[x] = y
            else:
                self._restore_run(x, before, after)  # type: ignore[arg-type]

    def commit(self) -> None:
        """Forget how to undo."""
        self._journal.clear()

    def release(self, t: int, a: int, b: int) -> None:
        """Do not hold t over its gap (a, b): stage b makes it again."""
        self._hold(t, a, b, False)
        self.settle()

    def retain(self, t: int, a: int, b: int) -> None:
        """Hold t over its gap (a, b)."""
        self._hold(t, a, b, True)
        self.settle()

    def swap(self, t: int, a: int, b: int, extended: Sequence[tuple[int, int]]) -> None:
        """Do not hold t over (a, b); hold each (i, e) of `extended`, an input of t's producer, from its touch e to b."""
        for i, e in extended:
            self._hold(i, e, b, True)
        self._hold(t, a, b, False)
        self.settle()

    def settle(self) -> None:
        """Bring all changed stages up to date, later ones first: dropped touches shorten holds of earlier stages."""
        dirty = self._dirty
        while dirty:
            s = max(dirty)
            dirty.discard(s)
            self._refresh(s)

    # -- inside ----------------------------------------------------------------------------------------------

    def _hold(self, t: int, a: int, b: int, value: bool) -> None:
        self._write(t, a, b, value)
        self._journal.append((_HOLD, t, a, b, value))
        self._dirty.add(a)
        if b < self.instance.n:
            self._dirty.add(b)

    def _write(self, t: int, a: int, b: int, value: bool) -> None:
        """Hold t into stages a + 1..b, or not. Stages between a and b do not touch t: their peaks just shift."""
        row = self.held[t]
        row[a + 1 : b + 1] = (b"\1" if value else b"\0") * (b - a)
        delta = self.instance.size[t] if value else -self.instance.size[t]
        self.base[a + 1 : b + 1] += delta
        self.peak[a + 1 : b] += delta
        self._set_start(t, a, value and not row[a])
        if b < self.instance.n:
            self._set_start(t, b, bool(row[b + 1]) and not value)

    def _set_start(self, t: int, s: int, starts: bool) -> None:
        if starts:
            self.starts[s].add(t)
        else:
            self.starts[s].discard(t)

    def _refresh(self, s: int) -> None:
        run = self._closure(s)
        if run != self.run[s]:
            self._replace_run(s, run)
        peak = self._simulate(s)
        before = int(self.peak[s])
        if peak != before:
            self._journal.append((_PEAK, s, before, None, None))
            self.peak[s] = peak

    def _closure(self, s: int) -> tuple[int, ...]:
        """Node s and what must be recomputed in its stage, given the holds."""
        instance, held = self.instance, self.held
        producer, reads = instance.producer, instance.reads
        stack = [producer[t] for t in reads[s] if not held[t][s]]
        starts = self.starts[s]
        if starts:
            stack.extend(producer[t] for t in starts)
        run = {s}
        while stack:
            v = stack.pop()
            if v not in run:
                run.add(v)
                stack.extend([producer[i] for i in reads[v] if not held[i][s]])
        self.work.done += 2 + 3 * len(run)
        return tuple(sorted(run)) if len(run) > 1 else (s,)

    def _simulate(self, s: int) -> int:
        """Bytes at the worst step of stage s."""
        instance, held = self.instance, self.held
        size, reads, in_place = instance.size, instance.reads, instance.in_place
        live = int(self.base[s])
        run = self.run[s]
        if len(run) == 1:
            return live + instance.step_bytes[s] - self._saved(s, s)
        left: dict[int, int] = {}
        for v in run:
            for t in reads[v]:
                left[t] = left.get(t, 0) + 1
        after = s + 1
        worst = 0
        for v in run:
            during = live + instance.step_bytes[v]
            for t in in_place[v]:
                if left[t] == 1 and not held[t][after]:
                    during -= size[t]
                    break
            if during > worst:
                worst = during
            for t in reads[v]:
                left[t] -= 1
                if not left[t] and not held[t][after]:
                    live -= size[t]
            for t in instance.writes[v]:
                if not held[t][s] and (held[t][after] or left.get(t)):
                    live += size[t]
        return worst

    def _saved(self, v: int, s: int) -> int:
        """What node v, alone in stage s, saves by running in place."""
        for t in self.instance.in_place[v]:
            if not self.held[t][s + 1]:
                return self.instance.size[t]
        return 0

    def _touched(self, run: tuple[int, ...]) -> set[int]:
        touched: set[int] = set()
        for v in run:
            touched.update(self.instance.reads[v])
            touched.update(self.instance.writes[v])
        return touched

    def _replace_run(self, s: int, run: tuple[int, ...]) -> None:
        before = self.run[s]
        old, new = self._touched(before), self._touched(run)
        gone, come = sorted(old - new), sorted(new - old)
        self._journal.append((_RUN, s, 0, before, (gone, come)))
        self._set_run(s, run, gone, come)
        for t in gone:
            if self.held[t][s] and not self.held[t][s + 1]:
                # Nothing needs t here any more: hold it only up to the touch before.
                self._hold(t, self.touches[t][bisect_left(self.touches[t], s) - 1], s, False)
        self._dirty.discard(s)

    def _set_run(self, s: int, run: tuple[int, ...], gone: Sequence[int], come: Sequence[int]) -> None:
        cost = self.instance.cost
        for t in gone:
            touches = self.touches[t]
            del touches[bisect_left(touches, s)]
        for t in come:
            insort(self.touches[t], s)
        self.total += sum(cost[v] for v in run) - sum(cost[v] for v in self.run[s])
        self.run[s] = run
        self.work.done += 2 * (len(gone) + len(come))

    def _restore_run(self, s: int, run: tuple[int, ...], change: tuple[list[int], list[int]]) -> None:
        gone, come = change
        self._set_run(s, run, come, gone)

    def retain_all(self, tensors: Sequence[int]) -> None:
        """Hold each of `tensors` over every gap of its."""
        held = self.held
        for t in tensors:
            touches = self.touches[t]
            for a, b in zip(touches, touches[1:]):
                if not held[t][b]:
                    self._hold(t, a, b, True)
        self.settle()
