"""Differences between plans: what counts, what does not, and how it is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import Builder, lower, random_problem, random_sequence, replace_fields, training_plan

from remat_cli.errors import FileFormatError, InputError
from remat_cli.plan.check import check_model, check_plan
from remat_cli.plan.diff import Recompute, diff_plans
from remat_cli.plan.files import dump_plan, parse_plan
from remat_cli.plan.types import Plan, PlanStep
from remat_cli.report.plan_diff import diff_json, diff_markdown, diff_text


def forward_chain() -> Plan:
    """The plan of the schematic trial cases: F0, F1, free f0, F2, here with real figures."""
    b = Builder()
    b.resident("x", 1024, "input")
    for k, (name, size) in enumerate((("f0", 1024), ("f1", 1024), ("f2", 512))):
        b.node([(name, size)], [f"f{k - 1}" if k else "x"], name=f"F{k}", op_type="Gemm", cost=1000)
    return lower(b, ["f1", "f2"], [0, 1, 2])


def read(document: object) -> Plan:
    return parse_plan(json.dumps(document).encode(), "b.json")


def document() -> Any:
    return json.loads(dump_plan(forward_chain()))


def turned(value: Any) -> Any:
    """The document with all keys in reverse order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(item) for item in value] if isinstance(value, list) else value


def test_steps_of_the_reference_plan() -> None:
    assert [step[:2] for step in document()["steps"]] == [
        ["compute", "F0"], ["compute", "F1"], ["free", "f0"], ["compute", "F2"],
    ]  # fmt: skip


def test_other_key_order_is_no_difference() -> None:
    diff = diff_plans(forward_chain(), read(turned(document())))
    assert (diff.differs, diff.empty) == (False, True)
    assert diff_text(diff) == "no difference\n"


def test_other_folders_and_unknown_fields_are_no_difference() -> None:
    other = document()
    other["model"]["file"] = "/home/u/ci/123/net.onnx"
    other["created"] = "2026-01-01T00:00:00Z"
    assert diff_plans(forward_chain(), read(other)).empty
    for word in (b"/home", b"created", b"2026"):
        assert word not in dump_plan(read(other))


def test_order_of_rows_is_no_difference() -> None:
    other = document()
    other["tensors"].reverse()
    assert diff_plans(forward_chain(), read(other)).empty


def test_steps_in_another_order_are_a_difference() -> None:
    other = document()
    steps = other["steps"]
    steps[2], steps[3] = steps[3], steps[2]
    later = read(other)
    diff = diff_plans(forward_chain(), later)
    assert diff.differs
    assert sum(len(edit.a) for edit in diff.steps) == sum(len(edit.b) for edit in diff.steps) == 1
    assert "compute F2" in diff_text(diff)
    # The peak is another: f0, f1 and f2 are live in F2's step.
    report = check_plan(later)
    assert report.predicted is not None
    assert report.predicted.live_peak_bytes == 2560
    assert diff_plans(forward_chain(), replace_fields(later, predicted=report.predicted)).predicted


def test_use_after_free_is_refused_by_check() -> None:
    other = document()
    other["steps"][1:3] = [["free", "f0"], ["compute", "F1"]]
    assert [str(fault) for fault in check_plan(read(other)).faults] == [
        "$.steps[2]: node F1 needs f0, which is not live here: $.steps[1] freed it"
    ]


def test_a_plan_for_another_model_is_refused() -> None:
    other = document()
    other["model"]["graph_sha256"] = "f" * 64
    report = check_model(read(other), "a0" * 32, "b0" * 32)
    assert "the plan was made for another model" in str(report.faults[0])
    diff = diff_plans(forward_chain(), read(other))
    assert [(c.field, c.counts) for c in diff.header] == [("model.graph_sha256", True)]


def test_a_future_format_is_refused() -> None:
    other = {**document(), "format_version": "999.0"}
    with pytest.raises(FileFormatError, match="this is plan format 999, and this remat reads format 1"):
        read(other)


def test_a_key_that_is_given_twice_is_refused() -> None:
    text = json.dumps(document())[:-1] + ', "steps": []}'
    with pytest.raises(FileFormatError, match='the key "steps" is given twice'):
        parse_plan(text.encode(), "b.json")


def test_half_a_document_is_refused_with_its_place() -> None:
    with pytest.raises(FileFormatError, match=r"b\.json: line 1, column 6: not JSON"):
        parse_plan(b"[1, 2", "b.json")


