"""A lower bound on the cost of any schedule that computes nodes first in the problem's order.

Between two consecutive uses of a tensor, in node order, lies a gap. While node p runs for the first time, each tensor
whose gap crosses p is either live or not; if not, its producer must run again before the gap ends. Gaps of one tensor
do not overlap, so each gap that is not held costs a recompute of its own. How much of each gap to drop is a linear
program:

    minimise    sum of w[t] * d[gap]        w[t] = cost of t's producer x t's share of its output bytes
    subject to  for each position p over capacity:  sum over gaps across p of size[t] * d[gap] >= need[p] - capacity

with 0 <= d <= 1. `need[p]` is what p takes with every gap held. A node that can run in place of an input which has
later uses saves bytes only when it drops that input, so the input's gap then begins at the node itself.

The solver's numbers are only a guide: its prices (dual values) are rounded to integers, and any prices give a valid
bound, which is evaluated exactly:

    sum of price[p] * (need[p] - capacity)  -  sum over gaps of max(0, size * (prices across it) - w)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from remat_cli.problem import Problem
from remat_cli.solve.instance import Instance, flatten

if TYPE_CHECKING:
    from ortools.math_opt.python import mathopt

# Prices are rounded to this many bits; bounds are cut to a millionth, so that last bits do not show in a plan.
_PRICE_BITS = 44
_GRID = 1_000_000


@dataclass(frozen=True, slots=True)
class _Gap:
    """A storage of `size` bytes that the nodes start..end (inclusive) can do without, for `cost_ns` x share."""

    start: int
    end: int
    size: int
    cost_ns: int
    made_bytes: int


def gap_bound_ns(problem: Problem, capacity_bytes: int) -> int:
    """Nanoseconds that no schedule within `capacity_bytes` can beat; at least the cost of store-all."""
    total = problem.total_cost_ns
    instance = flatten(problem)
    need = _need(instance)
    if total == 0 or max(need, default=0) <= capacity_bytes:
        return total
    gaps = _gaps(instance, need, capacity_bytes)
    prices = _prices(gaps, need, capacity_bytes, total)
    extra = _evaluate(gaps, need, capacity_bytes, prices) if prices else 0
    return total + extra // (grid := max(total // _GRID, 1)) * grid


def _need(instance: Instance) -> list[int]:
    """Bytes while each node runs with every gap held, less what it saves in place of an input that dies for good."""
    change = [0] * (instance.n + 1)
    for t in range(instance.count):
        change[instance.producer[t] + 1] += instance.size[t]
        change[instance.last_need[t] + 1] -= instance.size[t]
    need = []
    for v, live in enumerate(accumulate(change[: instance.n])):
        saved = max((instance.size[t] for t in instance.in_place[v] if instance.last_need[t] == v), default=0)
        need.append(live + instance.step_bytes[v] - saved)
    return need


def _gaps(instance: Instance, need: Sequence[int], capacity: int) -> list[_Gap]:
    """All gaps that cross a position over capacity."""
    hot = [0, *accumulate(int(bytes_needed > capacity) for bytes_needed in need)]
    gaps = []
    for t in range(instance.count):
        size, made = instance.size[t], instance.producer[t]
        if not size:
            continue
        made_bytes = sum(instance.size[i] for i in instance.writes[made])
        touches = [made, *instance.readers[t]]
        for a, b in pairwise(touches):
            start = a if t in instance.in_place[a] else a + 1
            # The producer runs again in its last stage at the latest, and the tensor is live from there.
            end = min(b, instance.last_stage[made]) - 1
            if instance.last_stage[made] > a and end >= start and hot[end + 1] > hot[start]:
                gaps.append(_Gap(start, end, size, instance.problem.nodes[made].cost_ns, made_bytes))
    return gaps


def _prices(gaps: Sequence[_Gap], need: Sequence[int], capacity: int, total: int) -> list[float] | None:
    """The program's dual values, in ns per byte and position; None when it has no solution."""
    from ortools.math_opt.python import mathopt

    model = mathopt.Model()
    unit, worth = max(capacity, 1) / 1000, total / 1000
    opens: list[list[tuple[mathopt.Variable, float]]] = [[] for _ in range(len(need) + 1)]
    closes: list[list[tuple[mathopt.Variable, float]]] = [[] for _ in range(len(need) + 1)]
    cost = []
    for gap in gaps:
        drop = model.add_variable(lb=0.0, ub=1.0)
        cost.append(gap.cost_ns / gap.made_bytes * gap.size / worth * drop)
        opens[gap.start].append((drop, gap.size / unit))
        closes[gap.end + 1].append((drop, gap.size / unit))
    rows = []
    dropped: mathopt.Variable | None = None
    for p, bytes_needed in enumerate(need):
        if opens[p] or closes[p]:
            now = model.add_variable(lb=0.0)
            terms = [1.0 * now] if dropped is None else [1.0 * now, -1.0 * dropped]
            terms += [-size * drop for drop, size in opens[p]] + [size * drop for drop, size in closes[p]]
            model.add_linear_constraint(lb=0.0, ub=0.0, expr=mathopt.LinearSum(terms))
            dropped = now
        if bytes_needed > capacity and dropped is not None:
            rows.append((p, model.add_linear_constraint(lb=(bytes_needed - capacity) / unit, expr=1.0 * dropped)))
    if not cost or not rows:
        return None
    model.minimize(mathopt.LinearSum(cost))
    result = mathopt.solve(model, mathopt.SolverType.HIGHS)
    if result.termination.reason != mathopt.TerminationReason.OPTIMAL or not result.has_dual_feasible_solution():
        return None
    prices = [0.0] * len(need)
    for p, row in rows:
        prices[p] = max(result.dual_values(row), 0.0) * worth / unit
    return prices


def _evaluate(gaps: Sequence[_Gap], need: Sequence[int], capacity: int, prices: Sequence[float]) -> int:
    """What `prices` prove, rounded up: costs are whole nanoseconds."""
    most = max(prices)
    if most <= 0:
        return 0
    scale = 1 << max(_PRICE_BITS - int(most).bit_length(), 0)
    whole = [int(price * scale) for price in prices]
    across = [0, *accumulate(whole)]
    proved = sum(price * (bytes_needed - capacity) for price, bytes_needed in zip(whole, need, strict=True))
    for gap in gaps:
        saved = gap.size * (across[gap.end + 1] - across[gap.start])
        weight = gap.cost_ns * gap.size * scale // gap.made_bytes
        proved -= max(0, saved - weight)
    return max(0, -(-proved // scale))
