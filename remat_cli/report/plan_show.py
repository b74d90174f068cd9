"""What a plan promises, for people: figures, the course of memory, what is live at the peak, what is recomputed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from remat_cli.errors import CheckFailed
from remat_cli.memory import Compute, IllegalStepError, Step, Timeline, replay
from remat_cli.plan.convert import problem_of, steps_of_plan
from remat_cli.plan.types import Plan
from remat_cli.problem import Problem
from remat_cli.report.text import Table, shown, sparkline, table_lines
from remat_cli.units import format_bytes, format_ns

MOST_ROWS = 10


@dataclass(frozen=True)
class LiveTensor:
    """A storage that counts in the step of the peak. `made_in`: index of the step that made it."""

    id: str
    size_bytes: int
    kind: str
    made_in: int


@dataclass(frozen=True)
class RecomputedNode:
    """A node that runs `times` more often than once, for `extra_ns` in all."""

    id: str
    op_type: str
    times: int
    extra_ns: int


@dataclass(frozen=True)
class PlanView:
    """A plan and what its replay shows. `at_peak` comes largest first, `recomputed` dearest first."""

    plan: Plan
    timeline: Timeline
    at_peak: tuple[LiveTensor, ...]
    recomputed: tuple[RecomputedNode, ...]


def show_plan(plan: Plan) -> PlanView:
    """Replay `plan` for a report. CheckFailed when a step is illegal; that the figures are true is `check`'s to say."""
    problem = problem_of(plan)
    steps = steps_of_plan(plan, problem)
    try:
        timeline = replay(problem, steps)
    except IllegalStepError as error:
        where = "$.steps" if error.step == len(steps) else f"$.steps[{error.step}]"
        raise CheckFailed(f"the plan for {plan.model.file} is illegal: {where}: {error.reason}") from error
    return PlanView(plan, timeline, _live_at(problem, steps, timeline.peak_step), _recomputed(problem, steps))


def facts(view: PlanView) -> list[tuple[str, str]]:
    """(name, value) lines for the head of a report."""
    plan, predicted, solver = view.plan, view.plan.predicted, view.plan.solver
    dims = "".join(f", {name}={size}" for name, size in plan.model.dims.items())
    asked = f" (asked: {solver.asked})" if solver.asked != solver.method else ""
    lines = [
        ("model", shown(plan.model.file) + dims),
        ("device", f"{plan.device.name}, {plan.device.threads} thread{'s' if plan.device.threads > 1 else ''}"),
        ("costs", f"{plan.costs.source} {shown(plan.costs.file)}, workspace {plan.costs.workspace}"),
        ("method", f"{solver.method}{asked}, {solver.status}, {solver.scope}"),
        ("budget", _size(plan.budget_bytes)),
        ("peak", f"{_size(predicted.peak_bytes)}, {_share(predicted.peak_bytes, predicted.store_all_peak_bytes)} of"
         f" store-all's {format_bytes(predicted.store_all_peak_bytes)}"),
        ("fixed", f"{_size(predicted.fixed_bytes)}, of it workspace {format_bytes(predicted.workspace_bytes)}"
         if plan.costs.workspace != "per step" else _size(predicted.fixed_bytes)),
        ("arena", f"{_size(predicted.arena_bytes)}, live peak {format_bytes(predicted.live_peak_bytes)}"),
        ("time", f"{format_ns(predicted.compute_ns)}, {_share(predicted.compute_ns, predicted.store_all_ns)} of"
         f" store-all's {format_ns(predicted.store_all_ns)}"),
        ("steps", f"{len(plan.steps)}: {len(plan.nodes)} nodes and {predicted.recomputed} recomputes"),
    ]  # fmt: skip
    if solver.lower_bound_ns is not None:
        lines.append(
            ("bound", f"no schedule within the budget is proved to take less than {format_ns(solver.lower_bound_ns)}")
        )
    return lines