def test_other_weights_are_told_but_do_not_count() -> None:
    other = document()
    other["model"]["weights_sha256"] = "e" * 64
    diff = diff_plans(forward_chain(), read(other))
    assert (diff.differs, diff.empty) == (False, False)
    assert diff_text(diff).startswith("no difference that matters\n")
    assert "model.weights_sha256" in diff_text(diff)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("budget_bytes", 10**6), ("outputs", ["f2"]), ("format_version", "1.3"), ("model.dims", {"batch": 9}),
        ("model.optimize", "basic"), ("device.threads", 2), ("costs.sha256", "d" * 64), ("solver.seed", 1),
        ("solver.method", "hold"), ("solver.lower_bound_ns", 5), ("predicted.peak_bytes", 1),
    ],
)  # fmt: skip
def test_header_fields_count(field: str, value: object) -> None:
    other = document()
    head, _, key = field.partition(".")
    if key:
        other[head][key] = value
    else:
        other[head] = value
    diff = diff_plans(forward_chain(), read(other))
    assert diff.differs
    changed = [change.field for change in (*diff.header, *diff.predicted)]
    assert all(name.startswith(field) for name in changed)
    assert changed


def test_recomputes_are_counted_by_node() -> None:
    store_all, recomputed = training_plan(range(10)), training_plan()
    diff = diff_plans(store_all, recomputed)
    assert diff.recomputes == (Recompute("conv", 1, 2), Recompute("relu", 1, 2))
    assert {(c.field, c.a, c.b) for c in diff.predicted} == {
        ("predicted.peak_bytes", 18624, 15616),
        ("predicted.live_peak_bytes", 15808, 12800),
        ("predicted.arena_bytes", 15808, 12800),
        ("predicted.compute_ns", 2365, 3285),
        ("predicted.recomputed", 0, 2),
    }
    by_name = {c.field: c.change_pct for c in diff.predicted}
    assert by_name["predicted.compute_ns"] == pytest.approx(100 * 920 / 2365)
    assert by_name["predicted.recomputed"] is None
    assert diff.tensors == diff.nodes == ()


def test_tolerance_is_for_figures_that_costs_move() -> None:
    other = document()
    for node in other["nodes"]:
        node[4] += 40
    other["costs"]["sha256"] = "d" * 64
    for part, key in (("solver", "cost_ns"), ("predicted", "compute_ns"), ("predicted", "store_all_ns")):
        other[part][key] = 3120
    slower = read(other)
    assert check_plan(slower).ok
    assert diff_plans(forward_chain(), slower).differs
    assert diff_plans(forward_chain(), slower, 3.9).differs
    diff = diff_plans(forward_chain(), slower, 4)
    assert (diff.differs, diff.empty) == (False, False)
    assert diff_text(diff).startswith("no difference beyond the tolerance of 4 %\n")
    assert not diff_plans(slower, forward_chain(), 4).differs


def test_sizes_and_steps_have_no_tolerance() -> None:
    other = document()
    other["tensors"][1][1] += 64
    assert diff_plans(forward_chain(), read(other), 50).differs
    fewer = replace_fields(forward_chain(), steps=forward_chain().steps[:-1])
    assert diff_plans(forward_chain(), fewer, 50).differs


@pytest.mark.parametrize("tolerance", [-1, float("nan"), float("inf")])
def test_odd_tolerances_are_refused(tolerance: float) -> None:
    with pytest.raises(InputError, match="has no meaning"):
        diff_plans(forward_chain(), forward_chain(), tolerance)


def test_rows_are_compared_by_id() -> None:
    other = document()
    other["tensors"][1][1] = 1088
    other["tensors"].append(["w", 64, "weight"])
    other["nodes"][1][1] = "Conv"
    diff = diff_plans(forward_chain(), read(other))
    assert [(r.id, r.field, r.a, r.b) for r in diff.tensors] == [
        ("f0", "size_bytes", 1024, 1088),
        ("w", "", None, "weight, 64 bytes"),
    ]
    assert [(r.id, r.field, r.a, r.b) for r in diff.nodes] == [("F1", "op_type", "Gemm", "Conv")]
    back = diff_plans(read(other), forward_chain())
    assert ("w", "", "weight, 64 bytes", None) in [(r.id, r.field, r.a, r.b) for r in back.tensors]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20))
def test_edits_turn_one_plan_into_the_other(seed: int, size: int) -> None:
    builder, outputs = random_problem(seed, size)
    problem = builder.build(outputs)
    a = lower(builder, outputs, range(len(problem.nodes)))
    b = lower(builder, outputs, random_sequence(problem, seed, 0.5))
    diff = diff_plans(a, b)
    steps = list(a.steps)
    for edit in reversed(diff.steps):
        assert tuple(steps[edit.a_start : edit.a_start + len(edit.a)]) == edit.a
        assert b.steps[edit.b_start : edit.b_start + len(edit.b)] == edit.b
        steps[edit.a_start : edit.a_start + len(edit.a)] = edit.b
    assert tuple(steps) == b.steps
    assert diff.differs == (a != b)
    assert diff_plans(a, a).empty
    assert json.loads(json.dumps(diff_json(diff))) == diff_json(diff)
    assert diff_text(diff)
    assert diff_markdown(diff)


