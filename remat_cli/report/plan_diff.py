"""A `PlanDiff` as text, Markdown or JSON. Tables are cut for people; JSON never is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat_cli.plan.diff import Change, PlanDiff, RowChange, StepEdit, Value
from remat_cli.plan.types import PlanPredicted, PlanStep
from remat_cli.report.text import Table, shown, table_lines
from remat_cli.units import format_bytes, format_ns

# Rows of one table, and lines of steps, that people get to see.
MOST_ROWS = 20
SAME = "no difference"
WITHIN = "no difference beyond the tolerance of {}%"


def diff_text(diff: PlanDiff, names: tuple[str, str] = ("a", "b")) -> str:
    """The difference as plain text, ending in a newline. `names`: how to call the two plans."""
    lines = [_verdict(diff, names)]
    for table in _tables(diff, names):
        lines += ["", *table_lines(table)] if table.rows else []
    if diff.steps:
        lines += ["", _steps_title(diff), *(f"  {line}" for line in _step_lines(diff.steps))]
    return "\n".join(lines) + "\n"


def diff_markdown(diff: PlanDiff, names: tuple[str, str] = ("a", "b")) -> str:
    """The same as Markdown, for comments on changes: tables, and steps as a diff block."""
    lines = [f"**{_escape(_verdict(diff, names))}**"]
    for table in _tables(diff, names):
        if table.rows:
            lines += ["", f"### {_escape(table.title)}", "", *_markdown_table(table)]
    if diff.steps:
        # Longer than any fence that a name could hold.
        body = _step_lines(diff.steps)
        fence = "`" * max(3, 1 + max(_longest_run(line) for line in body))
        lines += ["", f"### {_steps_title(diff)}", "", f"{fence}diff", *body, fence]
    return "\n".join(lines) + "\n"


def diff_json(diff: PlanDiff) -> dict[str, Any]:
    """The same as JSON values. Key names are the plan file's own; `predicted` has every field that changed.

    {"differs", "tolerance_pct", "header": {field: {"a", "b", "counts"}}, "predicted": {field: {"a", "b", "change_pct",
    "counts"}}, "tensors": [...], "nodes": [...], "recomputed": {node: {"a", "b"}}, "steps": [...]}
    """
    return {
        "differs": diff.differs,
        "tolerance_pct": diff.tolerance_pct,
        "header": {change.field: _change(change) for change in diff.header},
        "predicted": {_bare(change): _change(change) for change in diff.predicted},
        "tensors": [_row(change) for change in diff.tensors],
        "nodes": [_row(change) for change in diff.nodes],
        "recomputed": {change.node: {"a": change.a, "b": change.b} for change in diff.recomputes},
        "steps": [_edit(edit) for edit in diff.steps],
    }


def _verdict(diff: PlanDiff, names: tuple[str, str]) -> str:
    if diff.empty:
        return SAME
    if not diff.differs:
        return WITHIN.format(f"{diff.tolerance_pct:g} ") if diff.tolerance_pct else f"{SAME} that matters"
    return f"{shown(names[0])} and {shown(names[1])} differ"


def _tables(diff: PlanDiff, names: tuple[str, str]) -> list[Table]:
    a, b = shown(names[0], 30), shown(names[1], 30)
    columns = ("", a, b, "change")
    recomputes = [(shown(r.node), str(r.a), str(r.b), f"{r.b - r.a:+d}") for r in diff.recomputes]
    return [
        _table("predicted", columns, [_figure(change) for change in diff.predicted], (1, 2, 3)),
        _table("header", columns, [_figure(change) for change in diff.header], ()),
        _table("computed more or less often", ("node", a, b, "change"), recomputes, (1, 2, 3)),
        _table("tensors", ("tensor", "field", a, b, ""), [_row_cells(change) for change in diff.tensors], ()),
        _table("nodes", ("node", "field", a, b, ""), [_row_cells(change) for change in diff.nodes], ()),
    ]


def _table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], right: tuple[int, ...]) -> Table:
    return Table(title, columns, tuple(rows[:MOST_ROWS]), right, max(0, len(rows) - MOST_ROWS))


def _figure(change: Change) -> tuple[str, ...]:
    percent = change.change_pct
    text = "" if percent is None else f"{percent:+.2f} %"
    if not change.counts:
        text = f"{text} (does not count)".strip()
    name = _bare(change) if _bare(change) in PlanPredicted.__struct_fields__ else change.field
    return (shown(name), _value(change.field, change.a), _value(change.field, change.b), text)


def _row_cells(change: RowChange) -> tuple[str, ...]:
    field = change.field or ("only in the first" if change.b is None else "only in the second")
    return (
        shown(change.id), field, _value(change.field, change.a), _value(change.field, change.b),
        "" if change.counts else "(does not count)",
    )  # fmt: skip


def _value(field: str, value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return shown(", ".join(value) or "none", 40)
    if isinstance(value, int):
        if field.endswith("_bytes") and value >= 1000:
            return f"{value} ({format_bytes(value)})"
        if field.endswith("_ns") and value >= 1000:
            return f"{value} ({format_ns(value)})"
    return shown(str(value), 40)


def _steps_title(diff: PlanDiff) -> str:
    removed, added = sum(len(edit.a) for edit in diff.steps), sum(len(edit.b) for edit in diff.steps)
    return f"steps: {removed} removed, {added} added"


def _step_lines(edits: Sequence[StepEdit]) -> list[str]:
    lines: list[str] = []
    for edit in edits:
        lines.append(f"@@ $.steps[{edit.a_start}] -> $.steps[{edit.b_start}] @@")
        lines += [f"- {_step_text(step)}" for step in edit.a]
        lines += [f"+ {_step_text(step)}" for step in edit.b]
    if len(lines) <= 2 * MOST_ROWS:
        return lines
    return [*lines[: 2 * MOST_ROWS], f"... and {len(lines) - 2 * MOST_ROWS} more lines"]


def _step_text(step: PlanStep) -> str:
    return f"{step.action} {shown(step.target)}" + (f" ({shown(step.note)})" if step.note else "")


def _markdown_table(table: Table) -> list[str]:
    rule = ["---:" if c in table.right else "---" for c in range(len(table.columns))]
    rows = [table.columns, rule, *table.rows]
    lines = ["| " + " | ".join(text if row is rule else _escape(text) for text in row) + " |" for row in rows]
    return lines + ([f"\nand {table.left_out} more"] if table.left_out else [])


def _escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|~" else letter for letter in text)


def _longest_run(line: str) -> int:
    longest = run = 0
    for letter in line:
        run = run + 1 if letter == "`" else 0
        longest = max(longest, run)
    return longest


def _bare(change: Change) -> str:
    return change.field.partition(".")[2]


def _change(change: Change) -> dict[str, Any]:
    percent = change.change_pct
    return {
        "a": change.a,
        "b": change.b,
        "change_pct": None if percent is None else round(percent, 4),
        "counts": change.counts,
    }


def _row(change: RowChange) -> dict[str, Any]:
    return {"id": change.id, "field": change.field or None, "a": change.a, "b": change.b, "counts": change.counts}


def _edit(edit: StepEdit) -> dict[str, Any]:
    a, b = ([_step(step) for step in steps] for steps in (edit.a, edit.b))
    return {"a_start": edit.a_start, "a": a, "b_start": edit.b_start, "b": b}


def _step(step: PlanStep) -> list[str]:
    return [step.action, step.target, *([step.note] if step.note else [])]
