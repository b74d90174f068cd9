"""``remat show``: a plan for people."""

from __future__ import annotations

from pathlib import Path

import click

from remat_cli.cli import options as opt


@click.command(
    "show",
    cls=opt.RematCommand,
    examples=("remat show model.plan.json", "remat show model.plan.json --format json"),
)
@click.argument("path", metavar="PLAN", type=click.Path(path_type=Path))
@opt.common_options()
def command(path: Path, format: str) -> None:
    """Print what PLAN promises, the course of its memory, what is live at the peak, and what is recomputed."""
    from remat_cli.cli.console import Terminal
    from remat_cli.plan.files import load_plan
    from remat_cli.report.plan_show import show_json, show_plan, show_text

    terminal = Terminal(json_output=format == "json")
    view = show_plan(load_plan(path))
    if terminal.json_output:
        terminal.json(show_json(view))
    else:
        terminal.text(show_text(view, ascii_only=not terminal.unicode))
