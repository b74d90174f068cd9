"""Running CP-SAT so that the same model gives the same answer on any machine.

One worker, a seed and deterministic time instead of wall time: two workers, or a clock, give other schedules from run
to run. The settings are those of the subsolver `max_lp` (all Boolean constraints in the LP from the start), which
alone moves the bound of these models, and a search from the lower bound upwards: schedules are easy to find by
other means, proofs are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ortools.sat.python import cp_model

from remat_cli.errors import InternalError
from remat_cli.reporter import Task
from remat_cli.solve.formulation import Row, Term
from remat_cli.solve.types import Effort, Request

# CP-SAT's deterministic seconds: about real ones on an idle core of 2024.
DETERMINISTIC_S: dict[Effort, float] = {"quick": 2.0, "normal": 15.0, "thorough": 120.0}
# Presolve counts too, and takes up to this many more for each Boolean.
PRESOLVE_S = 1e-4
# Proofs stop at this gap: closing the last nanosecond of a sum of 10^9 takes as long as all before.
RELATIVE_GAP = 1e-6

Verdict = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True)
class Answer:
    """What CP-SAT says. `values`: of all Booleans, when there is a solution. `bound`: proved for the objective."""

    verdict: Verdict
    values: tuple[bool, ...] | None
    bound: int


def minimise(
    request: Request,
    n_booleans: int,
    rows: Sequence[Row],
    fixed: Sequence[int],
    objective: Sequence[Term],
    hint: Sequence[int] | None,
    task: Task,
    *,
    presolve: bool = True,
) -> Answer:
    """Minimise `objective` over Booleans subject to `rows`, with those in `fixed` set to one.

    `objective` coefficients must not be negative. Raises InternalError when CP-SAT refuses the model, and
    KeyboardInterrupt when the user stopped it: CP-SAT by itself would return its best schedule so far as if its time
    were over.
    """
    model = cp_model.CpModel()
    booleans = [model.new_bool_var("") for _ in range(n_booleans)]
    for variable in fixed:
        model.add(booleans[variable] == 1)
    for row in rows:
        low = cp_model.INT_MIN if row.low is None else row.low
        high = cp_model.INT_MAX if row.high is None else row.high
        model.add_linear_constraint(_sum(booleans, row.terms), low, high)
    model.minimize(_sum(booleans, objective))
    for variable, value in enumerate(hint or ()):
        if variable < n_booleans:
            model.add_hint(booleans[variable], value)
    solver = _solver(request, n_booleans, presolve)
    status = solver.solve(model, _Progress(task))
    if status == cp_model.MODEL_INVALID:
        raise InternalError(f"CP-SAT refuses the model of {request.problem.name}: {model.validate()}")
    verdict = _VERDICTS[status]
    if verdict in ("feasible", "unknown") and _had_time_left(solver):
        raise KeyboardInterrupt
    found = verdict in ("optimal", "feasible")
    values = tuple(solver.boolean_value(b) for b in booleans) if found else None
    return Answer(verdict, values, max(0, round(solver.best_objective_bound)))


_VERDICTS: dict[object, Verdict] = {
    cp_model.OPTIMAL: "optimal",
    cp_model.FEASIBLE: "feasible",
    cp_model.INFEASIBLE: "infeasible",
    cp_model.UNKNOWN: "unknown",
}


def _sum(booleans: Sequence[cp_model.IntVar], terms: Sequence[Term]) -> cp_model.LinearExpr:
    return cp_model.LinearExpr.weighted_sum([booleans[v] for v, _ in terms], [c for _, c in terms])


def _solver(request: Request, n_booleans: int, presolve: bool) -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = 1
    parameters.linearization_level = 2
    parameters.add_lp_constraints_lazily = False
    parameters.use_objective_lb_search = True
    parameters.relative_gap_limit = RELATIVE_GAP
    # CP-SAT's seeds are 31-bit.
    parameters.random_seed = request.seed % (2**31 - 1)
    parameters.cp_model_presolve = presolve
    if request.time_limit_s is None:
        parameters.max_deterministic_time = DETERMINISTIC_S[request.effort] + PRESOLVE_S * n_booleans
    else:
        parameters.max_time_in_seconds = request.time_limit_s
    return solver


def _had_time_left(solver: cp_model.CpSolver) -> bool:
    parameters = solver.parameters
    return bool(
        solver.deterministic_time < 0.9 * parameters.max_deterministic_time
        and solver.wall_time < 0.9 * parameters.max_time_in_seconds
    )


class _Progress(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
    """Tells the reporter of each better schedule."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._task = task

    def on_solution_callback(self) -> None:
        """Called by CP-SAT."""
        gap = 1 - self.best_objective_bound / max(1.0, self.objective_value)
        self._task.advance(detail=f"cost {self.objective_value:.6g}, gap {gap:.2%}")
