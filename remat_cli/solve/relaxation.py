"""The LP relaxation of the Checkmate MILP, by HiGHS through MathOpt (GLOP took six times as long on these models).

MathOpt's HiGHS refuses the `threads` parameter; by default it runs one thread here, and the same way every time.
The model is handed over as a protocol buffer: variable by variable from Python it takes longer to build than to solve.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import inf

from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt

from remat_cli.solve.formulation import Formulation, Row

# Byte rows are scaled to a capacity of this, and the objective to a store-all cost of this.
_SCALE = 1000.0
# HiGHS works to 1e-7; what it calls the optimum may be too high by about as much.
_SAFETY = 1e-6


@dataclass(frozen=True)
class Relaxation:
    """`verdict`: "optimal", "infeasible" (in floating point, so no proof) or "unknown" (out of time).
    `values` of all variables; `bound_ns`: valid for the MILP, rounded down by more than the solver's tolerance."""

    verdict: str
    values: tuple[float, ...] | None
    bound_ns: int


def relax(model: Formulation, time_limit_s: float | None = None) -> Relaxation:
    """Solve the relaxation of `model`."""
    problem = model.problem
    unit_ns = max(1, problem.total_cost_ns) / _SCALE
    lp = mathopt.Model.from_model_proto(_proto(model, unit_ns))
    limit = None if time_limit_s is None else timedelta(seconds=time_limit_s)
    result = mathopt.solve(lp, mathopt.SolverType.HIGHS, params=mathopt.SolveParameters(time_limit=limit))
    reason = result.termination.reason
    if reason == mathopt.TerminationReason.OPTIMAL:
        values = result.variable_values(list(lp.variables()))
        bound = result.objective_value() * (1 - _SAFETY) * unit_ns
        return Relaxation("optimal", tuple(values), max(problem.total_cost_ns, int(bound)))
    infeasible = (mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED)
    return Relaxation("infeasible" if reason in infeasible else "unknown", None, problem.total_cost_ns)


def _proto(model: Formulation, unit_ns: float) -> model_pb2.ModelProto:
    proto = model_pb2.ModelProto()
    fixed = set(model.fixed)
    n = model.n_booleans
    proto.variables.ids.extend(range(model.n_variables))
    proto.variables.lower_bounds.extend(1.0 if v in fixed else 0.0 for v in range(model.n_variables))
    proto.variables.upper_bounds.extend(1.0 if v < n else _SCALE for v in range(model.n_variables))
    proto.variables.integers.extend(False for _ in range(model.n_variables))
    defined = [Row(((live, -1), *terms), 0, 0) for live, terms in model.definitions.items()]
    per_byte = _SCALE / max(1, model.capacity_bytes)
    for number, row in enumerate([*model.rows, *defined]):
        in_bytes = any(v >= n for v, _ in row.terms)
        factor = per_byte if in_bytes else 1.0
        proto.linear_constraints.ids.append(number)
        proto.linear_constraints.lower_bounds.append(-inf if row.low is None else row.low * factor)
        proto.linear_constraints.upper_bounds.append(inf if row.high is None else row.high * factor)
        for variable, coefficient in sorted(row.terms):
            proto.linear_constraint_matrix.row_ids.append(number)
            proto.linear_constraint_matrix.column_ids.append(variable)
            # U itself is already in scaled bytes.
            scaled = coefficient if variable >= n else coefficient * factor
            proto.linear_constraint_matrix.coefficients.append(float(scaled))
    costs = sorted((variable, cost) for variable, cost in model.cost if cost)
    proto.objective.linear_coefficients.ids.extend(variable for variable, _ in costs)
    proto.objective.linear_coefficients.values.extend(cost / unit_ns for _, cost in costs)
    return proto
