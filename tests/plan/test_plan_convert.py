"""Problem + Solution -> Plan -> Problem."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import (
    COSTS,
    DEVICE,
    MODEL,
    PER_STEP,
    TRAINING_OUTPUTS,
    TRAINING_RECOMPUTE,
    Builder,
    lower,
    random_problem,
    random_sequence,
    solution_of,
    training_plan,
    training_step,
)

from remat_cli.errors import InputError, InternalError
from remat_cli.memory import replay, replay_sequence, steps_of
from remat_cli.plan.convert import costs_of_plan, lower_solution, problem_of, steps_of_plan
from remat_cli.plan.placement import place
from remat_cli.plan.types import Plan, PlanDevice, PlanPredicted, PlanTensor
from remat_cli.problem import Node, NodeCost, Problem, Solution, Tensor


def lower_file_problem(problem: Problem, sequence: list[int]) -> Plan:
    return lower_solution(
        problem,
        solution_of(problem, sequence),
        model=MODEL,
        device=PlanDevice("problem", problem.alignment, 1),
        costs=PER_STEP,
        budget_bytes=10**6,
        asked="greedy",
        seed=7,
        ortools="9.15.6755",
        node_costs={n.id: NodeCost(n.cost_ns, n.workspace_bytes) for n in problem.nodes},
        resident_bytes={},
    )


def file_problem(name: str = "a") -> Problem:
    tensors = (Tensor(name, 10, "activation", 0), Tensor("b", 7, "output", 1))
    nodes = (Node("a", "op", (), (0,), 5, workspace_bytes=3), Node("b", "op", (0,), (1,), 6, workspace_bytes=40))
    return Problem("net.onnx", nodes, tensors, (1,), fixed_bytes=1000)


def test_figures_of_the_training_step() -> None:
    """By hand. Fixed: x 1024, W 512, one 64, workspace 1170 + 36 -> 1216. Peak:
    wide and dwide (6016 each), mask 704, loss
    64; store-all holds relu (3008) as well. conv (900) and relu (20) run twice."""
    assert training_plan().predicted == PlanPredicted(
        peak_bytes=2816 + 12800,
        live_peak_bytes=12800,
        arena_bytes=12800,
        fixed_bytes=2816,
        workspace_bytes=1216,
        compute_ns=2365 + 920,
        store_all_ns=2365,
        store_all_peak_bytes=2816 + 12800 + 3008,
        recomputed=2,
    )


def test_the_problem_comes_back() -> None:
    problem = training_step().build(TRAINING_OUTPUTS)
    plan = training_plan()
    assert problem_of(plan) == problem
    assert problem_of(plan).batch == 8
    assert steps_of_plan(plan, problem) == steps_of(problem, TRAINING_RECOMPUTE)
    assert costs_of_plan(plan) == training_step().node_costs()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_random_problems_come_back(seed: int, size: int) -> None:
    builder, outputs = random_problem(seed, size)
    problem = builder.build(outputs)
    sequence = random_sequence(problem, seed)
    plan = lower(builder, outputs, sequence)
    again = problem_of(plan)
    assert again.nodes == problem.nodes
    assert again.outputs == problem.outputs
    assert again.fixed_bytes == problem.fixed_bytes
    assert again.root == problem.root
    assert again.reads == problem.reads
    assert [(t.id, t.size_bytes, t.kind, t.producer, t.state_of) for t in again.tensors] == [
        (t.id, t.size_bytes, t.kind, t.producer, t.state_of) for t in problem.tensors
    ]
    steps = steps_of_plan(plan, again)
    assert replay(again, steps) == replay_sequence(problem, sequence)
    assert place(again, steps).arena_bytes == plan.predicted.arena_bytes
    assert place(again, steps) == place(problem, steps_of(problem, sequence))


def test_a_view_of_a_view_names_the_storage() -> None:
    b = Builder()
    b.resident("x", 64, "input")
    b.view("x1", "x")
    b.node([("a", 64)], ["x1"])
    b.view("a1", "a")
    b.view("a2", "a1")
    plan = lower(b, ["a2", "x1"], [0])
    assert [row.kind for row in plan.tensors] == ["input", "view of x", "activation", "view of a", "view of a"]


def test_problem_files_have_one_row_of_fixed_bytes() -> None:
    plan = lower_file_problem(file_problem(), [0, 1])
    assert plan.tensors[-1] == PlanTensor("(fixed)", 1000, "weight")
    predicted = plan.predicted
    # Step b: a (10) + b (7) + its workspace (40).
    assert (predicted.live_peak_bytes, predicted.peak_bytes) == (57, 1057)
    assert (predicted.fixed_bytes, predicted.workspace_bytes) == (1000, 40)
    problem = problem_of(plan)
    assert problem.fixed_bytes == 1000
    assert problem.nodes == file_problem().nodes
    assert problem.tensors[:2] == file_problem().tensors


def test_the_row_of_fixed_bytes_finds_a_free_name() -> None:
    assert lower_file_problem(file_problem("(fixed)"), [0, 1]).tensors[-1].id == "(fixed)'"


def test_no_row_for_no_fixed_bytes() -> None:
    assert len(lower_file_problem(replace(file_problem(), fixed_bytes=0), [0, 1]).tensors) == 2


def test_one_id_for_two_tensors_is_refused() -> None:
    with pytest.raises(InputError, match="two tensors are called 'b': the first is number 0, the other 1"):
        lower_file_problem(file_problem("b"), [0, 1])


def test_one_id_for_two_nodes_is_refused() -> None:
    problem = file_problem()
    twice = replace(problem, nodes=(replace(problem.nodes[0], id="b"), problem.nodes[1]))
    with pytest.raises(InputError, match="two nodes are called 'b'"):
        lower_file_problem(twice, [0, 1])


def test_times_beyond_64_bits_are_refused() -> None:
    problem = file_problem()
    dear = replace(problem, nodes=tuple(replace(node, cost_ns=2**62) for node in problem.nodes))
    with pytest.raises(InputError, match="compute_ns is 9223372036854775808, which does not fit 64 bits"):
        lower_file_problem(dear, [0, 1])


def lower_training(problem: Problem, solution: Solution, resident_bytes: dict[str, int]) -> Plan:
    return lower_solution(
        problem,
        solution,
        model=MODEL,
        device=DEVICE,
        costs=COSTS,
        budget_bytes=10**6,
        asked="auto",
        seed=0,
        ortools="9.15.6755",
        node_costs=training_step().node_costs(),
        resident_bytes=resident_bytes,
    )


def test_fixed_bytes_must_be_those_of_the_tables() -> None:
    problem = training_step().build(TRAINING_OUTPUTS)
    solution = solution_of(problem, range(10))
    with pytest.raises(InternalError, match="fixed bytes are 2816, but residents and workspace are 1792"):
        lower_training(problem, solution, {"W": 512, "one": 64})


def test_a_solution_without_schedule_is_refused() -> None:
    problem = training_step().build(TRAINING_OUTPUTS)
    with pytest.raises(InternalError, match=r"greedy has no schedule of net\.onnx: unknown"):
        lower_training(problem, Solution("greedy", "unknown"), training_step().resident_bytes)


def test_a_placement_at_hand_is_used() -> None:
    problem = training_step().build(TRAINING_OUTPUTS)
    placement = place(problem, steps_of(problem, range(10)))
    wide = replace(placement, arena_bytes=placement.arena_bytes + 64)
    plan = lower_solution(
        problem,
        solution_of(problem, range(10)),
        model=MODEL,
        device=DEVICE,
        costs=COSTS,
        budget_bytes=10**6,
        asked="auto",
        seed=0,
        ortools="9.15.6755",
        node_costs=training_step().node_costs(),
        resident_bytes=training_step().resident_bytes,
        placement=wide,
    )
    assert plan.predicted.arena_bytes == wide.arena_bytes
