"""``remat solve``: compile a memory budget into a plan."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from remat_cli.cli import options as opt
from remat_cli.cli.plan_text import device_text, plan_facts, plan_summary
from remat_cli.cli.settings import Setting, most_explicit
from remat_cli.errors import InputError
from remat_cli.ort_session import Device

if TYPE_CHECKING:
    from remat_cli.cli.console import Terminal
    from remat_cli.model.feeds import Feeds
    from remat_cli.pipeline import Budget, Costs, Source
    from remat_cli.plan.types import Plan
    from remat_cli.reporter import Reporter
    from remat_cli.solve.types import Effort

# Options that say how a model is measured: meaningless for a problem file, which carries its costs.
_MODEL_ONLY = ("profile", "cost_model", "device", "inputs", "threads")


@dataclass(frozen=True)
class Asked:
    """The options of one invocation, as parsed. `writes`: False for --dry-run and --check, which leave no file."""

    path: Path
    budget: Budget
    method: str
    profile: Path | None
    cost_model: str | None
    device: Device | None
    dim: dict[str, int]
    inputs: Path | None
    seed: int
    effort: Effort
    time_limit: float | None
    warm_start: Path | None
    in_place: bool
    threads: int
    output: Path | None
    check: Path | None
    dry_run: bool
    force: bool

    @property
    def writes(self) -> bool:
        return not self.dry_run and self.check is None

    @property
    def plan_path(self) -> Path:
        """``-o``, else the model's name with ``.plan.json`` in the current folder."""
        return self.output or Path(f"{self.path.stem}.plan.json")


@click.command(
    "solve",
    cls=opt.RematCommand,
    examples=(
        "remat solve model.onnx --budget 60%",
        "remat solve model.onnx --budget 8GiB --profile model.profile.json -o plan.json",
        "remat solve model.onnx --budget min --method greedy --dry-run",
        "remat solve model.onnx --budget 60% --check model.plan.json",
        "remat solve problem.json --budget 5 --effort quick -o - > small.plan.json",
    ),
)
@click.argument("path", metavar="MODEL|PROBLEM.json", type=click.Path(path_type=Path))
@click.option(
    "--budget", cls=Setting, required=True, type=opt.BudgetType("auto", "min"), metavar="SIZE",
    help="Memory for everything remat allocates: 8GB, 8GiB, plain bytes, 60% (fixed bytes and that share of the "
    "store-all peak of activations), auto (what the device has free now) or min (the smallest that is found).",
)  # fmt: skip
@click.option(
    "--method", cls=Setting, type=opt.MethodType(), default="auto", show_default=True, metavar="NAME",
    help="Solver; a wrong name lists them all.",
)  # fmt: skip
@click.option("--profile", type=click.Path(path_type=Path), metavar="FILE", help="Costs: a file of `remat profile`.")
@click.option(
    "--cost-model",
    cls=Setting,
    metavar="NAME|YAML",
    help="Costs: an analytic model of a device. Built-in default: cpu.",
)
@click.option(
    "--device", cls=Setting, type=opt.DeviceType(), metavar="cpu|cuda:N", help="Costs: measure them now on this device."
)
@opt.dims_option
@opt.inputs_option
@opt.seed_option
@click.option(
    "--effort", cls=Setting, type=click.Choice(["quick", "normal", "thorough"]), default="normal", show_default=True,
    help="How much work to spend; the same work on any machine.",
)  # fmt: skip
@click.option(
    "--time-limit", cls=Setting, type=click.FloatRange(0, 1e6, min_open=True), metavar="SECONDS",
    help="Stop by the clock instead. Plans are then not reproducible.",
)  # fmt: skip
@click.option("--warm-start", type=click.Path(path_type=Path), metavar="PLAN", help="Begin from this older plan.")
@click.option(
    "--in-place/--no-in-place", cls=Setting, default=True, show_default=True,
    help="Let elementwise nodes overwrite an input that nobody needs any more.",
)  # fmt: skip
@opt.threads_option
@opt.output_option("Where the plan goes [default: <model>.plan.json in the current folder]; - for stdout.")
@click.option(
    "--check", type=click.Path(path_type=Path), metavar="PLAN",
    help="Write nothing; status 1 and the difference when the plan would not be equal to PLAN.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Solve and report, but write nothing.")
