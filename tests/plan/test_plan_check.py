"""Checks: every change by hand is caught, and true plans pass."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plain_replay import plain_replay
from plan_cases import (
    PER_STEP,
    TRAINING_OUTPUTS,
    TRAINING_RECOMPUTE,
    Builder,
    lower,
    random_problem,
    random_sequence,
    replace_fields,
    training_plan,
    training_step,
)

from remat_cli.errors import CheckFailed, InputError
from remat_cli.plan.check import CheckReport, check_model, check_plan, check_tables
from remat_cli.plan.convert import problem_of
from remat_cli.plan.files import dump_plan, parse_plan
from remat_cli.plan.types import Plan, PlanStep

Case = tuple[Plan, Builder, tuple[str, ...]]


def random_case(seed: int, size: int) -> Case:
    builder, outputs = random_problem(seed, size)
    return lower(builder, outputs, random_sequence(builder.build(outputs), seed)), builder, outputs


def cases() -> list[Case]:
    found = [(training_plan(s), training_step(), TRAINING_OUTPUTS) for s in (range(10), TRAINING_RECOMPUTE)]
    # Seeds of plans that have recomputes, in-place steps and views.
    return found + [random_case(seed, size) for seed, size in ((1, 6), (5, 12), (9, 20))]


CASES = cases()
each_plan = pytest.mark.parametrize("case", CASES, ids=["train", "train-recompute", "small", "middle", "large"])


def fields(plan: Plan, **changes: object) -> Plan:
    """`plan` with fields changed; ``predicted__peak_bytes=5`` reaches into a header object."""
    for name, value in changes.items():
        head, _, field = name.partition("__")
        plan = replace_fields(plan, **{head: replace_fields(getattr(plan, head), **{field: value}) if field else value})
    return plan


def row(rows: tuple[Any, ...], index: int, **changes: object) -> tuple[Any, ...]:
    return (*rows[:index], replace_fields(rows[index], **changes), *rows[index + 1 :])


def faults(plan: Plan, case: Case) -> list[str]:
    """All faults that are found with the model at hand."""
    _, builder, outputs = case
    report = check_plan(plan) + check_tables(
        plan, builder.build(outputs), node_costs=builder.node_costs(), resident_bytes=builder.resident_bytes
    )
    return [str(fault) for fault in report.faults]


@each_plan
def test_true_plans_pass(case: Case) -> None:
    plan = case[0]
    assert faults(plan, case) == []
    report = check_plan(plan, budget_bytes=plan.predicted.peak_bytes)
    assert report.ok
    assert report.predicted == plan.predicted
    report.raise_faults("plan.json")
    peak, cost, recomputed = plain_replay(json.loads(dump_plan(plan)))
    found = plan.predicted
    assert (peak, cost, recomputed) == (found.live_peak_bytes, found.compute_ns, found.recomputed)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20))
def test_random_plans_pass_and_agree_with_a_second_replay(seed: int, size: int) -> None:
    case = random_case(seed, size)
    assert faults(case[0], case) == []
    peak, cost, recomputed = plain_replay(json.loads(dump_plan(case[0])))
    found = case[0].predicted
    assert (peak, cost, recomputed) == (found.live_peak_bytes, found.compute_ns, found.recomputed)


@each_plan
@pytest.mark.parametrize("name", CASES[0][0].predicted.__struct_fields__)
def test_every_figure_is_compared(case: Case, name: str) -> None:
    plan = case[0]
    for change in (-1, 1):
        true = getattr(plan.predicted, name)
        if true + change < 0:
            continue
        report = check_plan(fields(plan, **{f"predicted__{name}": true + change}))
        assert [fault.where for fault in report.faults] == [f"$.predicted.{name}"]
        assert f"predicted.{name} says {true + change} but" in report.faults[0].message
        assert f"finds {true}" in report.faults[0].message


@each_plan
def test_cost_and_bound_are_compared(case: Case) -> None:
    plan = case[0]
    cost = plan.solver.cost_ns
    assert [f.where for f in check_plan(fields(plan, solver__cost_ns=cost + 1)).faults] == ["$.solver.cost_ns"]
    assert check_plan(fields(plan, solver__lower_bound_ns=cost)).ok
    report = check_plan(fields(plan, solver__lower_bound_ns=cost + 1))
    assert [str(f) for f in report.faults] == [
        f"$.solver.lower_bound_ns: the steps cost {cost} ns, less than the lower bound of {cost + 1} ns"
    ]


@each_plan
def test_budget_is_compared(case: Case) -> None:
    plan = case[0]
    peak = plan.predicted.peak_bytes
    report = check_plan(fields(plan, budget_bytes=peak - 1))
    assert [f.where for f in report.faults] == ["$.budget_bytes"]
    assert f"needs {peak} bytes" in report.faults[0].message
    assert f"1 more than its budget of {peak - 1}" in report.faults[0].message
    asked = check_plan(plan, budget_bytes=peak - 64)
    assert [f.where for f in asked.faults] == ["budget"]
    assert "64 more than the budget of" in asked.faults[0].message
    assert check_plan(plan, budget_bytes=0).faults


@each_plan
def test_any_compute_that_is_dropped_is_found(case: Case) -> None:
    plan = case[0]
    for k, step in enumerate(plan.steps):
        if step.action == "compute":
            assert check_plan(replace_fields(plan, steps=plan.steps[:k] + plan.steps[k + 1 :])).faults


@each_plan
def test_any_free_before_its_last_use_is_found(case: Case) -> None:
    """A free moves up to just before the last compute that reads its storage."""
    plan = case[0]
    problem = problem_of(plan)
    index = {node.id: v for v, node in enumerate(problem.nodes)}
    moved = 0
    for k, step in enumerate(plan.steps):
        if step.action != "free":
            continue
        for j in range(k - 1, -1, -1):
            use = plan.steps[j]
            reads = problem.reads[index[use.target]] if use.action == "compute" else ()
            if step.target in {problem.tensors[t].id for t in reads}:
                steps = (*plan.steps[:j], step, *plan.steps[j:k], *plan.steps[k + 1 :])
                report = check_plan(replace_fields(plan, steps=steps))
                assert report.faults[0].where == f"$.steps[{j + 1}]"
                assert f"$.steps[{j}] freed it" in report.faults[0].message
                moved += 1
                break
            if use.action == "compute" and step.target in plan.nodes[index[use.target]].outputs:
                break
    assert moved


@each_plan
def test_any_step_that_is_given_twice_is_found(case: Case) -> None:
    """A second free is illegal; a second compute costs time."""
    plan = case[0]
    for k, step in enumerate(plan.steps):
        assert check_plan(replace_fields(plan, steps=(*plan.steps[:k], step, *plan.steps[k:]))).faults


@each_plan
def test_any_size_that_changes_is_found(case: Case) -> None:
    plan = case[0]
    for k, tensor in enumerate(plan.tensors):
        if tensor.kind.startswith(("view", "state")):
            continue
        changed = replace_fields(plan, tensors=row(plan.tensors, k, size_bytes=tensor.size_bytes + 64))
        assert any(fault.startswith(f"$.tensors[{k}][1]: size of {tensor.id!r}") for fault in faults(changed, case))


@each_plan
def test_any_kind_that_changes_is_found(case: Case) -> None:
    plan = case[0]
    for k, tensor in enumerate(plan.tensors):
        for kind in ("activation", "gradient", "weight", "constant", "view of x", f"view of {plan.tensors[0].id}"):
            if kind != tensor.kind:
                assert faults(replace_fields(plan, tensors=row(plan.tensors, k, kind=kind)), case)


@each_plan
def test_any_node_field_that_changes_is_found(case: Case) -> None:
    plan = case[0]
    for k, node in enumerate(plan.nodes):
        changes: list[dict[str, object]] = [
            {"op_type": "Other"},
            {"cost_ns": node.cost_ns + 1},
            {"workspace_bytes": node.workspace_bytes + 1},
            {"inputs": (*node.inputs, plan.tensors[0].id)},
            {"outputs": node.outputs[:-1]},
            {"flags": () if "once" in node.flags else ("once", *node.flags)},
            {"id": "other"},
        ]
        for change in changes:
            assert faults(replace_fields(plan, nodes=row(plan.nodes, k, **change)), case), (node.id, change)


@each_plan
def test_rows_that_are_missing_are_found(case: Case) -> None:
    plan = case[0]
    for k in range(len(plan.nodes)):
        assert faults(replace_fields(plan, nodes=plan.nodes[:k] + plan.nodes[k + 1 :]), case)
    for k in range(len(plan.tensors)):
        assert faults(replace_fields(plan, tensors=plan.tensors[:k] + plan.tensors[k + 1 :]), case)
    assert faults(replace_fields(plan, outputs=plan.outputs[1:]), case)


def test_a_forged_in_place_note_is_found() -> None:
    plan = training_plan()
    forged = replace_fields(plan, steps=row(plan.steps, 2, note="in place of flat"))
    report = check_plan(forged)
    assert str(report.faults[0]) == "$.steps[2]: node drop (Dropout) cannot run in place of flat"
    # With the flag forged too, only the model can tell.
    both = replace_fields(forged, nodes=row(plan.nodes, 2, flags=("once", "in place of flat")))
    assert "$.nodes[2][6]: 'drop' cannot run in place of flat" in faults(both, CASES[1])


def test_a_dropped_in_place_note_is_found() -> None:
    plan = training_plan()
    report = check_plan(replace_fields(plan, steps=row(plan.steps, 1, note="")))
    assert report.faults


def test_a_node_that_runs_once_is_not_run_twice() -> None:
    plan = training_plan()
    steps = (*plan.steps[:3], PlanStep("compute", "drop"), *plan.steps[3:])
    assert "node drop (Dropout) must run only once" in str(check_plan(replace_fields(plan, steps=steps)).faults[0])


def test_a_state_is_not_read_after_its_update() -> None:
    plan = training_plan()
    update = plan.steps[-2:]
    early = replace_fields(plan, steps=(*plan.steps[:4], *update, *plan.steps[4:-2]))
    assert check_plan(early).faults[0].where == "$.steps[4]"


def test_use_after_free_names_both_steps() -> None:
    b = Builder()
    b.resident("x", 64, "input")
    b.node([("f0", 64)], ["x"], name="F0")
    b.node([("f1", 64)], ["f0"], name="F1")
    plan = lower(b, ["f1"], [0, 1])
    steps = (plan.steps[0], PlanStep("free", "f0"), plan.steps[1])
    assert [str(f) for f in check_plan(replace_fields(plan, steps=steps)).faults] == [
        "$.steps[2]: node F1 needs f0, which is not live here: $.steps[1] freed it"
    ]


def test_use_after_an_overwrite_names_both_steps() -> None:
    b = Builder()
    b.resident("x", 64, "input")
    b.node([("a", 64)], ["x"])
    b.node([("b", 64)], ["a"], in_place=["a"])
    b.node([("c", 64)], ["a", "b"])
    plan = lower(b, ["c"], [0, 1, 2])
    assert check_plan(plan).ok
    steps = row(plan.steps, 1, note="in place of a")
    assert str(check_plan(replace_fields(plan, steps=steps)).faults[0]) == (
        "$.steps[2]: node c needs a, which is not live here: $.steps[1] overwrote it"
    )


def test_a_lost_output_is_a_fault_of_the_end() -> None:
    plan = training_plan()
    steps = (*plan.steps, PlanStep("free", "loss"))
    assert [str(f) for f in check_plan(replace_fields(plan, steps=steps)).faults] == [
        "$.steps: graph output loss is not live at the end"
    ]


def test_tables_without_sense_are_faults_too() -> None:
    plan = training_plan()
    report = check_plan(replace_fields(plan, tensors=row(plan.tensors, 3, size_bytes=100)))
    assert [str(f) for f in report.faults] == ["$.tensors[3][1]: 100 bytes are no multiple of the alignment, 64"]
    huge = tuple(replace_fields(t, size_bytes=2**60) if t.kind == "activation" else t for t in plan.tensors)
    assert check_plan(replace_fields(plan, tensors=huge)).faults[0].where == "$.tensors"


def test_a_table_order_that_is_no_schedule_is_a_fault() -> None:
    """The table has W's update before a node that reads W; the steps do not."""
    b = Builder()
    b.resident("W", 64)
    b.node([("a", 64)], ["W"])
    b.node([("W/new", 64)], ["W", "a"], once=True)
    b.node([("c", 64)], ["W"])
    plan = lower(b, ["c"], [0, 2, 1])
    assert check_plan(plan).ok
    tensors = row(plan.tensors, 2, kind="state of W", size_bytes=0)
    report = check_plan(replace_fields(plan, tensors=tensors))
    assert [str(f) for f in report.faults] == [
        "$.nodes: the nodes in the order of the table are no schedule: node W/new overwrites a state that node c has"
        " yet to read"
    ]