def test_text() -> None:
    text = diff_text(diff_plans(training_plan(range(10)), training_plan()), ("old.json", "new.json"))
    assert (
        text
        == """\
old.json and new.json differ

predicted
                          old.json         new.json    change
  peak_bytes       18624 (18.6 KB)  15616 (15.6 KB)  -16.15 %
  live_peak_bytes  15808 (15.8 KB)  12800 (12.8 KB)  -19.03 %
  arena_bytes      15808 (15.8 KB)  12800 (12.8 KB)  -19.03 %
  compute_ns         2365 (2.4 us)    3285 (3.3 us)  +38.90 %
  recomputed                     0                2

header
                  old.json         new.json         change
  budget_bytes    18624 (18.6 KB)  15616 (15.6 KB)  -16.15 %
  solver.cost_ns  2365 (2.4 us)    3285 (3.3 us)    +38.90 %

computed more or less often
  node  old.json  new.json  change
  conv         1         2      +1
  relu         1         2      +1

steps: 0 removed, 3 added
  @@ $.steps[3] -> $.steps[3] @@
  + free relu
  @@ $.steps[11] -> $.steps[12] @@
  + compute conv
  + compute relu (in place of conv)
"""
    )


def test_json() -> None:
    diff = diff_json(diff_plans(training_plan(range(10)), training_plan(), 1.5))
    assert list(diff) == ["differs", "tolerance_pct", "header", "predicted", "tensors", "nodes", "recomputed", "steps"]
    assert diff["differs"] is True
    assert diff["predicted"]["peak_bytes"] == {"a": 18624, "b": 15616, "change_pct": -16.1512, "counts": True}
    assert diff["recomputed"] == {"conv": {"a": 1, "b": 2}, "relu": {"a": 1, "b": 2}}
    assert diff["steps"][1]["b"] == [["compute", "conv"], ["compute", "relu", "in place of conv"]]


def test_markdown() -> None:
    text = diff_markdown(diff_plans(training_plan(range(10)), training_plan()), ("a_1.json", "b|2.json"))
    assert text.startswith("**a\\_1.json and b\\|2.json differ**\n")
    assert "| peak\\_bytes | 18624 (18.6 KB) | 15616 (15.6 KB) | -16.15 % |" in text
    assert "```diff\n@@ $.steps[3] -> $.steps[3] @@\n+ free relu\n" in text


def test_odd_names_are_cut_and_tamed_in_text_alone() -> None:
    name = "\x1b[31m```|evil\n" + "n" * 5250
    b = Builder()
    b.resident("x", 64, "input")
    b.node([(name, 64)], ["x"])
    one = lower(b, [name], [0])
    two = lower(b, [name], [0, 0])
    diff = diff_plans(one, two)
    text = diff_text(diff)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 200
    assert "\\x1b[31m" in text
    markdown = diff_markdown(diff)
    assert "````diff" in markdown
    assert "\x1b" not in markdown
    assert diff_json(diff)["recomputed"] == {name: {"a": 1, "b": 2}}


def test_long_differences_are_cut_in_text_alone() -> None:
    b = Builder()
    b.resident("x", 64, "input")
    for k in range(100):
        b.node([(f"n{k}", 64)], ["x"])
    names = [f"n{k}" for k in range(100)]
    one, two = lower(b, names, range(100)), lower(b, names, [v for k in range(100) for v in (k, k)])
    text = diff_text(diff_plans(one, two))
    assert "  and 80 more" in text
    assert "more lines" in text
    assert len(text.splitlines()) < 100
    assert len(diff_json(diff_plans(one, two))["recomputed"]) == 100


def test_plans_of_different_models() -> None:
    diff = diff_plans(training_plan(), forward_chain())
    assert diff.differs
    assert diff_text(diff)
    assert {r.node: (r.a, r.b) for r in diff.recomputes}["F0"] == (0, 1)


def test_empty_plans() -> None:
    empty = replace_fields(forward_chain(), steps=())
    diff = diff_plans(empty, replace_fields(empty, steps=(PlanStep("compute", "F0"),)))
    assert [(edit.a, len(edit.b)) for edit in diff.steps] == [((), 1)]
