"""Annealing over holds, with a price on bytes over the capacity that learns where the trouble is.

Random single moves (drop a hold, hold again, make earlier, swap for the producer's inputs) stay when cost + price x
excess rises by less than a random tolerance that cools down (Kirkpatrick et al. 1983). Schedules may be over the
capacity on the way: a stage that stays over it gains weight and one that fits loses it, as in breakout local search
for constraint problems (Morris 1993), so states that no single legal move can leave are no traps. Deterministic:
seeded, work counted instead of timed, floats only in exactly rounded operations.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from remat_cli.solve.holds import Holds, Ints
from remat_cli.solve.work import Work

# The temperature falls to a hundredth in as many blocks of equal work; weights and price change between blocks.
_BLOCKS = 120
_COOLING = 0.9624
_STEPS = 32
# Stage weights, in sixteenths: they grow by a step and a share of themselves where a stage is over the capacity.
_WEIGHT = 16
_WEIGHT_STEP = 4
_WEIGHT_GROWTH = 16
_WEIGHT_DECAY = 8
_WEIGHT_MOST = 512 * _WEIGHT
# The price follows the state: up while it does not fit, down while it does.
_PRICE_UP, _PRICE_DOWN, _PRICE_RANGE = 1.05, 0.98, 8.0
# Work per storage for which annealing from a heat of 1 pays, and the heat for large graphs.
_WORK_PER_STORAGE = 25_000
_LEAST_HEAT = 0.1
_LN2 = 0.6931471805599453

# (storage, a, c, b, held): a storage with the gap (a, b). Held: drop it up to stage c; not held: hold it from stage c.
_Proposal = tuple[int, int, int, int, bool]


@dataclass(frozen=True, slots=True)
class Best:
    """A schedule that fits."""

    cost: int
    sequence: tuple[int, ...]


class Annealer:
    """Anneals `holds`; `best` is the cheapest schedule that fitted on the way, `holds` end anywhere."""

    def __init__(self, holds: Holds, rng: random.Random, heat: float = 1.0) -> None:
        """`heat`: the first temperature, as a multiple of what a recompute costs on average."""
        instance = holds.instance
        self.holds = holds
        self.best: Best | None = None
        self._rng = rng
        self._storages = [
            t for t in range(instance.count) if instance.size[t] and instance.last_need[t] > instance.producer[t]
        ]
        cost, size = _typical(holds)
        self._temperature = heat * cost
        self._price = self._first_price = cost / size / _WEIGHT
        self._weights: Ints = np.full(instance.n, _WEIGHT, dtype=np.int64)
        # Excess is counted in units of 2 ** shift bytes, so that sums of excess x weight stay below 2 ** 63.
        self._shift = max(0, int(holds.peak.max(initial=0)).bit_length() - 34)
        self._excess = self._weigh_excess()
        self._remember()

    def run(self, work: Work, enough: Callable[[Best], bool]) -> bool:
        """Anneal until `work` is spent; the work is also charged to the work of `holds`.

        `enough` is told of the best schedule after each block that improved it; it ends the annealing with True, and
        this returns True.
        """
        outer, self.holds.work = self.holds.work, work
        told: Best | None = None
        done = False
        for block in range(1, _BLOCKS + 1):
            while self._storages and work.fraction() * _BLOCKS < block:
                for _ in range(_STEPS):
                    self._step()
                work.done += 2 * _STEPS
            self._temperature *= _COOLING
            self._adjust_prices()
            if self.best is not None and self.best is not told:
                told = self.best
                done = enough(told)
            if done:
                break
        outer.done += work.done
        self.holds.work = outer
        return done

    # -- prices ----------------------------------------------------------------------------------------------

    def _weigh_excess(self) -> int:
        over = np.minimum(self.holds.capacity - self.holds.peak, 0) >> self._shift
        return -int((over * self._weights).sum())

    def _weigh_shift(self, low: int, high: int, size: int) -> int:
        """How the weighted excess changes when the peaks of stages low..high - 1 change by `size`."""
        if high <= low:
            return 0
        room = self.holds.capacity - self.holds.peak[low:high]
        change = (np.minimum(room, 0) >> self._shift) - (np.minimum(room - size, 0) >> self._shift)
        return int((change * self._weights[low:high]).sum())

    def _adjust_prices(self) -> None:
        weights = self._weights
        over = self.holds.peak > self.holds.capacity
        weights[over] += _WEIGHT_STEP + weights[over] // _WEIGHT_GROWTH
        weights[~over] -= (weights[~over] - _WEIGHT + _WEIGHT_DECAY - 1) // _WEIGHT_DECAY
        np.minimum(weights, _WEIGHT_MOST, out=weights)
        if self._excess:
            self._price = min(self._price * _PRICE_UP, self._first_price * _PRICE_RANGE)
        else:
            self._price = max(self._price * _PRICE_DOWN, self._first_price / _PRICE_RANGE)
        self._excess = self._weigh_excess()

    # -- moves -----------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Propose one move, and keep it when it is tolerable."""
        proposal = self._propose()
        if proposal is None:
            return
        tolerance = self._temperature * _exponential(self._rng)
        t, a, c, b, held = proposal
        holds = self.holds
        swaps = []
        if held and c == b and self._rng.random() < 0.25:
            swaps = holds.missing_inputs(t, b)
        if self._hopeless(proposal, bool(swaps), tolerance):
            return
        before = holds.total
        mark = holds.mark()
        if swaps:
            holds.swap(t, a, b, swaps)
        elif held:
            holds.release(t, a, c)
        else:
            holds.retain(t, c, b)
        excess = self._weigh_excess()
        if holds.total - before + self._price * (excess - self._excess) <= tolerance:
            self._excess = excess
            holds.commit()
            self._remember()
        else:
            holds.rollback(mark)

    def _propose(self) -> _Proposal | None:
        """A random storage, one of its gaps, and the stage that would make it again."""
        holds, instance, rng = self.holds, self.holds.instance, self._rng
        t = self._storages[int(rng.random() * len(self._storages))]
        touches = holds.touches[t]
        if len(touches) < 2:
            return None
        k = int(rng.random() * (len(touches) - 1))
        a, b = touches[k], touches[k + 1]
        held = bool(holds.held[t][b])
        kind = rng.random()
        if kind < 0.65:
            c = b if held else a
        elif kind < 0.85:
            inputs = instance.reads[instance.producer[t]]
            if not inputs:
                return None
            i = inputs[int(rng.random() * len(inputs))]
            c = holds.touch_before(i, b)
        else:
            c = a + 1 + int(rng.random() * (b - a - 1))
        if c < a or (c == a and held) or (c == b and not held):
            return None
        return t, a, c, b, held

    def _hopeless(self, proposal: _Proposal, swaps: bool, tolerance: float) -> bool:
        """True when the move cannot be tolerable, or is illegal. Weighs what is known without doing it."""
        t, a, c, b, held = proposal
        holds, instance = self.holds, self.holds.instance
        made = instance.producer[t]
        size = instance.size[t]
        if not held:
            added = 0 if c == a else holds.recompute_cost(t, c)
            if added is None:
                return True
            gain = sum([instance.cost[v] for v in holds.runs[b]]) - instance.cost[b]
            return added - gain + self._price * self._weigh_shift(c + 1, b, size) > tolerance
        relief = self._price * self._weigh_shift(a + 1, c, -size)
        if swaps:
            return instance.last_stage[made] < b or instance.cost[made] + relief > tolerance
        # A storage that stage a made again only to hold it saves a recompute there, which is not known yet.
        only_held = a != made and t in holds.starts[a]
        if not only_held and made not in holds.runs[c] and instance.cost[made] + relief > tolerance:
            return True
        cost = holds.recompute_cost(t, c)
        return cost is None or (not only_held and cost + relief > tolerance)

    def _remember(self) -> None:
        if not self._excess and (self.best is None or self.holds.total < self.best.cost):
            self.best = Best(self.holds.total, self.holds.sequence())


def heat_for(holds: Holds, work: Work) -> float:
    """Hot enough to rearrange everything when there is work for it, else cool enough to keep what is good."""
    return min(max(work.left() / (_WORK_PER_STORAGE * max(holds.instance.count, 1)), _LEAST_HEAT), 1.0)


def _typical(holds: Holds) -> tuple[float, float]:
    """Mean cost of the nodes that a state recomputes (of all, if none), and mean bytes of their outputs."""
    instance = holds.instance
    nodes = [v for _, v in holds.recomputes()] or list(range(instance.n))
    sizes = [instance.size[t] for v in nodes for t in instance.writes[v]]
    cost = sum(instance.cost[v] for v in nodes) / max(len(nodes), 1)
    return max(cost, 1.0), max(sum(sizes) / max(len(sizes), 1), 1.0)


def _exponential(rng: random.Random) -> float:
    """About exponentially distributed with mean 1: a logarithm that is linear between powers of two."""
    x = rng.getrandbits(52) + 1
    bits = x.bit_length()
    return (54 - bits - x / (1 << (bits - 1))) * _LN2
