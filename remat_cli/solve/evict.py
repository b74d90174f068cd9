from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from bisect import bisect_left

import numpy as np

from remat_cli.solve.holds import Gap, Holds

EVICT, REMAKE, SWAP = 0, 1, 2

@dataclass
class Style:
    noise: float = 0.0
    power: int = 2
    rng: random.Random | None = None

@dataclass
class Fitter:
    holds: Holds
    capacity: int
    style: Style = field(default_factory=Style)
    stuck: set = field(default_factory=set)
    give_up: int = 0

    def fit(self) -> bool:
        holds = self.holds
        hopeless = np.zeros(holds.instance.n, dtype=bool)
        count = 0
        while True:
            s = int(np.argmax(np.where(hopeless, 0, holds.peak)))
            if holds.peak[s] <= self.capacity or hopeless[s]:
                return int(holds.peak.max()) <= self.capacity
            if holds.work.spent():
                return False
            if not self._relieve(s):
                hopeless[s] = True; count += 1
                if self.give_up and count >= self.give_up: return False

    def _relieve(self, s: int) -> bool:
        before = int(self.holds.peak[s])
        self._evict_across(s)
        if self.holds.peak[s] < before: return True
        return self._evict_at(s)

    def _prepare(self) -> None:
        over = np.maximum(self.holds.peak - self.capacity, 0)
        self.over_sum = np.concatenate([[0], np.cumsum(over)])
        self.over_count = np.concatenate([[0], np.cumsum(over > 0)])

    def _covered(self, size, a, b):
        return min(size * int(self.over_count[b] - self.over_count[a+1]), int(self.over_sum[b] - self.over_sum[a+1]))

    def _value(self, covered, cost):
        st = self.style
        if st.power != 2:
            covered = (covered ** .5) ** st.power
        v = covered / (cost or 1e-9)
        if st.rng is not None and st.noise: v *= 1 + st.noise * st.rng.random()
        return v

    def _candidates(self, t, s):
        """(value, kind, t, a, c, b)"""
        holds = self.holds; I = holds.instance
        g = holds.gap_over(t, s)
        if g is None: return
        a, b = g
        size = I.size[t]
        n = I.n
        cost_b = None
        if b < n:
            cost_b = holds.recompute_cost(t, b)
            if cost_b is not None and (EVICT, t, a, b, b) not in self.stuck:
                cov = self._covered(size, a, b)
                if cov > 0: yield self._value(cov, cost_b), EVICT, t, a, b, b
        o = I.producer[t]
        miss = self._missing(t, b) if b < n else ()
        if miss:
            # swap
            es = sum(I.size[i] for i, _ in miss)
            if es < size and I.last_stage[o] >= b and (SWAP, t, a, b, b) not in self.stuck:
                cov = self._covered(size, a, b)
                for i, e in miss: cov -= self._covered(I.size[i], max(e, a), b)   # approximate
                if cov > 0: yield self._value(cov, I.cost[o]), SWAP, t, a, b, b
            for c in {e for _, e in miss}:
                if c > s and (REMAKE, t, a, c, b) not in self.stuck:
                    cost = holds.recompute_cost(t, c)
                    if cost is None or (cost_b is not None and cost >= cost_b): continue
                    cov = self._covered(size, a, c)
                    if cov > 0: yield self._value(cov, cost), REMAKE, t, a, c, b

    def _missing(self, t, b):
        ext = []
        holds = self.holds
        I = holds.instance
        runs = holds.run[b]
        if I.producer[t] in runs: return ext
        for i in I.reads[I.producer[t]]:
            if not holds.held[i][b] and I.producer[i] not in runs:
                ext.append((i, holds.touch_before(i, b)))
        return ext

    def _evict_across(self, s: int) -> bool:
        holds = self.holds; n = holds.instance.n; B = self.capacity
        self._prepare()
        size = holds.instance.size
        held = holds.held
        heap = []
        for t in range(holds.instance.count):
            if held[t][s] and held[t][s+1] and size[t]:
                best = max(self._candidates(t, s), default=None)
                if best: heap.append((-best[0], *best[1:]))
        holds.work.done += holds.instance.count // 10
        heapq.heapify(heap)
        progress = False
        before = int(holds.peak[s])
        while heap and holds.peak[s] > B:
            v, kind, t, a, c, b = heapq.heappop(heap)
            if not held[t][s] or not held[t][s+1]: continue
            best = max(self._candidates(t, s), default=None)
            if best is None: continue
            if best[1:] != (kind, t, a, c, b) or (best[0] < -v * .999 and heap and best[0] * (1.5 if self.style.noise else 1.0001) < -heap[0][0]):
                heapq.heappush(heap, (-best[0], *best[1:])); continue
            if self._attempt(kind, t, a, c, b, s, before): progress = True
            else:
                self.stuck.add((kind, t, a, c, b))
                best = max(self._candidates(t, s), default=None)
                if best: heapq.heappush(heap, (-best[0], *best[1:]))
        return progress

    def _attempt(self, kind, t, a, c, b, s, limit):
        holds = self.holds; B = self.capacity; I = holds.instance
        p0 = int(holds.peak[s])
        lim = max(B, limit)
        if kind == SWAP:
            ext = self._missing(t, b)
            for i, e in ext:
                if e + 1 < a and int(holds.peak[e+1:a].max()) + I.size[i] > max(B, p0 - 1): return False
            lo = min([a] + [e for _, e in ext])
            old = holds.peak[lo:b+1].copy()
            m = holds.mark()
            holds.swap(t, a, b, ext)
            new = holds.peak[lo:b+1]
            if holds.peak[s] < p0 and not ((new > B) & (new > old)).any(): return True
            holds.rollback(m); return False
        if int(holds.base[c]) - I.size[t] + I.step_bytes[I.producer[t]] - (I.size[t] if I.in_place[I.producer[t]] else 0) > lim:
            return False
        m = holds.mark()
        pc = int(holds.peak[c])
        holds.release(t, a, c)
        if holds.peak[c] > lim:
            holds.rollback(m); return False
        return True

    def _evict_at(self, s: int) -> bool:
        holds = self.holds; I = holds.instance; n = I.n; B = self.capacity
        cand = set()
        for v in holds.run[s]:
            for t in I.reads[v] + I.writes[v]:
                if not I.size[t]: continue
                touches = holds.touches[t]
                k = bisect_left(touches, s)
                if k > 0 and holds.held[t][s] and (EVICT, t, touches[k-1], s) not in self.stuck:
                    c = holds.recompute_cost(t, s)
                    if c is not None: cand.add((c / I.size[t], t, touches[k-1], s))
                if k + 1 < len(touches) and touches[k+1] < n and holds.held[t][s+1] and (EVICT, t, s, touches[k+1]) not in self.stuck:
                    c = holds.recompute_cost(t, touches[k+1])
                    if c is not None: cand.add((c / I.size[t], t, s, touches[k+1]))
        done = False
        for _, t, a, b in sorted(cand):
            if not holds.is_gap(t, a, b) or not holds.held[t][b]: continue
            p0 = int(holds.peak[s]); x = b if a == s else a; other = int(holds.peak[x])
            if holds.recompute_cost(t, b) is None: continue
            m = holds.mark()
            holds.release(t, a, b)
            if holds.peak[s] < p0 and holds.peak[x] <= max(B, other, p0 - 1):
                done = True
                if holds.peak[s] <= B: return True
            else:
                holds.rollback(m)
                self.stuck.add((EVICT, t, a, b))
        if done: return True
        # make something of this stage earlier
        cand = []
        for v in holds.run[s][:-1]:
            for t in I.writes[v]:
                if not I.size[t] or holds.held[t][s]: continue
                a = holds.touch_before(t, s)
                if a is None: continue
                for i in I.reads[v]:
                    if holds.held[i][s]: continue
                    e = holds.touch_before(i, s)
                    if e is not None and e > a and (3, t, e, s) not in self.stuck:
                        c = holds.recompute_cost(t, e)
                        if c is not None: cand.append((c / I.size[t], t, e, s))
        for _, t, e, b in sorted(cand):
            if holds.held[t][b]: continue
            a = holds.touch_before(t, b)
            if a is None or a >= e: continue
            if e + 1 < b and int(holds.peak[e+1:b].max()) + I.size[t] > B: self.stuck.add((3, t, e, b)); continue
            p0 = int(holds.peak[s]); pe = int(holds.peak[e])
            m = holds.mark()
            holds.retain(t, e, b)
            if holds.peak[s] < p0 and holds.peak[e] <= max(B, pe):
                return True
            holds.rollback(m); self.stuck.add((3, t, e, b))
        return False


def refill(holds: Holds, B: int) -> None:
    I = holds.instance
    items = []
    for b in range(I.n):
        run = holds.run[b]
        if len(run) == 1: continue
        for o in run:
            if o == b: continue
            for t in I.writes[o]:
                if not holds.held[t][b]:
                    a = holds.touch_before(t, b)
                    if a is not None:
                        items.append((-(I.cost[o] / ((b - a) * max(1, I.size[t]))), o, t, b))
    items.sort()
    for _, o, t, b in items:
        if holds.held[t][b] or o not in holds.run[b]: continue
        a = holds.touch_before(t, b)
        if a is None: continue
        if b - a > 1 and int(holds.peak[a+1:b].max()) + I.size[t] > B: continue
        tot = holds.total
        m = holds.mark()
        holds.retain(t, a, b)
        if holds.peak[a] > B or holds.peak[b] > B or holds.total >= tot:
            holds.rollback(m)

def penalty(holds, B):
    return int(np.maximum(holds.peak - B, 0).sum())
