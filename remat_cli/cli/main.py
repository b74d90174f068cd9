"""The `remat` command: a group whose subcommands are imported when they are asked for."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from remat_cli import __version__
from remat_cli.cli.boundary import PipeClosedError, Session, guarded

# Name -> (module, line in `remat --help`). The line is kept here so that the help imports no command.
COMMANDS = {
    "info": ("info", "What is in a model: nodes, memory, smallest feasible budget bound."),
    "profile": ("profile", "Measure what each node of a model costs, or a device itself."),
    "solve": ("solve", "Compile a memory budget into a plan."),
    "run": ("run", "Run a plan through onnxruntime and measure its peak."),
    "check": ("check", "Replay a plan: legal steps, peak within budget, right model."),
    "diff": ("diff", "Compare two plans."),
    "show": ("show", "Print a plan: what is recomputed, where the peak is."),
    "doctor": ("doctor", "Versions, devices that really work, and how to mend the rest."),
    "completion": ("completion", "Print the shell completion script."),
}


class LazyGroup(click.Group):
    """Subcommands by name, imported on first use, and the error boundary around all of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"remat_cli.cli.{COMMANDS[cmd_name][0]}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            suggestion = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{suggestion}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as fault:
            raise PipeClosedError from fault

    def main(self, args: Sequence[str] | None = None, *more: Any, **extra: Any) -> NoReturn:
        """click's entry point, behind the boundary: always ends in SystemExit. Without arguments, prints the help."""
        args = list(sys.argv[1:] if args is None else args) or ["--help"]
        session = Session()
        extra.update(standalone_mode=False, obj=session)
        extra.setdefault("prog_name", "remat")
        run = super().main
        sys.exit(guarded(lambda: run(args, *more, **extra), session))


@click.group(
    "remat",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: remat solve MODEL --budget 60%",
)
@click.version_option(__version__, prog_name="remat", message="%(prog)s %(version)s")
def cli() -> None:
    """Run networks that do not fit: compile a memory budget into a schedule of an ONNX graph that drops
    tensors and recomputes them, replayed through stock onnxruntime."""


def main() -> NoReturn:
    """Console entry point."""
    cli.main()
