"""``remat run``: replay a plan through onnxruntime and measure it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from remat_cli.cli import options as opt
from remat_cli.cli.plan_text import size_text
from remat_cli.cli.settings import Setting
from remat_cli.errors import CheckFailed
from remat_cli.units import format_bytes, format_ns

if TYPE_CHECKING:
    from remat_cli.cli.console import Terminal
    from remat_cli.execute.run import Comparison, RunResult


@click.command(
    "run",
    cls=opt.RematCommand,
    examples=(
        "remat run model.plan.json",
        "remat run model.plan.json --inputs feeds.npz --outputs out.npz --iterations 3",
        "remat run model.plan.json --model model.onnx --compare --format json",
    ),
)
@click.argument("plan", metavar="PLAN", type=click.Path(path_type=Path))
@click.option(
    "--model", type=click.Path(path_type=Path), metavar="FILE",
    help="The plan's model [default: beside the plan, then in the current folder].",
)  # fmt: skip
@opt.device_option
@opt.inputs_option
@click.option("--outputs", type=click.Path(path_type=Path), metavar="NPZ", help="Write the last step's outputs here.")
@click.option(
    "--engine", type=click.Choice(["arena"]), default="arena", show_default=True,
    help="arena: every tensor at a fixed place in one block.",
)  # fmt: skip
@click.option(
    "--iterations", cls=Setting, type=click.IntRange(1, 10**9), default=1, show_default=True, metavar="N",
    help="Steps to run; state outputs become the next step's inputs.",
)  # fmt: skip
@click.option(
    "--threads",
    cls=Setting,
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Threads of the CPU [default: the plan's].",
)
@click.option(
    "--compare", is_flag=True,
    help="Also run a plain session and compare every output bit for bit (status 1 if they differ), and time "
    "onnxruntime with its default optimisations.",
)  # fmt: skip
@opt.seed_option
@opt.force_option
@opt.quiet_option
@opt.common_options()
def command(format: str, quiet: bool, **given: Any) -> None:
    """Check PLAN, run it in a process of its own, and measure its step time and peak memory.

    Inputs that --inputs lacks get seeded values. The measured peak is what the operating system or the device says;
    status 5 when it exceeds the budget by more than 1 MiB, which any process takes for itself.
    """
    from remat_cli.cli.console import Terminal
    from remat_cli.execute.run import RunRequest, run_plan

    terminal = Terminal(json_output=format == "json", quiet=quiet)
    result = run_plan(RunRequest(**given, reporter=terminal.reporter))
    if terminal.json_output:
        terminal.json(msgspec.to_builtins(result))
    elif not quiet:
        _print(terminal, result)
    result.raise_over_budget()
    if result.compare is not None and result.compare.identical is False:
        raise CheckFailed(f"the outputs differ from a plain session's: {result.compare.note}")


def _print(terminal: Terminal, result: RunResult) -> None:
    times, peak = result.step_ns, result.peak_bytes
    measured = (
        "not measured on this system" if peak.measured is None else f"{size_text(peak.measured)} ({peak.measured_by})"
    )
    terminal.facts(
        [
            ("engine", f"{result.engine} on {result.device}"),
            ("steps", f"{result.iterations}, each with {result.recomputed} recomputed nodes"),
            ("step time", f"{format_ns(times.median)} (min {format_ns(times.min)}, max {format_ns(times.max)})"),
            ("budget", size_text(peak.budget)),
            ("predicted peak", size_text(peak.predicted)),
            ("measured peak", measured),
        ]
    )
    if result.compare is not None:
        terminal.line()
        terminal.facts(_comparison(result.compare))


def _comparison(compare: Comparison) -> list[tuple[str, str]]:
    verdict = {True: "yes, bit for bit", False: f"no, by up to {compare.max_abs_diff}", None: "not comparable"}
    plain_peak = "not measured" if compare.plain_peak_bytes is None else format_bytes(compare.plain_peak_bytes)
    default = "not run" if compare.default_ort_step_ns is None else format_ns(compare.default_ort_step_ns)
    facts = [
        ("identical", verdict[compare.identical]),
        ("plain session", f"{format_ns(compare.plain_step_ns)} a step, peak {plain_peak}"),
        ("time ratio", f"{compare.time_ratio:.3f} of the plain session"),
        ("default onnxruntime", f"{default} a step"),
    ]
    return facts + ([("note", compare.note)] if compare.note else [])
