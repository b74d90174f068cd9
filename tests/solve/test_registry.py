"""The registry, and the gate that every solution passes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from networks import built, tanh_training_chain

from remat_cli.errors import InputError, InternalError
from remat_cli.problem import Problem
from remat_cli.solve.registry import find_method, methods, run_method
from remat_cli.solve.types import Request
from remat_cli.solve.verified import finish


def test_every_method_solves_a_small_problem_under_its_own_name() -> None:
    problem = tanh_training_chain()
    for info in methods():
        solution = run_method(info.name, Request(problem, 5120))
        assert solution.cost_ns == (9 if info.name == "chen-sqrt" else 8), info.name
        assert solution.method == info.name or info.name == "auto"
        assert info.summary[0].islower() or info.summary.startswith(("Checkmate", "Chen"))


def test_unknown_names_are_refused_with_the_list() -> None:
    with pytest.raises(InputError, match="there is no solve method 'magic'") as error:
        run_method("magic", Request(tanh_training_chain(), 5120))
    assert error.value.hint is not None
    for info in methods():
        assert info.name in error.value.hint
    assert find_method("checkmate").kind == "exact"


def test_listing_methods_loads_no_solver() -> None:
    program = "import sys, remat_cli.solve.registry; sys.exit(any(m.startswith('ortools') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_gate_measures_cost_and_peak() -> None:
    request = Request(tanh_training_chain(), 4096)
    solution = finish(request, "m", (0, 1, 2, 3, 4, 5, 0, 6, 7), "feasible", "live bytes, reduced", 8, "why")
    assert (solution.cost_ns, solution.live_peak_bytes, solution.lower_bound_ns) == (9, 4096, 8)
    assert (solution.scope, solution.message) == ("live bytes, reduced", "why")


@pytest.mark.parametrize(
    ("sequence", "status", "bound", "reason"),
    [
        ((0, 2, 1, 3, 4, 5, 6, 7), "feasible", None, "made an illegal schedule of built: step 0: n1 is read before"),
        ((0, 1, 2, 3, 4, 5, 6), "feasible", None, "n7 is read before it is computed"),
        (tuple(range(8)), "feasible", None, "needs 5120 bytes of 4096"),
        ((0, 1, 2, 3, 4, 5, 0, 6, 7), "optimal", 10, "costs 9 ns, less than its lower bound of 10 ns"),
        (None, "feasible", None, "says feasible without a schedule"),
        ((0, 1, 2, 3, 4, 5, 0, 6, 7), "unknown", None, "says unknown with a schedule"),
    ],
)
def test_wrong_answers_do_not_pass_the_gate(
    sequence: tuple[int, ...] | None, status: str, bound: int | None, reason: str
) -> None:
    with pytest.raises(InternalError, match=reason):
        finish(Request(tanh_training_chain(), 4096), "m", sequence, status, lower_bound_ns=bound)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [info.name for info in methods()])
@pytest.mark.parametrize(
    "problem",
    [
        built([0], [()], (0,)),
        built([5], [()], ()),
        built([0, 0, 0], [(), (0,), (0, 1)], (2,), costs=[0, 0, 0]),
        built([3, 3], [(), ()], (0, 1)),
    ],
)
def test_the_smallest_problems(method: str, problem: Problem) -> None:
    solution = run_method(method, Request(problem, 6))
    assert solution.sequence == tuple(range(len(problem.nodes)))
    assert solution.cost_ns == problem.total_cost_ns
