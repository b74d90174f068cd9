"""The state of the stage heuristics: which storage is held into which stage, what each stage runs, and its peak.

A storage is touched at a stage when a node of that stage makes or reads it. Between two consecutive touches lies a
gap, over which it is either held throughout or not at all. Holds decide everything else: stage s runs node s and
whatever it takes to have the inputs that are not held into s (the minimal R given S of Jain et al., MLSys 2020,
section 4.3). A storage that is held into stage s + 1 but not into s is made in stage s, needed there or not: that is
how a recompute may come before its use. `Holds` keeps stages, touches, costs and exact peaks up to date under single
changes, and undoes them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from remat_cli.solve.instance import Instance
from remat_cli.solve.stages import stages_of
from remat_cli.solve.step_order import frugal_order, stage_peak
from remat_cli.solve.work import Work

Ints = npt.NDArray[np.int64]
Gap = tuple[int, int]
Run = tuple[int, ...]
# (t, a, b): storage t, touched in stage a, is held into stages a + 1..b.
Span = tuple[int, int, int]

# Longer stages keep ascending order: the search for a better one is quadratic.
LONGEST_REORDERED = 48


class Holds:
    """Holds of one instance; begins as store-all, or with the holds of `spans`.

    `held[t][s]`: t is live when stage s begins. `runs[s]`: the nodes of stage s; `order[s]` the
    same in order, s last. `touches[t]`: stages that make or read t, ascending.
    `peak[s]`: bytes at the worst step of stage s under the memory rule; the oracle frees dead copies earlier, so its
    peak is never above. `total`: cost of all stages. `capacity`: stages above it look for a better order.
    """

    def __init__(
        self,
        instance: Instance,
        capacity: int,
        work: Work | None = None,
        spans: Sequence[Span] | None = None,
    ) -> None:
        n, count = instance.n, instance.count
        self.instance = instance
        self.capacity = capacity
        self.work = work or Work.endless()
        self.held = [bytearray(n + 1) for _ in range(count)]
        self.starts: list[set[int]] = [set() for _ in range(n)]
        self.base: Ints = np.zeros(n + 1, dtype=np.int64)
        self.peak: Ints = np.zeros(n, dtype=np.int64)
        self.touches: list[list[int]] = [[] for _ in range(count)]
        self._journal: list[_Change] = []
        self._dirty: set[int] = set()
        for t, a, b in _store_all(instance) if spans is None else spans:
            self._write(t, a, b, True)
        self.runs: list[set[int]] = [self._closure(s) for s in range(n)]
        for s, run in enumerate(self.runs):
            for t in self._touched(run):
                self.touches[t].append(s)
        self.total = sum(instance.cost[v] for run in self.runs for v in run)
        self.order: list[Run] = []
        for s in range(n):
            self.peak[s], order = self._peak_of(s)
            self.order.append(order)
        if spans is not None:
            self._trim()

    # -- questions -------------------------------------------------------------------------------------------

    def sequence(self) -> tuple[int, ...]:
        """The order of computes: all stages, one after the other."""
        return tuple(v for stage in self.order for v in stage)[:-1]

    def excess(self) -> int:
        """Bytes over the capacity, summed over stages; 0 when the schedule fits."""
        return int(np.maximum(self.peak - self.capacity, 0).sum())

    def fits(self) -> bool:
        """True when no stage is over the capacity."""
        return int(self.peak.max()) <= self.capacity

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

    def touch_before(self, t: int, s: int) -> int:
        """The last touch of t before stage s, which must lie after its first."""
        touches = self.touches[t]
        return touches[bisect_left(touches, s) - 1]

    def recompute_cost(self, t: int, s: int) -> int | None:
        """What it would add to stage s to make t there; None when a node that it takes may not run in s."""
        instance = self.instance
        producer, reads, last_stage = instance.producer, instance.reads, instance.last_stage
        held, run = self.held, self.runs[s]
        first = producer[t]
        if first in run:
            return 0
        seen = {first}
        stack = [first]
        added = 0
        while stack:
            v = stack.pop()
            if last_stage[v] < s:
                return None
            added += instance.cost[v]
            for i in reads[v]:
                if not held[i][s]:
                    p = producer[i]
                    if p not in seen and p not in run:
                        seen.add(p)
                        stack.append(p)
        self.work.done += 1 + len(seen)
        return added

    def missing_inputs(self, t: int, s: int) -> list[tuple[int, int]]:
        """The inputs of t's producer that are neither held into stage s nor made there, each with its last touch."""
        instance, run = self.instance, self.runs[s]
        first = instance.producer[t]
        if first in run:
            return []
        return [
            (i, self.touch_before(i, s))
            for i in instance.reads[first]
            if not self.held[i][s] and instance.producer[i] not in run
        ]

    def recomputes(self) -> list[tuple[int, int]]:
        """All (stage, node) pairs that are not a node's first computation, in order."""
        return [(s, v) for s, order in enumerate(self.order) if len(order) > 1 for v in order[:-1]]

    # -- changes ---------------------------------------------------------------------------------------------

    def release(self, t: int, a: int, b: int) -> None:
        """Do not hold t from its touch a into b, where it is made again: b is its next touch, or a stage before."""
        self._hold(t, a, b, False)
        self.settle()

    def retain(self, t: int, a: int, b: int) -> None:
        """Hold t from stage a, where it is touched or else made again, to its touch b."""
        self._hold(t, a, b, True)
        self.settle()

    def swap(self, t: int, a: int, b: int, inputs: Sequence[tuple[int, int]]) -> None:
        """Do not hold t over (a, b); hold each (i, e) of `inputs`, which its producer reads, from touch e to b."""
        for i, e in inputs:
            self._hold(i, e, b, True)
        self._hold(t, a, b, False)
        self.settle()

    def retain_all(self, tensors: Sequence[int]) -> None:
        """Hold each of `tensors` over all its gaps."""
        for t in tensors:
            touches = self.touches[t]
            for k in range(len(touches) - 1):
                if not self.held[t][touches[k + 1]]:
                    self._hold(t, touches[k], touches[k + 1], True)
        self.settle()

    def settle(self) -> None:
        """Bring all changed stages up to date, later ones first: dropped touches shorten holds of earlier stages."""
        dirty = self._dirty
        while dirty:
            s = max(dirty)
            dirty.discard(s)
            self._refresh(s)

    def mark(self) -> int:
        """A point to roll back to."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Undo every change since `mark`."""
        journal = self._journal
        while len(journal) > mark:
            journal.pop().undo(self)

    def commit(self) -> None:
        """Forget how to undo."""
        self._journal.clear()

    # -- inside ----------------------------------------------------------------------------------------------

    def _hold(self, t: int, a: int, b: int, value: bool) -> None:
        self._write(t, a, b, value)
        self._journal.append(_HoldChange(t, a, b, value))
        self._dirty.update((a, b))

    def _trim(self) -> None:
        """Shorten holds that end where nothing touches the storage."""
        n = self.instance.n
        for t, row in enumerate(self.held):
            touched = set(self.touches[t])
            for s in range(1, n):
                if row[s] and not row[s + 1] and s not in touched:
                    self._hold(t, self.touch_before(t, s), s, False)
        self.settle()
        self.commit()

    def _write(self, t: int, a: int, b: int, value: bool) -> None:
        """Hold t into stages a + 1..b, or not. Stages between a and b do not touch t: their peaks just shift."""
        row = self.held[t]
        row[a + 1 : b + 1] = (b"\1" if value else b"\0") * (b - a)
        size = self.instance.size[t]
        if size:
            delta = size if value else -size
            self.base[a + 1 : b + 1] += delta
            self.peak[a + 1 : b] += delta
        if value and not row[a]:
            self.starts[a].add(t)
        else:
            self.starts[a].discard(t)
        if row[b + 1] and not value:
            self.starts[b].add(t)
        else:
            self.starts[b].discard(t)

    def _refresh(self, s: int) -> None:
        run = self._closure(s)
        if run != self.runs[s]:
            self._replace_run(s, run)
        peak, order = self._peak_of(s)
        before = int(self.peak[s])
        if peak != before or order != self.order[s]:
            self._journal.append(_PeakChange(s, before, self.order[s]))
            self.peak[s] = peak
            self.order[s] = order

    def _closure(self, s: int) -> set[int]:
        """Node s and what must be recomputed in its stage, given the holds."""
        held, producer, reads = self.held, self.instance.producer, self.instance.reads
        stack = [producer[t] for t in reads[s] if not held[t][s]]
        stack.extend([producer[t] for t in self.starts[s]])
        run = {s}
        while stack:
            v = stack.pop()
            if v not in run:
                run.add(v)
                stack.extend([producer[i] for i in reads[v] if not held[i][s]])
        return run

    def _peak_of(self, s: int) -> tuple[int, Run]:
        """Bytes at the worst step of stage s, and the order that gives them."""
        instance, held, run = self.instance, self.held, self.runs[s]
        live = int(self.base[s])
        self.work.done += 4 + 2 * len(run)
        if len(run) == 1:
            peak = live + instance.step_bytes[s]
            for t in instance.in_place[s]:
                if not held[t][s + 1]:
                    return peak - instance.size[t], (s,)
            return peak, (s,)
        order = tuple(sorted(run))
        peak = stage_peak(instance, order, live, held, s)
        if peak > self.capacity and 2 < len(run) <= LONGEST_REORDERED:
            other = frugal_order(instance, order, held, s)
            self.work.done += 4 * len(run)
            if other != order:
                lower = stage_peak(instance, other, live, held, s)
                if lower < peak:
                    return lower, other
        return peak, order

    def _replace_run(self, s: int, run: set[int]) -> None:
        old, new = self._touched(self.runs[s]), self._touched(run)
        gone, come = sorted(old - new), sorted(new - old)
        self._journal.append(_RunChange(s, self.runs[s], gone, come))
        self._set_run(s, run, gone, come)
        for t in gone:
            if self.held[t][s] and not self.held[t][s + 1]:
                # Nothing needs t here any more: hold it only up to the touch before.
                self._hold(t, self.touch_before(t, s), s, False)
        self._dirty.discard(s)

    def _touched(self, run: set[int]) -> set[int]:
        reads, writes = self.instance.reads, self.instance.writes
        touched: set[int] = set()
        for v in run:
            touched.update(reads[v])
            touched.update(writes[v])
        return touched

    def _set_run(self, s: int, run: set[int], gone: Sequence[int], come: Sequence[int]) -> None:
        cost = self.instance.cost
        for t in gone:
            touches = self.touches[t]
            del touches[bisect_left(touches, s)]
        for t in come:
            insort(self.touches[t], s)
        self.total += sum([cost[v] for v in run]) - sum([cost[v] for v in self.runs[s]])
        self.runs[s] = run
        self.work.done += len(gone) + len(come)


