"""Every method against exhaustive search on small random graphs, at budgets from too little to store-all's peak."""

from __future__ import annotations

import pytest
from brute import cheapest_staged, least_peak
from evaluator import Illegal, peak_and_cost
from graphs import budgets, random_problem
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.memory import IllegalStepError, replay_sequence
from remat_cli.problem import Problem, Solution
from remat_cli.solve.bounds import working_set_bound
from remat_cli.solve.registry import run_method
from remat_cli.solve.types import Request

seeds = st.integers(0, 2**32 - 1)


def capacities(problem: Problem) -> list[int]:
    store_all = replay_sequence(problem, range(len(problem.nodes)))
    return budgets(working_set_bound(problem).bytes, store_all.peak_bytes)


def checked(method: str, problem: Problem, capacity: int) -> tuple[Solution, int | None]:
    """The method's solution, and its cost with zeros counted as one, after a second, independent replay."""
    solution = run_method(method, Request(problem, capacity, effort="quick"))
    if solution.sequence is None:
        return solution, None
    assert peak_and_cost(problem, solution.sequence) == (solution.live_peak_bytes, solution.cost_ns)
    assert solution.live_peak_bytes is not None
    assert solution.live_peak_bytes <= capacity
    return solution, sum(max(1, problem.nodes[v].cost_ns) for v in solution.sequence)


@pytest.mark.parametrize("seed", range(60))
def test_checkmate_is_the_optimum_at_every_budget(seed: int) -> None:
    problem = random_problem(seed)
    for capacity in capacities(problem):
        truth = cheapest_staged(problem, capacity)
        solution, cost = checked("checkmate", problem, capacity)
        assert cost == truth, capacity
        assert solution.status == ("infeasible" if truth is None else "optimal"), capacity


@given(seeds, st.sampled_from(["rounding", "chen-sqrt", "chen-greedy", "store-all"]))
@settings(max_examples=60, deadline=None)
def test_no_method_beats_the_optimum_or_refuses_what_is_feasible(seed: int, method: str) -> None:
    problem = random_problem(seed)
    for capacity in capacities(problem):
        truth = cheapest_staged(problem, capacity)
        solution, cost = checked(method, problem, capacity)
        if cost is not None:
            assert truth is not None
            assert cost >= truth
        if solution.status == "optimal":
            assert solution.cost_ns == solution.lower_bound_ns
        if truth is None:
            assert solution.status in ("infeasible", "unknown")
        else:
            assert solution.status != "infeasible"
            assert solution.lower_bound_ns is None or solution.lower_bound_ns <= truth


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_working_set_bound_holds_for_every_order(seed: int) -> None:
    problem = random_problem(seed, n=seed % 4 + 2)
    assert working_set_bound(problem).bytes <= least_peak(problem)


@given(seeds, st.lists(st.integers(0, 6), min_size=3, max_size=14))
@settings(max_examples=150, deadline=None)
def test_the_two_replays_agree_on_any_sequence(seed: int, extra: list[int]) -> None:
    problem = random_problem(seed)
    sequence = list(range(len(problem.nodes)))
    for place, v in enumerate(extra):
        sequence.insert((place * 5 + v) % (len(sequence) + 1), v % len(problem.nodes))
    try:
        timeline = replay_sequence(problem, sequence)
    except IllegalStepError:
        with pytest.raises(Illegal):
            peak_and_cost(problem, sequence)
        return
    assert peak_and_cost(problem, sequence) == (timeline.peak_bytes, timeline.compute_ns)
