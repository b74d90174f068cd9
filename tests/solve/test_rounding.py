"""The LP relaxation and its rounding, and the repair of stage matrices."""

from __future__ import annotations

import pytest
from evaluator import peak_and_cost
from graphs import random_problem
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import at_percent, built, network, store_all_peak, tanh_training_chain

from remat_cli.memory import replay_sequence
from remat_cli.solve import rounding
from remat_cli.solve.baselines import chen_greedy
from remat_cli.solve.bounds import working_set_bound
from remat_cli.solve.formulation import build
from remat_cli.solve.relaxation import relax
from remat_cli.solve.repair import fit
from remat_cli.solve.stages import bit_set, store_all_holds
from remat_cli.solve.types import Request


@pytest.mark.parametrize(
    ("name", "percent", "bound", "optimum"),
    [
        ("linear16_unit", 50, 1.2424, 1.2727),
        ("linear32_skew", 50, 1.0758, 1.0802),
        ("unet", 70, 1.0005, 1.0016),
        ("vgg19", 80, 1.0009, 1.0015),
    ],
)
def test_known_optima_lie_between_bound_and_schedule(name: str, percent: int, bound: float, optimum: float) -> None:
    problem = network(name)
    request = at_percent(problem, percent)
    solution = rounding.solve(request)
    assert solution.method == "rounding"
    assert solution.sequence is not None
    assert solution.cost_ns is not None
    assert solution.lower_bound_ns is not None
    assert peak_and_cost(problem, solution.sequence) == (solution.live_peak_bytes, solution.cost_ns)
    assert solution.lower_bound_ns / problem.total_cost_ns == pytest.approx(bound, abs=1e-4)
    assert optimum - 1e-4 <= solution.cost_ns / problem.total_cost_ns <= optimum + 0.005
    assert solution.cost_ns < (chen_greedy(request).cost_ns or 0)


def test_the_seed_decides_and_nothing_else() -> None:
    request = at_percent(network("linear16_skew"), 60)
    assert rounding.solve(request) == rounding.solve(request)


def test_a_graph_that_is_too_large_is_refused_at_once() -> None:
    chain = built([4] * 3000, [() if v == 0 else (v - 1,) for v in range(3000)], (0, 2999))
    solution = rounding.solve(Request(chain, 12))
    assert solution.status == "unknown"
    assert "3000 nodes" in solution.message


def test_infeasible_and_unknown() -> None:
    problem = tanh_training_chain()
    assert rounding.solve(Request(problem, 2048)).status == "infeasible"
    # Every step fits in 22 bytes, but n0 and n1, which run once, cannot be kept beside what n2 needs.
    tight = built([5, 9, 1, 9, 1, 1], [(), (0,), (1,), (0,), (2, 3), (0, 4)], (5,), once=(0,))
    capacity = working_set_bound(tight).bytes
    solution = rounding.solve(Request(tight, capacity))
    assert solution.status in ("feasible", "optimal", "unknown")
    assert solution.lower_bound_ns is None or solution.lower_bound_ns >= tight.total_cost_ns


def test_the_relaxation_of_a_full_budget_is_store_all() -> None:
    problem = network("linear16_unit")
    relaxed = relax(build(problem, store_all_peak(problem)))
    assert (relaxed.verdict, relaxed.bound_ns) == ("optimal", problem.total_cost_ns)


def test_the_relaxation_of_too_small_a_budget_has_no_solution() -> None:
    problem = network("linear16_unit")
    assert relax(build(problem, 2)).verdict == "infeasible"


@pytest.mark.parametrize(
    ("name", "percent", "ratio"),
    [("linear16_unit", 50, 1.2728), ("unet", 50, 1.0526), ("mobilenet", 30, 1.0174), ("fcn8", 70, 1.0090)],
)
def test_repair_of_store_all(name: str, percent: int, ratio: float) -> None:
    problem = network(name)
    request = at_percent(problem, percent)
    sequence = fit(problem, store_all_holds(problem), request.capacity_bytes)
    assert sequence is not None
    timeline = replay_sequence(problem, sequence)
    assert timeline.peak_bytes <= request.capacity_bytes
    assert timeline.compute_ns / problem.total_cost_ns < ratio


@given(st.integers(0, 2**32 - 1), st.data())
@settings(max_examples=80, deadline=None)
def test_repair_of_any_holds_fits_or_gives_up(seed: int, data: st.DataObject) -> None:
    problem = random_problem(seed)
    made = bit_set(t for outputs in problem.writes for t in outputs)
    holds = [data.draw(st.integers(0, made)) & made for _ in range(len(problem.nodes) + 1)]
    low, high = working_set_bound(problem).bytes, store_all_peak(problem)
    capacity = data.draw(st.integers(low, high))
    sequence = fit(problem, holds, capacity)
    if sequence is not None:
        assert peak_and_cost(problem, sequence)[0] <= capacity
    at_ease = fit(problem, store_all_holds(problem), high)
    assert at_ease == tuple(range(len(problem.nodes)))
