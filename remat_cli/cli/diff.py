"""``remat diff``: what differs between two plans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from remat_cli.cli import options as opt
from remat_cli.cli.settings import Setting

if TYPE_CHECKING:
    from remat_cli.cli.console import Terminal
    from remat_cli.plan.types import Plan


@click.command(
    "diff",
    cls=opt.RematCommand,
    examples=(
        "remat diff old.plan.json new.plan.json",
        "remat diff old.plan.json new.plan.json --tolerance 5 --format markdown",
        "remat diff old.plan.json new.plan.json --quiet",
    ),
)
@click.argument("a", metavar="A", type=click.Path(path_type=Path))
@click.argument("b", metavar="B", type=click.Path(path_type=Path))
@click.option(
    "--tolerance", cls=Setting, type=click.FloatRange(0, 1e6), default=0.0, show_default=True, metavar="PCT",
    help="Predicted figures and costs may move by so many percent without counting as a difference.",
)  # fmt: skip
@opt.quiet_option
@opt.common_options("markdown")
def command(a: Path, b: Path, tolerance: float, format: str, quiet: bool) -> int:
    """Compare plans A and B by meaning: figures, tables and steps. Status 1 when they differ, 0 when not."""
    from remat_cli.cli.console import Terminal
    from remat_cli.plan.files import load_plan

    terminal = Terminal(json_output=format == "json", quiet=quiet)
    names = (a.name, b.name) if a.name != b.name else (str(a), str(b))
    return print_difference(terminal, load_plan(a), load_plan(b), names, tolerance, markdown=format == "markdown")


def print_difference(
    terminal: Terminal,
    a: Plan,
    b: Plan,
    names: tuple[str, str],
    tolerance_pct: float = 0.0,
    *,
    markdown: bool = False,
) -> int:
    """Print what differs, unless quiet; returns the exit status, 1 when something counts."""
    from remat_cli.plan.diff import diff_plans
    from remat_cli.report.plan_diff import diff_json, diff_markdown, diff_text

    found = diff_plans(a, b, tolerance_pct)
    if terminal.json_output:
        terminal.json(diff_json(found))
    elif not terminal.quiet:
        terminal.text(diff_markdown(found, names) if markdown else diff_text(found, names))
    return int(found.differs)
