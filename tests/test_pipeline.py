"""The pipeline from model to plan: budgets, refusals with the way out, and what a plan says of its making."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from plans.graphs import mlp_train
from remat_cli.errors import InfeasibleError, InputError, NoScheduleError
from remat_cli.pipeline import (
    CompileRequest,
    compile_plan,
    costs_from_model,
    load_source,
    problem_for,
    resolve_budget,
    smallest_budget,
)
from remat_cli.plan.check import check_plan
from remat_cli.plan.types import Plan
from remat_cli.problem import Solution
from remat_cli.solve.types import Request
from remat_cli.units import parse_size


@pytest.fixture
def small_request(tmp_path: Path) -> CompileRequest:
    path = tmp_path / "mlp.onnx"
    onnx.save(mlp_train(depth=4), path)
    source = load_source(path)
    return CompileRequest(source, costs_from_model(source, "unit"), parse_size("80%"), "greedy", effort="quick")


def true_plan(plan: Plan) -> Plan:
    assert check_plan(plan).faults == ()
    assert plan.predicted.peak_bytes <= plan.budget_bytes
    return plan


def test_percents_are_of_the_store_all_peak_beside_the_fixed_bytes(small_request: CompileRequest) -> None:
    problem = problem_for(small_request.source, small_request.costs)
    plan = true_plan(compile_plan(small_request))
    activations = plan.predicted.store_all_peak_bytes - plan.predicted.fixed_bytes
    assert plan.budget_bytes == problem.fixed_bytes + activations * 80 // 100
    assert resolve_budget(12345, problem) == 12345


def test_unit_costs_count_steps(small_request: CompileRequest) -> None:
    plan = compile_plan(small_request)
    assert plan.predicted.compute_ns == sum(step.action == "compute" for step in plan.steps)
    assert plan.predicted.recomputed == plan.predicted.compute_ns - len(plan.nodes) > 0


def test_the_smallest_budget_is_solved_and_nothing_below_the_bound(small_request: CompileRequest) -> None:
    plan = true_plan(compile_plan(replace(small_request, budget="min", method="auto")))
    problem = problem_for(small_request.source, small_request.costs)
    assert plan.budget_bytes == smallest_budget(small_request.source, problem)[0]
    with pytest.raises(InfeasibleError, match="no schedule fits a budget of") as error:
        compile_plan(replace(small_request, budget=problem.fixed_bytes + 64))
    assert error.value.hint is not None
    assert f"--budget {plan.budget_bytes}" in error.value.hint


def test_budgets_below_the_fixed_bytes_name_them(small_request: CompileRequest) -> None:
    problem = problem_for(small_request.source, small_request.costs)
    with pytest.raises(InfeasibleError, match=f"{problem.fixed_bytes} bytes of inputs, weights"):
        compile_plan(replace(small_request, budget=1000))


def test_time_limits_are_recorded_as_not_reproducible(small_request: CompileRequest) -> None:
    plan = compile_plan(replace(small_request, time_limit_s=1.5))
    assert plan.solver.scope == "live bytes, time limit 1.5 s, not reproducible"
    assert compile_plan(small_request).solver.scope == "live bytes"


def test_warm_starts_of_other_graphs_are_refused(small_request: CompileRequest, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    onnx.save(mlp_train(depth=2), other)
    source = load_source(other)
    small = CompileRequest(source, costs_from_model(source, "unit"), parse_size("100%"), "store-all")
    with pytest.raises(InputError, match="never computes"):
        compile_plan(replace(small_request, warm_start=compile_plan(small)))
    with pytest.raises(InputError, match="which this graph does not have"):
        compile_plan(replace(small, warm_start=compile_plan(small_request)))


def test_without_in_place_the_peak_is_higher(small_request: CompileRequest) -> None:
    everything = replace(small_request, budget=parse_size("100%"), method="store-all")
    assert (
        compile_plan(everything).predicted.live_peak_bytes
        <= compile_plan(replace(everything, in_place=False)).predicted.live_peak_bytes
    )
    plan = compile_plan(replace(small_request, in_place=False, budget=parse_size("80%")))
    assert not any(step.note for step in plan.steps)


def test_a_proof_for_one_node_order_is_no_proof_of_infeasibility(
    small_request: CompileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restricted(_name: str, _question: Request) -> Solution:
        scope = "live bytes, recomputes in node order"
        return Solution("checkmate", "infeasible", scope=scope, message="none in the graph's order fits")

    monkeypatch.setattr("remat_cli.solve.registry.run_method", restricted)
    with pytest.raises(NoScheduleError, match="none in the graph's order fits"):
        compile_plan(small_request)
