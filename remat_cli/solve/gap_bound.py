"""A lower bound on the cost of any schedule, from a linear program over gaps.

Between two consecutive uses of a tensor in node order lies a gap. While node p runs for the first time, each tensor
whose gap crosses p is either live or not; if not, its producer must run again before the gap ends. Gaps of one tensor
do not overlap, so each gap that is not held costs its own recompute. The program therefore decides, for each gap that
crosses a position over budget, how much of it to drop:

    minimise    sum of w[t] * d[gap]        w[t] = cost of t's producer x t's share of its output bytes
    subject to  for each position p:  store_all[p] - sum over gaps across p of size[t] * d[gap] <= capacity

with 0 <= d <= 1. `store_all[p]` is what p needs with every gap held, less what it could save by running in place, so
the bound holds for every schedule under the memory rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from remat_cli.problem import Problem
from remat_cli.solve.instance import Instance, flatten

# The solver's tolerances are 1e-7 relative; the bound gives up more than that, and is cut to a grid so that another
# machine's last bits do not show in a plan.
_GRID = 100_000


@dataclass(frozen=True, slots=True)
class _Gap:
    """Storage t is not used by the nodes start..end (inclusive), and is used before and after them."""

    tensor: int
    start: int
    end: int
    weight: float


def gap_bound_ns(problem: Problem, capacity_bytes: int) -> int:
    """Nanoseconds that no schedule within `capacity_bytes` can beat; at least the cost of store-all."""
    total = problem.total_cost_ns
    instance = flatten(problem)
    need = _store_all_bytes(instance)
    if total == 0 or max(need, default=0) <= capacity_bytes:
        return total
    extra = _solve(instance, need, capacity_bytes, total)
    grid = max(total // _GRID, 1)
    return total + max(0, math.floor(extra * total) // grid * grid - grid)


def _store_all_bytes(instance: Instance) -> list[int]:
    """Bytes while each node runs with every gap held, less what it could save by running in place."""
    change = [0] * (instance.n + 2)
    for t in range(instance.count):
        first, last = instance.producer[t], instance.last_need[t]
        change[first + 1] += instance.size[t]
        change[max(last, first) + 1] -= instance.size[t]
    need, live = [], 0
    for v in range(instance.n):
        live += change[v]
        saved = max((instance.size[t] for t in instance.in_place[v]), default=0)
        need.append(live + instance.step_bytes[v] - saved)
    return need


def _gaps(instance: Instance, need: list[int], capacity: int) -> Iterator[_Gap]:
    hot = [0]
    for bytes_needed in need:
        hot.append(hot[-1] + (bytes_needed > capacity))
    for t in range(instance.count):
        producer = instance.producer[t]
        if instance.size[t] == 0:
            continue
        share = instance.size[t] / sum(instance.size[i] for i in instance.writes[producer])
        touches = [producer, *instance.readers[t]]
        if t in instance.kept:
            touches.append(instance.n)
        for a, b in pairwise(touches):
            # The producer must be able to run in some stage after the drop.
            if b - a > 1 and hot[b] > hot[a + 1] and instance.last_stage[producer] > a + 1:
                yield _Gap(t, a + 1, b - 1, instance.problem.nodes[producer].cost_ns * share)


def _solve(instance: Instance, need: list[int], capacity: int, total: int) -> float:
    """The program's optimum as a share of `total`; 0 when the solver does not reach it."""
    from ortools.math_opt.python import mathopt

    model = mathopt.Model()
    unit = max(capacity, 1) / 1000
    opens: list[list[tuple[mathopt.Variable, float]]] = [[] for _ in range(instance.n + 1)]
    closes: list[list[tuple[mathopt.Variable, float]]] = [[] for _ in range(instance.n + 1)]
    cost = []
    for gap in _gaps(instance, need, capacity):
        drop = model.add_variable(lb=0.0, ub=1.0)
        cost.append(gap.weight / total * 1000 * drop)
        opens[gap.start].append((drop, instance.size[gap.tensor] / unit))
        closes[gap.end + 1].append((drop, instance.size[gap.tensor] / unit))
    dropped: mathopt.Variable | None = None
    for p in range(instance.n):
        if opens[p] or closes[p]:
            now = model.add_variable(lb=0.0)
            terms = [1.0 * now]
            if dropped is not None:
                terms.append(-1.0 * dropped)
            terms += [-size * drop for drop, size in opens[p]] + [size * drop for drop, size in closes[p]]
            model.add_linear_constraint(lb=0.0, ub=0.0, expr=mathopt.LinearSum(terms))
            dropped = now
        if need[p] > capacity and dropped is not None:
            model.add_linear_constraint(lb=(need[p] - capacity) / unit, expr=1.0 * dropped)
    if not cost:
        return 0.0
    model.minimize(mathopt.LinearSum(cost))
    result = mathopt.solve(model, mathopt.SolverType.HIGHS)
    if result.termination.reason != mathopt.TerminationReason.OPTIMAL:
        return 0.0
    return float(result.objective_value()) / 1000 * (1 - 1e-6)
