"""Reports on one plan: figures, sparkline, tables."""

from __future__ import annotations

import json

import pytest
from plan_cases import Builder, lower, replace_fields, training_plan

from remat_cli.errors import CheckFailed
from remat_cli.plan.types import PlanStep
from remat_cli.report.plan_show import LiveTensor, RecomputedNode, show_json, show_plan, show_text, tables
from remat_cli.report.text import Table, shown, sparkline, table_lines

TEXT = """\
model   net.onnx, batch=8, seq=3
device  cpu, 1 thread
costs   profile net.profile.json, workspace measured
method  greedy (asked: auto), feasible, live bytes
budget  15616 bytes (15.6 KB)
peak    15616 bytes (15.6 KB), 83.8 % of store-all's 18.6 KB
fixed   2816 bytes (2.8 KB), of it workspace 1.2 KB
arena   12800 bytes (12.8 KB), live peak 12.8 KB
time    3.3 us, 138.9 % of store-all's 2.4 us
steps   20: 10 nodes and 2 recomputes

live bytes, step by step (top: 12.8 KB)
  ▂▂▄▃▆▄▄█▄▆▅▂▄▄▄▂▂▁▁▁

live at the peak, in $.steps[7] (compute dwide)
  tensor   bytes   share  kind        made in
  wide    6.0 KB  47.0 %  activation  $.steps[4]
  dwide   6.0 KB  47.0 %  gradient    $.steps[7]
  mask     704 B   5.5 %  activation  $.steps[2]
  loss      64 B   0.5 %  activation  $.steps[6]

recomputed
  node  operator  times   extra
  conv  Conv          1  900 ns
  relu  Relu          1   20 ns
"""


def test_text() -> None:
    assert show_text(show_plan(training_plan())) == TEXT


def test_view() -> None:
    view = show_plan(training_plan())
    assert view.timeline.peak_step == 7
    assert sum(t.size_bytes for t in view.at_peak) == view.timeline.peak_bytes == 12800
    assert view.at_peak[0] == LiveTensor("wide", 6016, "activation", 4)
    assert view.recomputed == (RecomputedNode("conv", "Conv", 1, 900), RecomputedNode("relu", "Relu", 1, 20))


def test_json() -> None:
    plan = training_plan()
    content = show_json(show_plan(plan))
    assert json.loads(json.dumps(content)) == content
    assert content["predicted"]["peak_bytes"] == plan.predicted.peak_bytes
    assert (content["nodes"], content["steps"], content["peak_step"]) == (10, 20, 7)
    assert len(content["step_bytes"]) == 20
    assert content["recomputed"][0] == {"id": "conv", "op_type": "Conv", "times": 1, "extra_ns": 900}


def test_in_place_storages_count_once_at_the_peak() -> None:
    b = Builder()
    b.resident("x", 64, "input")
    b.node([("a", 640)], ["x"])
    b.node([("b", 640)], ["a"], in_place=["a"])
    b.node([("c", 64)], ["b"])
    view = show_plan(lower(b, ["c"], [0, 1, 2]))
    assert [(t.id, t.made_in) for t in view.at_peak] == [("b", 1), ("c", 2)]


def test_tables_are_cut_and_say_so() -> None:
    b = Builder()
    b.resident("x", 64, "input")
    names = ["n" * 5250 + str(k) for k in range(30)]
    for name in names:
        b.node([(name, 64)], ["x"])
    view = show_plan(lower(b, names, [*range(30), *range(30)]))
    live, recomputed = tables(view, 10)
    assert (len(live.rows), live.left_out) == (10, 20)
    assert (len(recomputed.rows), recomputed.left_out) == (10, 20)
    text = show_text(view)
    assert max(map(len, text.splitlines())) < 160
    assert "  and 20 more" in text
    assert show_json(view)["recomputed"][0]["id"] in names


def test_an_illegal_plan_is_refused() -> None:
    plan = training_plan()
    with pytest.raises(CheckFailed, match=r"net\.onnx is illegal: \$\.steps\[0\]: node relu needs conv"):
        show_plan(replace_fields(plan, steps=plan.steps[1:]))
    with pytest.raises(CheckFailed, match=r"is illegal: \$\.steps: graph output loss"):
        show_plan(replace_fields(plan, steps=(*plan.steps, PlanStep("free", "loss"))))


def test_a_plan_without_steps() -> None:
    b = Builder()
    b.resident("x", 64, "input")
    text = show_text(show_plan(lower(b, ["x"], [])))
    assert "steps   0: 0 nodes and 0 recomputes" in text
    assert "live" not in text.partition("steps")[2]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([0, 0], "▁▁"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([5, 1, 1, 1, 1, 9, 1, 1], "▄▁█▁"),
        ([2**70], "█"),
    ],
)
def test_sparkline(values: list[int], line: str) -> None:
    assert sparkline(values, 4 if len(line) == 4 else 60) == line


def test_sparkline_in_ascii() -> None:
    line = sparkline(range(8), ascii_only=True)
    assert line.isascii()
    assert len(set(line)) == 8


@pytest.mark.parametrize(
    ("name", "text"),
    [("conv", "conv"), ("a\nb", "a\\nb"), ("\x1b[0m", "\\x1b[0m"), ("0123456789abcdef", "0123...def"), ("é", "é")],
)
def test_names_in_cells(name: str, text: str) -> None:
    assert shown(name, 10) == text


def test_tables_align_columns() -> None:
    table = Table("sizes", ("name", "bytes"), (("a", "1000"), ("long", "1")), (1,), 3)
    assert table_lines(table) == ["sizes", "  name  bytes", "  a      1000", "  long      1", "  and 3 more"]
    assert table_lines(Table("none", ("a",), ())) == []
