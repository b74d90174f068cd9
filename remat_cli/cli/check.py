"""``remat check``: is a plan true?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from remat_cli.cli import options as opt
from remat_cli.cli.plan_text import percent_text, size_text
from remat_cli.units import Percent, format_ns

if TYPE_CHECKING:
    from remat_cli.cli.console import Terminal
    from remat_cli.plan.check import CheckReport
    from remat_cli.plan.types import Plan
    from remat_cli.reporter import Reporter


@click.command(
    "check",
    cls=opt.RematCommand,
    examples=(
        "remat check model.plan.json",
        "remat check model.plan.json --model model.onnx --budget 8GiB",
        "remat check model.plan.json --format json",
    ),
)
@click.argument("path", metavar="PLAN", type=click.Path(path_type=Path))
@click.option(
    "--model", type=click.Path(path_type=Path), metavar="FILE",
    help="The model (or problem file) of the plan [default: beside the plan or in the current folder, if it is there].",
)  # fmt: skip
@click.option("--budget", type=opt.BudgetType(), metavar="SIZE", help="Another budget to hold the peak against.")
@opt.inputs_option
@opt.quiet_option
@opt.common_options()
def command(
    path: Path, model: Path | None, budget: int | Percent | None, inputs: Path | None, format: str, quiet: bool
) -> None:
    """Replay PLAN with code that no solver shares: legal steps, true figures, the peak within the budget, the right
    model. Status 1 when anything is wrong."""
    from remat_cli.cli.console import Terminal
    from remat_cli.plan.check import check_plan
    from remat_cli.plan.files import load_plan

    terminal = Terminal(json_output=format == "json", quiet=quiet)
    plan = load_plan(path)
    report = check_plan(plan, budget_bytes=_bytes(budget, plan))
    found = model or _beside(path, plan)
    if found is None:
        terminal.note(f"{plan.model.file} is not here, so the plan was not held against its model")
    else:
        report += _against_model(plan, found, inputs, terminal.reporter)
    for note in report.notes:
        terminal.note(note)
    if terminal.json_output:
        terminal.json(_json(report, found))
    elif not quiet:
        _print(terminal, path, plan, report, found)
    report.raise_faults(path.name, "make the plan anew: remat solve " + plan.model.file)


def _bytes(budget: int | Percent | None, plan: Plan) -> int | None:
    """The budget in bytes; a percent is of the plan's own store-all peak, as in ``remat solve``."""
    if not isinstance(budget, Percent):
        return budget
    fixed = plan.predicted.fixed_bytes
    return fixed + budget.of(plan.predicted.store_all_peak_bytes - fixed)


def _beside(path: Path, plan: Plan) -> Path | None:
    candidates = (path.parent / plan.model.file, Path(plan.model.file))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _against_model(plan: Plan, model: Path, inputs: Path | None, reporter: Reporter) -> CheckReport:
    """Compare hashes, then, for the right model, every row of the plan's tables."""
    from remat_cli import pipeline
    from remat_cli.model.lower import resident_bytes
    from remat_cli.plan.check import check_model, check_tables
    from remat_cli.plan.convert import costs_of_plan

    source = pipeline.load_source(model, plan.model.dims, opt.feeds_of(inputs), reporter)
    now = pipeline.plan_model(source)
    same = check_model(plan, now.graph_sha256, now.weights_sha256)
    if not same.ok:
        return same
    node_costs = costs_of_plan(plan)
    costs = pipeline.Costs(node_costs, plan.costs, plan.device)
    problem = pipeline.problem_for(source, costs)
    if source.graph is None:
        return same + check_tables(plan, problem)
    residents = resident_bytes(source.graph, problem.alignment)
    return same + check_tables(plan, problem, node_costs=node_costs, resident_bytes=residents)


def _json(report: CheckReport, model: Path | None) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "model": None if model is None else model.name,
        "faults": [{"where": fault.where, "message": fault.message} for fault in report.faults],
        "notes": list(report.notes),
        "predicted": msgspec.to_builtins(report.predicted),
    }


def _print(terminal: Terminal, path: Path, plan: Plan, report: CheckReport, model: Path | None) -> None:
    for fault in report.faults:
        terminal.line(f"{fault.where}: {fault.message}")
    if not report.ok or report.predicted is None:
        return
    found = report.predicted
    terminal.facts(
        [
            ("plan", f"{path.name}: {len(plan.steps)} legal steps, all figures true"),
            ("model", model.name if model is not None else "not compared"),
            ("budget", size_text(plan.budget_bytes)),
            (
                "peak",
                f"{size_text(found.peak_bytes)}, {percent_text(found.peak_bytes, plan.budget_bytes)} of the budget",
            ),
            (
                "cost",
                f"{format_ns(found.compute_ns)}, {percent_text(found.compute_ns, found.store_all_ns)} of store-all",
            ),
        ]
    )