def tables(view: PlanView, most_rows: int = MOST_ROWS) -> list[Table]:
    """What is live at the peak, and what is recomputed, cut to `most_rows` each."""
    peak = [
        (
            shown(t.id),
            format_bytes(t.size_bytes),
            _share(t.size_bytes, view.timeline.peak_bytes),
            t.kind,
            f"$.steps[{t.made_in}]",
        )
        for t in view.at_peak[:most_rows]
    ]
    again = [
        (shown(n.id), shown(n.op_type, 24), str(n.times), format_ns(n.extra_ns)) for n in view.recomputed[:most_rows]
    ]
    return [
        Table(
            f"live at the peak, in {peak_text(view)}", ("tensor", "bytes", "share", "kind", "made in"), tuple(peak),
            (1, 2), max(0, len(view.at_peak) - most_rows),
        ),
        Table(
            "recomputed", ("node", "operator", "times", "extra"), tuple(again),
            (2, 3), max(0, len(view.recomputed) - most_rows),
        ),
    ]  # fmt: skip


def peak_text(view: PlanView) -> str:
    """The step of the peak, such as ``$.steps[12] (compute conv1)``."""
    if not view.plan.steps:
        return "an empty plan"
    step = view.plan.steps[view.timeline.peak_step]
    return f"$.steps[{view.timeline.peak_step}] ({step.action} {shown(step.target)})"


def show_text(view: PlanView, width: int = 60, *, ascii_only: bool = False) -> str:
    """The whole report as plain text, ending in a newline. `width`: columns of the sparkline."""
    lines = [f"{name:<8}{value}" for name, value in facts(view)]
    if view.timeline.step_bytes:
        line = sparkline(view.timeline.step_bytes, width, ascii_only=ascii_only)
        lines += ["", f"live bytes, step by step (top: {format_bytes(view.timeline.peak_bytes)})", f"  {line}"]
    for table in tables(view):
        lines += ["", *table_lines(table)] if table.rows else []
    return "\n".join(lines) + "\n"


def show_json(view: PlanView) -> dict[str, Any]:
    """The same as JSON values, nothing cut; header objects and key names are the plan file's own."""
    plan = view.plan
    headers = ("model", "device", "costs", "budget_bytes", "solver", "predicted")
    return {
        **{name: msgspec.to_builtins(getattr(plan, name)) for name in headers},
        "nodes": len(plan.nodes),
        "steps": len(plan.steps),
        "peak_step": view.timeline.peak_step if plan.steps else None,
        "step_bytes": list(view.timeline.step_bytes),
        "at_peak": [
            {"id": t.id, "size_bytes": t.size_bytes, "kind": t.kind, "made_in": t.made_in} for t in view.at_peak
        ],
        "recomputed": [
            {"id": n.id, "op_type": n.op_type, "times": n.times, "extra_ns": n.extra_ns} for n in view.recomputed
        ],
    }


def _live_at(problem: Problem, steps: Sequence[Step], last: int) -> tuple[LiveTensor, ...]:
    """Storages that count during step `last` of a legal schedule; empty ones are left out."""
    made_in: dict[int, int] = {}
    for k, step in enumerate(steps[: last + 1]):
        if isinstance(step, Compute):
            if step.in_place_of is not None:
                del made_in[problem.root[step.in_place_of]]
            for t in problem.nodes[step.node].outputs:
                made_in.setdefault(t, k)
        else:
            del made_in[step.tensor]
    rows = [problem.tensors[t] for t in made_in]
    live = [LiveTensor(t.id, t.size_bytes, t.kind, k) for t, k in zip(rows, made_in.values(), strict=True)]
    return tuple(sorted((t for t in live if t.size_bytes), key=lambda t: (-t.size_bytes, t.made_in, t.id)))


def _recomputed(problem: Problem, steps: Sequence[Step]) -> tuple[RecomputedNode, ...]:
    computes = Counter(step.node for step in steps if isinstance(step, Compute))
    again = [(problem.nodes[v], times - 1) for v, times in computes.items() if times > 1]
    rows = [RecomputedNode(node.id, node.op_type, times, times * node.cost_ns) for node, times in again]
    return tuple(sorted(rows, key=lambda row: (-row.extra_ns, -row.times, row.id)))


def _size(size: int) -> str:
    return f"{size} bytes ({format_bytes(size)})" if size >= 1000 else f"{size} bytes"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