def test_workspace_per_step_counts_live_bytes() -> None:
    plan = replace_fields(training_plan(), costs=PER_STEP)
    report = check_plan(plan)
    assert report.predicted is not None
    # conv: 3008 + its workspace of 1170; the peak stays at the step of dwide.
    assert report.predicted.fixed_bytes == 1024 + 512 + 64
    assert report.predicted.peak_bytes == 1600 + 12800
    fixed = replace_fields(plan, predicted=report.predicted)
    assert check_plan(fixed).ok


def test_another_model_is_named() -> None:
    plan = training_plan()
    assert check_model(plan, "a0" * 32, "b0" * 32) == CheckReport()
    report = check_model(plan, "ff" * 32, "b0" * 32)
    assert [str(f) for f in report.faults] == [
        "$.model.graph_sha256: the plan was made for another model: for net.onnx with batch=8 seq=3, graph"
        " a0a0a0a0a0a0, not graph ffffffffffff"
    ]
    other_weights = check_model(plan, "a0" * 32, "ee" * 32)
    assert other_weights.ok
    assert len(other_weights.notes) == 1


def test_plans_without_in_place_nodes_pass_against_a_model_that_has_them() -> None:
    builder = training_step()
    problem = builder.build(TRAINING_OUTPUTS)
    builder.nodes = [replace(node, in_place_inputs=()) for node in builder.nodes]
    plan = lower(builder, TRAINING_OUTPUTS, range(10))
    assert check_tables(plan, problem).ok


