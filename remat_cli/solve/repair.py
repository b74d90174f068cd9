"""Making a stage matrix fit: drop holds until every stage is within the capacity, then hold again what still fits.

Two-phase rounding (Jain et al. 2020, section 5) may round to schedules that need too much; this mends them. A move
drops one tensor over one gap between two stages that touch it, or swaps it there for the inputs of its producer.
Moves are tried in the order of bytes over the capacity that they relieve per cost; one stays when the total of
bytes over the capacity shrinks. For graphs of a few hundred nodes; deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remat_cli.problem import Problem
from remat_cli.solve.stages import (
    bit_set,
    bits,
    holds_from_stages,
    in_place_candidates,
    pin_blocked,
    producer_of,
)

# (tensor, first stage, last stage, held or not): one change of holds.
_Change = tuple[int, int, int, bool]


@dataclass(frozen=True)
class _Stage:
    """What one stage runs, costs, needs and touches (a bit set). `legal`: no node runs after its last stage."""

    runs: tuple[int, ...]
    cost_ns: int
    peak_bytes: int
    touched: int
    legal: bool


def fit(problem: Problem, holds: Sequence[int], capacity_bytes: int) -> tuple[int, ...] | None:
    """A sequence of computes within `capacity_bytes`, found from `holds` (see `remat_cli.solve.stages`); None when
    the moves do not get there."""
    matrix = _Matrix(problem, pin_blocked(problem, holds)[0], capacity_bytes)
    if not matrix.evict():
        return None
    matrix.refill()
    return matrix.sequence()


class _Matrix:
    """Holds, and what every stage makes of them.

    Invariant: a tensor held into a stage was held into the one before or is made there, so stages depend on the
    holds into them and out of them alone.
    """

    def __init__(self, problem: Problem, holds: Sequence[int], capacity_bytes: int) -> None:
        self.problem = problem
        self.capacity = capacity_bytes
        self.n = len(problem.nodes)
        self.sizes = [tensor.size_bytes for tensor in problem.tensors]
        self.costs = [max(node.cost_ns, 1) for node in problem.nodes]
        self.last = problem.last_stage
        self.candidates = in_place_candidates(problem)
        self.touch = [bit_set((*r, *w)) for r, w in zip(problem.reads, problem.writes, strict=True)]
        self.writes = [bit_set(w) for w in problem.writes]
        self.kept = bit_set(problem.kept)
        self.holds = list(holds)
        self._limit_to_made()
        self.stages = [self._stage(t) for t in range(self.n + 1)]
        self.trim()

    def _limit_to_made(self) -> None:
        made = 0
        for t in range(self.n + 1):
            self.holds[t] &= made
            if t < self.n:
                made |= self.writes[t]
        self.holds.append(self.kept)

    def sequence(self) -> tuple[int, ...]:
        """The order of computes."""
        return tuple(v for stage in self.stages for v in stage.runs)

    def trim(self) -> None:
        """Hold nothing longer than it is read."""
        self.holds = [*holds_from_stages(self.problem, [stage.runs for stage in self.stages]), self.kept]
        self.stages = [self._stage(t) for t in range(self.n + 1)]

    def _stage(self, t: int) -> _Stage:
        held, after = self.holds[t], self.holds[t + 1]
        runs = {t} if t < self.n else set()
        wanted = list(bits(after & ~held))
        if t < self.n:
            wanted += self.problem.reads[t]
        while wanted:
            i = wanted.pop()
            if held >> i & 1 or (v := producer_of(self.problem, i)) in runs:
                continue
            runs.add(v)
            wanted += self.problem.reads[v]
        order = tuple(sorted(runs))
        touched = written = 0
        for v in order:
            touched |= self.touch[v]
            written |= self.writes[v]
        return _Stage(
            runs=order,
            cost_ns=sum(self.costs[v] for v in order),
            peak_bytes=self._peak(order, held & ~written, after),
            touched=touched,
            legal=all(t <= self.last[v] for v in order),
        )

    def _peak(self, order: Sequence[int], held: int, after: int) -> int:
        """Bytes at the worst step of a stage."""
        dying: list[list[int]] = []
        seen = after
        for v in reversed(order):
            ends = self.touch[v] & ~seen
            dying.append(list(bits(ends)))
            seen |= ends
        live = peak = sum(self.sizes[i] for i in bits(held))
        for v in order:
            ending = dying.pop()
            during = live + self.problem.write_bytes[v] + self.problem.nodes[v].workspace_bytes
            if any(i in ending for i in self.candidates[v]):
                during -= self.sizes[self.problem.nodes[v].outputs[0]]
            peak = max(peak, during)
            live += self.problem.write_bytes[v] - sum(self.sizes[i] for i in ending)
        return peak

    def over(self, stages: Sequence[_Stage]) -> int:
        """Total of bytes over the capacity."""
        return sum(max(0, stage.peak_bytes - self.capacity) for stage in stages)

    def evict(self) -> bool:
        """Drop holds until all stages fit; False when no move helps any more."""
        trimmed = False
        while True:
            worst = max(range(self.n + 1), key=lambda t: (self.stages[t].peak_bytes, -t))
            if self.stages[worst].peak_bytes <= self.capacity:
                return True
            if any(self._apply(changes) for changes in self._moves(worst)):
                trimmed = False
            elif not trimmed:
                self.trim()
                trimmed = True
            else:
                return False

    def _moves(self, t: int) -> list[list[_Change]]:
        """Moves that may lower the peak of stage t, best first."""
        scored: list[tuple[float, int, list[_Change]]] = []
        for i in bits(self.holds[t] | self.holds[t + 1] & ~self.kept):
            if not self.sizes[i]:
                continue
            for a, b in self._gaps(i, t):
                relief = sum(
                    min(self.sizes[i], max(0, self.stages[s].peak_bytes - self.capacity)) for s in range(a, b + 1)
                )
                drop: list[_Change] = [(i, a + 1, b, False)]
                scored.append((-relief / self._recompute_cost(i, b), i, drop))
                swap = self._swap(i, b)
                spared = self.sizes[i] - sum(self.sizes[j] for j, *_ in swap)
                if swap and spared > 0:
                    share = spared / self.sizes[i] / self.costs[producer_of(self.problem, i)]
                    scored.append((-relief * share, i, drop + swap))
        return [changes for _, _, changes in sorted(scored)]

    def _gaps(self, i: int, t: int) -> Iterator[tuple[int, int]]:
        """The gaps (a, b) of tensor i at stage t: held into a + 1 .. b, touched in a and b only."""
        for inside in (t, t + 1):
            if inside > self.n or not self.holds[inside] >> i & 1:
                continue
            a, b = inside - 1, inside
            while not self.stages[a].touched >> i & 1:
                a -= 1
            while b <= self.n and not self.stages[b].touched >> i & 1:
                b += 1
            if b <= self.n:
                yield a, b

    def _recompute_cost(self, i: int, t: int) -> int:
        """Cost of making tensor i in stage t beside what the stage runs already; at least 1."""
        runs, held = set(self.stages[t].runs), self.holds[t]
        cost, wanted = 0, [producer_of(self.problem, i)]
        while wanted:
            v = wanted.pop()
            if v in runs:
                continue
            runs.add(v)
            cost += self.costs[v]
            wanted += [producer_of(self.problem, j) for j in self.problem.reads[v] if not held >> j & 1]
        return max(cost, 1)

    def _swap(self, i: int, b: int) -> list[_Change]:
        """The holds that let the producer of tensor i run in stage b alone: its inputs, from their last touch on."""
        changes: list[_Change] = []
        for j in self.problem.reads[producer_of(self.problem, i)]:
            if self.holds[b] >> j & 1 or self.stages[b].touched >> j & 1:
                continue
            a = b - 1
            while not self.stages[a].touched >> j & 1:
                a -= 1
            changes.append((j, a + 1, b, True))
        return changes

    def _apply(self, changes: Sequence[_Change], *, refill: bool = False) -> bool:
        """Make the changes; undo them (and return False) unless they help.

        To help is to lower the total over the capacity; when refilling, to lower the cost with nothing over.
        """
        first = min(start for _, start, _, _ in changes) - 1
        last = max(end for _, _, end, _ in changes)
        old_holds, old_stages = self.holds[first : last + 1], self.stages[first : last + 1]
        for i, start, end, held in changes:
            for t in range(start, end + 1):
                self.holds[t] = self.holds[t] | 1 << i if held else self.holds[t] & ~(1 << i)
        self._restage(first, last, changes)
        new_stages = self.stages[first : last + 1]
        over = self.over(new_stages)
        helps = over < self.over(old_stages)
        if refill:
            helps = over == 0 and sum(s.cost_ns for s in new_stages) < sum(s.cost_ns for s in old_stages)
        if helps and all(stage.legal for stage in new_stages):
            return True
        self.holds[first : last + 1], self.stages[first : last + 1] = old_holds, old_stages
        return False

    def _restage(self, first: int, last: int, changes: Sequence[_Change]) -> None:
        """Bring stages up to date: in full where a change begins or ends, by its bytes where it passes untouched."""
        ends = {t for _, start, end, _ in changes for t in (start - 1, end)}
        for t in range(first, last + 1):
            stage = self.stages[t]
            passing = [(i, held) for i, start, end, held in changes if start <= t <= end]
            if t in ends or any(stage.touched >> i & 1 for i, _ in passing):
                self.stages[t] = self._stage(t)
                continue
            shift = sum(self.sizes[i] if held else -self.sizes[i] for i, held in passing)
            self.stages[t] = _Stage(stage.runs, stage.cost_ns, stage.peak_bytes + shift, stage.touched, stage.legal)

    def refill(self) -> None:
        """Hold recomputed tensors instead where that fits, dearest per held byte first, until nothing changes."""
        while True:
            self.trim()
            gained = [self._apply(changes, refill=True) for changes in self._refills()]
            if not any(gained):
                return

    def _refills(self) -> list[list[_Change]]:
        scored: list[tuple[float, int, int, list[_Change]]] = []
        for t, stage in enumerate(self.stages):
            for v in stage.runs:
                if v == t:
                    continue
                for i in self.problem.writes[v]:
                    a = t - 1
                    while a >= 0 and not self.stages[a].touched >> i & 1:
                        a -= 1
                    held_bytes = max(1, self.sizes[i]) * (t - a)
                    scored.append((-self.costs[v] / held_bytes, t, i, [(i, a + 1, t, True)]))
        return [changes for *_, changes in sorted(scored)]