def _store_all(instance: Instance) -> list[Span]:
    return [
        (t, instance.producer[t], instance.last_need[t])
        for t in range(instance.count)
        if instance.last_need[t] > instance.producer[t]
    ]


def spans_of(instance: Instance, sequence: Sequence[int]) -> list[Span] | None:
    """The holds of a schedule: each copy from the stage that makes it to the last that needs it.

    None when the schedule first computes nodes in another order than the problem's.
    """
    stages = stages_of(instance.problem, sequence)
    if stages is None:
        return None
    spans: list[Span] = []
    until: list[int | None] = [None] * instance.count
    for t in instance.reads[instance.end]:
        until[t] = instance.end
    for s in range(len(stages) - 1, -1, -1):
        for v in reversed(stages[s]):
            for t in instance.writes[v]:
                last = until[t]
                if last is not None and last > s:
                    spans.append((t, s, last))
                until[t] = None
            for t in instance.reads[v]:
                if until[t] is None:
                    until[t] = s
    return spans


class _HoldChange:
    __slots__ = ("a", "b", "t", "value")

    def __init__(self, t: int, a: int, b: int, value: bool) -> None:
        self.t, self.a, self.b, self.value = t, a, b, value

    def undo(self, holds: Holds) -> None:
        holds._write(self.t, self.a, self.b, not self.value)


class _RunChange:
    __slots__ = ("come", "gone", "run", "s")

    def __init__(self, s: int, run: set[int], gone: list[int], come: list[int]) -> None:
        self.s, self.run, self.gone, self.come = s, run, gone, come

    def undo(self, holds: Holds) -> None:
        holds._set_run(self.s, self.run, self.come, self.gone)


class _PeakChange:
    __slots__ = ("order", "peak", "s")

    def __init__(self, s: int, peak: int, order: Run) -> None:
        self.s, self.peak, self.order = s, peak, order

    def undo(self, holds: Holds) -> None:
        holds.peak[self.s] = self.peak
        holds.order[self.s] = self.order


_Change = _HoldChange | _RunChange | _PeakChange
