"""``remat show``: a plan for people."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remat_cli.cli import options as opt
from remat_cli.cli.plan_text import plan_facts, plan_summary
from remat_cli.units import format_bytes, format_ns

if TYPE_CHECKING:
    from remat_cli.cli.console import Terminal
    from remat_cli.plan.types import Plan

_MOST_ROWS = 20


@click.command(
    "show",
    cls=opt.RematCommand,
    examples=(
        "remat show model.plan.json",
        "remat show model.plan.json --steps",
        "remat show model.plan.json --format json",
    ),
)
@click.argument("path", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("--steps", is_flag=True, help="List every step with the bytes that are live in it.")
@opt.common_options
def command(path: Path, steps: bool, format: str) -> None:
    """Print what PLAN promises, what it recomputes, and what is live at its peak."""
    from remat_cli.cli.console import Terminal
    from remat_cli.plan.files import load_plan

    terminal = Terminal(json_output=format == "json")
    plan = load_plan(path)
    content = contents_of(plan, steps=steps)
    if terminal.json_output:
        terminal.json(content)
    else:
        _print(terminal, plan, content)


def contents_of(plan: Plan, *, steps: bool) -> dict[str, Any]:
    """What ``show`` tells, as JSON values. Raises CheckFailed when a step of the plan is illegal.

    `recomputed`: node -> number of extra computes. `at_peak`: the tensors that are live in the step of the peak, with
    their bytes, largest first. `steps`: (action, target, note, live bytes during the step).
    """
    from remat_cli.errors import CheckFailed
    from remat_cli.memory import IllegalStepError, replay
    from remat_cli.plan.convert import problem_of, steps_of_plan

    problem = problem_of(plan)
    schedule = steps_of_plan(plan, problem)
    try:
        timeline = replay(problem, schedule)
    except IllegalStepError as fault:
        raise CheckFailed(f"{plan.model.file}: the plan is illegal: {fault}") from None
    computes = Counter(step.target for step in plan.steps if step.action == "compute")
    content = plan_summary(plan)
    content["recomputed"] = {node.id: computes[node.id] - 1 for node in plan.nodes if computes[node.id] > 1}
    if plan.steps:
        peak = plan.steps[timeline.peak_step]
        content["peak_step"] = [peak.action, peak.target]
    content["at_peak"] = _live_at(plan, timeline.peak_step)
    if steps:
        content["steps"] = [
            [step.action, step.target, step.note, live]
            for step, live in zip(plan.steps, timeline.step_bytes, strict=True)
        ]
    return content


def _live_at(plan: Plan, last: int) -> dict[str, int]:
    """Tensor -> bytes of the storages that count in step `last`, largest first."""
    sizes = {tensor.id: tensor.size_bytes for tensor in plan.tensors}
    outputs = {node.id: node.outputs for node in plan.nodes}
    owner = {t.id: t.kind.removeprefix("view of ") for t in plan.tensors if t.kind.startswith("view of ")}
    live: set[str] = set()
    for step in plan.steps[: last + 1]:
        if step.action == "free":
            live.discard(step.target)
            continue
        if step.note:
            taken = step.note.removeprefix("in place of ")
            live.discard(owner.get(taken, taken))
        live.update(outputs[step.target])
    return {name: sizes[name] for name in sorted(live, key=lambda name: (-sizes[name], name)) if sizes[name]}


def _print(terminal: Terminal, plan: Plan, content: dict[str, Any]) -> None:
    dims = "".join(f", {name}={size}" for name, size in plan.model.dims.items())
    terminal.facts(
        [("model", plan.model.file + dims), ("device", f"{plan.device.name}, {plan.device.threads} threads")]
    )
    terminal.facts([("costs", f"{plan.costs.source} {plan.costs.file}"), *plan_facts(plan)])
    op_types = {node.id: (node.op_type, node.cost_ns) for node in plan.nodes}
    extra = sorted(content["recomputed"].items(), key=lambda item: -item[1] * op_types[item[0]][1])
    if extra:
        rows = [(name, op_types[name][0], times, format_ns(times * op_types[name][1])) for name, times in extra]
        terminal.line()
        terminal.table(("recomputed node", "operator", "times", "cost"), rows[:_MOST_ROWS], right=("times", "cost"))
        _more(terminal, len(rows))
    if content["at_peak"]:
        rows = [(name, format_bytes(size)) for name, size in content["at_peak"].items()]
        terminal.line()
        terminal.line(f"live at the peak ({' '.join(content['peak_step'])}):", "bold")
        terminal.table(("tensor", "bytes"), rows[:_MOST_ROWS], right=("bytes",))
        _more(terminal, len(rows))
    if "steps" in content:
        rows = [(action, target, note, format_bytes(live)) for action, target, note, live in content["steps"]]
        terminal.line()
        terminal.table(("step", "of", "note", "live"), rows, right=("live",))


def _more(terminal: Terminal, rows: int) -> None:
    if rows > _MOST_ROWS:
        terminal.line(f"and {rows - _MOST_ROWS} more: --format json lists all")