@opt.force_option
@opt.quiet_option
@opt.common_options()
def command(format: str, quiet: bool, **given: Any) -> int:
    """Find the cheapest schedule of MODEL (or of a problem file) that fits a memory budget, and write it as a plan.

    Costs come from --profile, else are measured on --device (and written beside the plan), else estimated by
    --cost-model. The same inputs give the same plan, byte for byte.
    """
    from remat_cli.cli.console import Terminal

    asked = Asked(**given)
    to_stdout = asked.output == opt.STDOUT
    if to_stdout and format == "json":
        raise InputError("-o - and --format json both want stdout", "write the plan to a file: -o plan.json")
    if asked.check is not None and asked.output is not None:
        raise InputError("--check writes no plan, so -o has no meaning", "leave one of them out")
    terminal = Terminal(json_output=format == "json", quiet=quiet, text_to_stderr=to_stdout)
    plan = _solve(click.get_current_context(), asked, terminal.reporter)
    if asked.check is not None:
        return _compare(terminal, plan, asked.check)
    if asked.writes:
        _write(plan, asked)
    _report(terminal, plan, asked)
    return 0


def _solve(ctx: click.Context, asked: Asked, reporter: Reporter) -> Plan:
    from remat_cli import pipeline
    from remat_cli.plan.files import load_plan

    warm_start = load_plan(asked.warm_start) if asked.warm_start else None
    feeds = opt.feeds_of(asked.inputs)
    source = pipeline.load_source(asked.path, asked.dim, feeds, reporter)
    if source.problem is not None and asked.budget == "auto":
        raise InputError(f"{asked.path.name} is a problem file: no device could tell its free memory", "--budget SIZE")
    return pipeline.compile_plan(
        pipeline.CompileRequest(
            source=source,
            costs=_costs(ctx, asked, source, feeds, reporter),
            budget=asked.budget,
            method=asked.method,
            seed=asked.seed,
            effort=asked.effort,
            time_limit_s=asked.time_limit,
            warm_start=warm_start,
            in_place=asked.in_place,
            reporter=reporter,
        )
    )


def _costs(ctx: click.Context, asked: Asked, source: Source, feeds: Feeds | None, reporter: Reporter) -> Costs:
    """The costs that were asked for, from the place that DESIGN's order of precedence gives."""
    from remat_cli import pipeline

    if source.problem is not None:
        _refuse_model_options(ctx, asked)
        return pipeline.costs_of_problem(source)
    chosen = most_explicit(ctx, "profile", "cost_model", "device")
    if chosen == "profile" and asked.profile is not None:
        if ctx.get_parameter_source("threads") == ParameterSource.COMMANDLINE:
            raise InputError("--threads has no meaning with --profile, which says how it was measured", "leave it out")
        costs = pipeline.costs_from_profile(source, asked.profile)
    elif chosen == "device" and asked.device is not None:
        costs = _measured(asked, asked.device, source, feeds, reporter)
    else:
        costs = pipeline.costs_from_model(
            source, asked.cost_model or pipeline.DEFAULT_COST_MODEL, threads=asked.threads, reporter=reporter
        )
    reporter.note(f"costs: {costs.origin.source} {costs.origin.file}, {device_text(costs.device)}")
    return costs


def _measured(asked: Asked, device: Device, source: Source, feeds: Feeds | None, reporter: Reporter) -> Costs:
    """Measure; the profile goes beside the plan, or nowhere when nothing is to be written."""
    from remat_cli import pipeline

    with tempfile.TemporaryDirectory() as scratch:
        beside = asked.plan_path.parent if asked.writes else Path(scratch)
        return pipeline.costs_from_measurement(
            source,
            device,
            beside / f"{asked.path.stem}.profile.json",
            threads=asked.threads,
            feeds=feeds,
            seed=asked.seed,
            force=asked.force,
            reporter=reporter,
        )


def _refuse_model_options(ctx: click.Context, asked: Asked) -> None:
    for name in _MODEL_ONLY:
        if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            flag = "--" + name.replace("_", "-")
            raise InputError(
                f"{asked.path.name} is a problem file, which carries its own costs: {flag} has no meaning",
                f"leave {flag} out",
            )


def _write(plan: Plan, asked: Asked) -> None:
    from remat_cli.plan.files import dump_plan, write_plan

    if asked.output == opt.STDOUT:
        sys.stdout.buffer.write(dump_plan(plan))
    else:
        write_plan(plan, asked.plan_path, force=asked.force)


def _compare(terminal: Terminal, plan: Plan, path: Path) -> int:
    """``--check``: 0 when the file holds this very plan, else 1 and the difference."""
    from remat_cli.cli.diff import print_difference
    from remat_cli.plan.files import load_plan

    return print_difference(terminal, load_plan(path), plan, names=(path.name, "solved now"))


def _report(terminal: Terminal, plan: Plan, asked: Asked) -> None:
    written = str(asked.plan_path) if asked.writes else None
    if terminal.json_output:
        terminal.json({"plan": written, **plan_summary(plan)})
    elif not terminal.quiet:
        target = "stdout" if asked.output == opt.STDOUT else written or "not written"
        terminal.facts([*plan_facts(plan, asked.budget), ("plan", target)])
