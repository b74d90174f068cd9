"""Two-phase rounding of Checkmate's LP relaxation (Jain et al. 2020, section 5), with repair.

Phase one solves the LP relaxation, whose cost bounds that of any schedule, and rounds what is held (S): at fixed
thresholds, and at random ones (tensor i is held into stage t with probability S[t,i]), from the request's seed. Phase
two computes the fewest runs for these holds. Such a schedule often misses the budget, so it is repaired: holds are
dropped until it fits, and taken up again where they fit (`remat_cli.solve.repair`). The cheapest of all is the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from remat_cli.memory import replay_sequence
from remat_cli.problem import Problem, Solution, Status
from remat_cli.reporter import Task
from remat_cli.solve.baselines import chen_greedy
from remat_cli.solve.bounds import infeasible_reason
from remat_cli.solve.formulation import Formulation, build, count_booleans
from remat_cli.solve.relaxation import relax
from remat_cli.solve.repair import fit
from remat_cli.solve.types import Effort, Request
from remat_cli.solve.verified import finish

METHOD = "rounding"
THRESHOLDS = (0.5, 0.3, 0.7, 0.1, 0.9, 0.01, 0.99)
RANDOM_ROUNDINGS: dict[Effort, int] = {"quick": 1, "normal": 5, "thorough": 25}
# What HiGHS solves in about as long as CP-SAT is given at the same effort.
MAX_BOOLEANS: dict[Effort, int] = {"quick": 50_000, "normal": 150_000, "thorough": 300_000}


def solve(request: Request) -> Solution:
    """The cheapest rounded and repaired schedule, with the LP's bound; "unknown" when none fits."""
    problem = request.problem
    if (reason := infeasible_reason(problem, request.capacity_bytes)) is not None:
        return finish(request, METHOD, None, "infeasible", message=reason)
    booleans, most = count_booleans(problem), MAX_BOOLEANS[request.effort]
    if booleans > most:
        message = (
            f"the LP of {len(problem.nodes)} nodes has {booleans} variables beside those for bytes; at this effort the"
            f" method takes up to {most}: use auto or greedy"
        )
        return finish(request, METHOD, None, "unknown", message=message)
    with request.reporter.task(f"rounding: LP of {len(problem.nodes)} nodes, {booleans} variables") as task:
        return _round(request, task)


def _round(request: Request, task: Task) -> Solution:
    problem = request.problem
    model = build(problem, request.capacity_bytes)
    relaxed = relax(model, request.time_limit_s)
    if relaxed.values is None:
        why = "has no solution in floating point" if relaxed.verdict == "infeasible" else "was not solved in time"
        return finish(request, METHOD, None, "unknown", message=f"the LP relaxation {why}")
    task.advance(detail=f"bound {relaxed.bound_ns} ns")
    best: tuple[int, int, tuple[int, ...]] | None = None
    for holds in dict.fromkeys(_roundings(request, model, relaxed.values)):
        sequence = fit(problem, holds, request.capacity_bytes)
        if sequence is None:
            continue
        timeline = replay_sequence(problem, sequence)
        found = (timeline.compute_ns, timeline.peak_bytes, sequence)
        if timeline.peak_bytes <= request.capacity_bytes and (best is None or found < best):
            best = found
            task.advance(detail=f"cost {timeline.compute_ns} ns")
    if best is None:
        message = "no rounding of the LP could be repaired to fit"
        return finish(request, METHOD, None, "unknown", lower_bound_ns=relaxed.bound_ns, message=message)
    return _answer(request, best[2], best[0], relaxed.bound_ns)


def _answer(request: Request, sequence: tuple[int, ...], cost_ns: int, bound_ns: int) -> Solution:
    chen = chen_greedy(request)
    message = ""
    if chen.cost_ns is not None and chen.cost_ns < cost_ns:
        message = f"{chen.method} is cheaper here: {chen.cost_ns} ns"
    bound_ns = min(bound_ns, cost_ns)
    status: Status = "optimal" if bound_ns == cost_ns else "feasible"
    return finish(request, METHOD, sequence, status, lower_bound_ns=bound_ns, message=message)


def _roundings(request: Request, model: Formulation, values: tuple[float, ...]) -> Iterator[tuple[int, ...]]:
    """Holds into each stage, as bit sets, one tuple a rounding."""
    for threshold in THRESHOLDS:
        yield _holds(request.problem, model, [value > threshold for value in values])
    random = Random(request.seed)
    for _ in range(RANDOM_ROUNDINGS[request.effort]):
        yield _holds(request.problem, model, [random.random() < value for value in values])


def _holds(problem: Problem, model: Formulation, held: list[bool]) -> tuple[int, ...]:
    holds = [0] * (len(problem.nodes) + 1)
    for (t, i), variable in model.hold.items():
        if held[variable]:
            holds[t] |= 1 << i
    return tuple(holds)
