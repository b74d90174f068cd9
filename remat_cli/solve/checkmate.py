"""The Checkmate MILP in CP-SAT: the exact method of Jain et al. (MLSys 2020), for graphs of up to about 130 nodes.

What is proved: no schedule that computes nodes for the first time in the graph's order, and recomputes in that order
within a stage, is cheaper by more than one part in a million (costs of zero count as 1 ns). Live bytes are exact: sizes
are divided by their greatest common divisor. Only when sums would still pass 2^31 (larger coefficients have been
reported to give wrong answers) are sizes rounded, down, which keeps every proof valid; the schedule is checked with
exact bytes. In the rare case that it misses, exact sizes are used after all, twice, and both answers must agree; sums
beyond 2^53 are rounded up then, which keeps the schedule valid and leaves the proof to the first answer.

CP-SAT's claims are doubted where something speaks against them: a schedule that fits although "infeasible", or that
is cheaper than "optimal". "infeasible" always needs a second run, without presolve, that agrees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd

from remat_cli.memory import replay_sequence
from remat_cli.problem import Problem, Solution
from remat_cli.reporter import Task
from remat_cli.solve.bounds import infeasible_reason
from remat_cli.solve.cpsat import RELATIVE_GAP, Answer, minimise
from remat_cli.solve.formulation import Formulation, Term, assignment_of, build, count_booleans, without_live
from remat_cli.solve.stages import holds_from_stages, in_place_candidates, runs_from_holds
from remat_cli.solve.starts import Start, best_start
from remat_cli.solve.types import Request
from remat_cli.solve.verified import LIVE_BYTES, finish

METHOD = "checkmate"
# What the MILP's proofs are about: other orders of a stage's recomputes can fit, or cost less.
SCOPE = f"{LIVE_BYTES}, recomputes in node order"
MAX_NODES = 130
MAX_BOOLEANS = 400_000
# Sums of the coefficients of one row stay below this.
MAX_ROW_SUM = 2**31 - 1
# The objective's sum stays below this: doubles, in which bounds are kept, hold integers up to 2^53.
MAX_COST_SUM = 2**52


def solve(request: Request) -> Solution:
    """The cheapest schedule within the capacity, proved ("optimal"), or the best that the effort allows."""
    problem = request.problem
    if (reason := infeasible_reason(problem, request.capacity_bytes)) is not None:
        return finish(request, METHOD, None, "infeasible", message=reason)
    n, booleans = len(problem.nodes), count_booleans(problem)
    if n > MAX_NODES or booleans > MAX_BOOLEANS:
        message = (
            f"the MILP of {n} nodes has {booleans} Booleans; this method takes up to {MAX_NODES} nodes and"
            f" {MAX_BOOLEANS} Booleans: use auto or greedy"
        )
        return finish(request, METHOD, None, "unknown", message=message)
    start = best_start(request)
    if start is not None and start.cost_ns == problem.total_cost_ns:
        # Nothing beats computing every node once.
        message = f"no MILP needed: {start.name} costs as little as computing every node once"
        return finish(request, METHOD, start.sequence, "optimal", lower_bound_ns=problem.total_cost_ns, message=message)
    with request.reporter.task(f"checkmate: MILP of {n} nodes, {booleans} Booleans") as task:
        return _search(request, start, task)


@dataclass(frozen=True)
class _Found:
    """An answer in the problem's own terms. `sequence` fits the capacity in exact bytes; `missed`: there was one that
    does not. `bound_ns` is proved."""

    infeasible: bool
    optimal: bool
    sequence: tuple[int, ...] | None
    missed: bool
    bound_ns: int


def _search(request: Request, start: Start | None, task: Task) -> Solution:
    problem = request.problem
    whole, total = _byte_sums(problem)
    unit = max(whole, -(-total // MAX_ROW_SUM))
    found = _ask(request, unit, start, task)
    if found.infeasible:
        message = "no schedule that computes and recomputes in the graph's order of nodes fits (proved by CP-SAT)"
        return finish(request, METHOD, None, "infeasible", SCOPE, message=message)
    if found.sequence is None and found.missed and unit > whole:
        found = _ask_again(request, whole, total, start, task, found.bound_ns)
    bound_ns = max(problem.total_cost_ns, found.bound_ns)
    if found.sequence is None:
        message = "CP-SAT found no schedule within its effort: try --effort thorough, auto or greedy"
        return finish(request, METHOD, None, "unknown", SCOPE, bound_ns, message)
    cost_ns = sum(problem.nodes[v].cost_ns for v in found.sequence)
    bound_ns = min(bound_ns, cost_ns)
    if found.optimal or bound_ns == cost_ns:
        return finish(request, METHOD, found.sequence, "optimal", SCOPE, bound_ns)
    message = f"started from {start.name}" if start is not None else ""
    return finish(request, METHOD, found.sequence, "feasible", SCOPE, bound_ns, message)


def _ask_again(request: Request, whole: int, total: int, start: Start | None, task: Task, bound_ns: int) -> _Found:
    """When rounding down lets a schedule in that misses by less than the rounding; `bound_ns` is proved already."""
    if total // whole > 2**53:
        strict = _ask(request, -(-total // MAX_ROW_SUM), start, task, up=True)
        return replace(strict, optimal=False, bound_ns=bound_ns)
    exact = _ask(request, whole, start, task, confirm=True)
    return replace(exact, bound_ns=max(bound_ns, exact.bound_ns))


def _byte_sums(problem: Problem) -> tuple[int, int]:
    """The greatest common divisor of all sizes, and what the coefficients of one row sum to at most."""
    sizes = [tensor.size_bytes for tensor in problem.tensors]
    scratch = [node.workspace_bytes for node in problem.nodes]
    # In a row a tensor counts once as held, once as made, and once in each free.
    total = sum(size * (3 + len(problem.readers[i])) for i, size in enumerate(sizes)) + sum(scratch)
    return gcd(*sizes, *scratch) or 1, total


def _in_units(problem: Problem, unit: int, up: bool) -> Problem:
    """The problem with bytes in units, rounded up or down."""
    extra = unit - 1 if up else 0
    return replace(
        problem,
        tensors=tuple(replace(t, size_bytes=(t.size_bytes + extra) // unit) for t in problem.tensors),
        nodes=tuple(replace(v, workspace_bytes=(v.workspace_bytes + extra) // unit) for v in problem.nodes),
    )


def _objective(model: Formulation) -> tuple[list[Term], int]:
    """The objective in its own unit, and that unit in ns. Rounding is down, so that bounds stay valid."""
    terms = [(variable, max(cost, 1)) for variable, cost in model.cost]
    whole = gcd(*(cost for _, cost in terms))
    unit = max(whole, -(-sum(cost for _, cost in terms) // MAX_COST_SUM))
    return [(variable, cost // unit) for variable, cost in terms], unit


def _ask(
    request: Request, unit: int, start: Start | None, task: Task, *, up: bool = False, confirm: bool = False
) -> _Found:
    """Solve with sizes in `unit`s, rounded down for proofs or `up` for schedules; `confirm` asks twice."""
    problem = request.problem
    model = build(_in_units(problem, unit, up), request.capacity_bytes // unit, in_place_candidates(problem))
    objective, cost_unit = _objective(model)
    hint = assignment_of(model, start.stages) if start is not None else None
    # A start that fits in exact bytes may miss in sizes rounded up.
    ceiling = sum(cost for v, cost in objective if hint[v]) if hint is not None and not up else None
    rows = without_live(model)

    def ask(presolve: bool) -> Answer:
        return minimise(request, model.n_booleans, rows, model.fixed, objective, hint, task, presolve=presolve)

    answer = _trusted(ask, ceiling, confirm)
    sequence = None if answer.values is None else _sequence(request, model, answer.values)
    return _Found(
        infeasible=answer.verdict == "infeasible",
        optimal=answer.verdict == "optimal" and sequence is not None,
        sequence=sequence,
        missed=answer.values is not None and sequence is None,
        bound_ns=answer.bound * cost_unit,
    )


def _trusted(ask: Callable[[bool], Answer], ceiling: int | None, confirm: bool) -> Answer:
    """CP-SAT's answer with presolve, or, where something speaks against it, a second one without that agrees.

    `ceiling`: the objective of a schedule that is known to fit. Answers that contradict it, or each other, prove
    nothing: the verdict is then "feasible" or "unknown", with a bound of 0.
    """

    def contradicted(answer: Answer) -> bool:
        return ceiling is not None and (answer.verdict == "infeasible" or answer.bound > ceiling)

    first = ask(True)
    if first.verdict != "infeasible" and not contradicted(first) and not confirm:
        return first
    second = ask(False)
    agree = first.verdict == second.verdict and (not confirm or _same_value(first, second))
    if agree and not contradicted(second):
        return second
    values = first.values or second.values
    return Answer("unknown" if values is None else "feasible", values, 0)


def _same_value(first: Answer, second: Answer) -> bool:
    return abs(first.bound - second.bound) <= RELATIVE_GAP * max(first.bound, second.bound)


def _sequence(request: Request, model: Formulation, values: tuple[bool, ...]) -> tuple[int, ...] | None:
    """The schedule of a solution without useless runs; None when it needs more than the capacity in exact bytes."""
    problem = request.problem
    stages = model.stages(lambda variable: values[variable])
    lean = runs_from_holds(problem, holds_from_stages(problem, stages))
    assert not lean.blocked, "fewest runs for the holds of a legal schedule are among its own"
    peak = replay_sequence(problem, lean.sequence).peak_bytes
    return lean.sequence if peak <= request.capacity_bytes else None