def test_totals_are_compared() -> None:
    plan = training_plan()
    problem = training_step().build(TRAINING_OUTPUTS)
    where = [f.where for f in check_tables(plan, replace(problem, alignment=256, fixed_bytes=5, outputs=(9,))).faults]
    assert where == ["$.outputs", "$.device.alignment", "$.tensors"]


def test_failure_is_an_error_with_exit_code_1() -> None:
    plan = training_plan()
    report = check_plan(fields(plan, predicted__recomputed=3, budget_bytes=1))
    with pytest.raises(CheckFailed) as error:
        report.raise_faults("net.plan.json")
    assert error.value.exit_code == 1
    assert error.value.message == (
        "net.plan.json: $.predicted.recomputed: predicted.recomputed says 3 but the replay finds 2 (and 1 more fault)"
    )
    assert error.value.hint == "remat check net.plan.json lists all faults"


def damaged(data: st.DataObject, plan: Plan) -> bytes:
    """The plan's file with one line changed: dropped, doubled, moved, or with one number, name or letter altered."""
    lines = dump_plan(plan).split(b"\n")
    k = data.draw(st.integers(0, len(lines) - 1))
    match data.draw(st.sampled_from(["drop", "double", "move", "number", "name", "letter"])):
        case "drop":
            del lines[k]
        case "double":
            lines.insert(k, lines[k])
        case "move":
            lines.insert(data.draw(st.integers(0, len(lines) - 2)), lines.pop(k))
        case "number":
            digits = [j for j, letter in enumerate(lines[k]) if chr(letter).isdigit()]
            assume(digits)
            j = data.draw(st.sampled_from(digits))
            lines[k] = lines[k][:j] + b"%d" % data.draw(st.integers(0, 99)) + lines[k][j + 1 :]
        case "name":
            names = [t.id.encode() for t in plan.tensors if t.id.encode() in lines[k]]
            assume(names)
            other = data.draw(st.sampled_from([t.id.encode() for t in plan.tensors]))
            lines[k] = lines[k].replace(data.draw(st.sampled_from(names)), other, 1)
        case _:
            assume(lines[k])
            j = data.draw(st.integers(0, len(lines[k]) - 1))
            lines[k] = lines[k][:j] + data.draw(st.binary(max_size=2)) + lines[k][j + 1 :]
    return b"\n".join(lines)


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_no_single_line_changes_the_meaning_unnoticed(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES))
    plan = case[0]
    try:
        changed = parse_plan(damaged(data, plan), "plan.json")
    except InputError:
        return
    if faults(changed, case):
        return
    # Row order, and names of devices, are no meaning; other legal steps with the same figures are another true plan.
    assert sorted(map(repr, changed.tensors)) == sorted(map(repr, plan.tensors))
    assert sorted(map(repr, changed.nodes)) == sorted(map(repr, plan.nodes))
    assert changed.outputs == plan.outputs
    assert changed.predicted == plan.predicted
    assert changed.device.alignment == plan.device.alignment
    peak, cost, recomputed = plain_replay(json.loads(dump_plan(changed)))
    found = changed.predicted
    assert (peak, cost, recomputed) == (found.live_peak_bytes, found.compute_ns, found.recomputed)
