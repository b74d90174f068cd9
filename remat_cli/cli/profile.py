"""``remat profile``: measure what each node of a model costs on a device, or the device itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.core import ParameterSource

from remat_cli.atomic import write_atomic
from remat_cli.cli import options as opt
from remat_cli.cli.plan_text import device_text
from remat_cli.errors import InputError
from remat_cli.ort_session import Device
from remat_cli.units import format_bytes, format_ns

if TYPE_CHECKING:
    from remat_cli.cli.console import Terminal
    from remat_cli.profile.types import Profile

_SLOWEST = 10
# What the `source` line of a calibrated device file says.
_CALIBRATED = b"measured by remat"


@dataclass(frozen=True)
class Asked:
    """The options of one invocation, as parsed."""

    path: Path | None
    device: Device | None
    dim: dict[str, int]
    inputs: Path | None
    seed: int
    threads: int
    output: Path | None
    force: bool

    @property
    def on(self) -> Device:
        """``--device``, else the CPU."""
        return self.device or Device()

    def write(self, target: Path, data: bytes, ours: Callable[[bytes], bool]) -> None:
        """To a file, or to stdout for ``-``."""
        if target == opt.STDOUT:
            sys.stdout.buffer.write(data)
        else:
            write_atomic(target, data, force=self.force, ours=ours)


@click.command(
    "profile",
    cls=opt.RematCommand,
    examples=(
        "remat profile model.onnx",
        "remat profile dynamic.onnx --dim batch=8 --threads 2 -o dynamic.profile.json",
        "remat profile model.onnx --inputs feeds.npz --format json -o model.profile.json",
        "remat profile --device cpu -o mine.yaml",
    ),
)
@click.argument("path", metavar="[MODEL]", required=False, type=click.Path(path_type=Path))
@opt.device_option
@opt.dims_option
@opt.inputs_option
@opt.seed_option
@opt.threads_option
@opt.output_option("Where it goes [default: <model>.profile.json, or cpu.yaml, in the current folder]; - for stdout.")
@opt.force_option
@opt.quiet_option
@opt.common_options()
def command(format: str, quiet: bool, **given: Any) -> None:
    """Run every distinct node of MODEL alone on the device and write its median time and kernel workspace.

    Inputs that --inputs lacks get seeded values. The profile serves `remat solve --profile`. Without MODEL, the device
    itself is measured by a few micro-benchmarks: a YAML file for `remat solve --cost-model`.
    """
    from remat_cli.cli.console import Terminal

    asked = Asked(**given)
    if asked.output == opt.STDOUT and format == "json":
        raise InputError("-o - and --format json both want stdout", "write to a file: -o FILE")
    terminal = Terminal(json_output=format == "json", quiet=quiet, text_to_stderr=asked.output == opt.STDOUT)
    if asked.path is None:
        _calibrate(terminal, asked)
    else:
        _profile(terminal, asked, asked.path)


def _profile(terminal: Terminal, asked: Asked, path: Path) -> None:
    from remat_cli.pipeline import load_source
    from remat_cli.profile.files import dumps, is_profile
    from remat_cli.profile.measure import profile_graph

    feeds = opt.feeds_of(asked.inputs)
    source = load_source(path, asked.dim, feeds, terminal.reporter)
    if source.graph is None:
        raise InputError(f"{path.name} is a problem file: it carries its own costs and cannot be measured")
    profile = profile_graph(
        source.graph, asked.on, threads=asked.threads, feeds=feeds, seed=asked.seed, reporter=terminal.reporter
    )
    target = asked.output or Path(f"{path.stem}.profile.json")
    asked.write(target, dumps(profile), is_profile)
    if terminal.json_output:
        terminal.json(summary(profile) | {"profile": str(target)})
    elif not terminal.quiet:
        _print(terminal, profile, target)


def _calibrate(terminal: Terminal, asked: Asked) -> None:
    """Without MODEL: measure the device, not the nodes of a model."""
    from remat_cli.profile.calibrate import calibrate
    from remat_cli.profile.devices import dump_device_model

    context = click.get_current_context()
    for name in ("dim", "inputs", "seed"):
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            raise InputError(f"--{name} is about a model, and none is given", f"remat profile MODEL --{name} ...")
    model = calibrate(asked.on, asked.threads, terminal.reporter)
    assert model.spec is not None  # only the built-in `unit` has none
    target = asked.output or Path(model.file)
    asked.write(target, dump_device_model(model.spec), lambda head: _CALIBRATED in head)
    facts = msgspec.to_builtins(model.spec)
    if terminal.json_output:
        terminal.json(facts | {"file": str(target)})
    elif not terminal.quiet:
        rows = [(name, str(value)) for name, value in facts.items()]
        terminal.facts([*rows, ("file", "stdout" if target == opt.STDOUT else str(target))])


def summary(profile: Profile) -> dict[str, Any]:
    """The profile's totals as JSON values."""
    return {
        "model": msgspec.to_builtins(profile.model),
        "device": msgspec.to_builtins(profile.device),
        "nodes": len(profile.nodes),
        "total_ns": sum(node.median_ns for node in profile.nodes),
        "largest_workspace_bytes": max((node.workspace_bytes for node in profile.nodes), default=0),
    }


def _print(terminal: Terminal, profile: Profile, target: Path) -> None:
    figures = summary(profile)
    terminal.facts(
        [
            ("model", profile.model.file),
            ("device", device_text(profile.device)),
            ("nodes", str(figures["nodes"])),
            ("total time", format_ns(figures["total_ns"])),
            ("workspace", f"{format_bytes(figures['largest_workspace_bytes'])} at most"),
            ("profile", "stdout" if target == opt.STDOUT else str(target)),
        ]
    )
    terminal.line()
    slowest = sorted(profile.nodes, key=lambda node: (-node.median_ns, node.id))[:_SLOWEST]
    terminal.table(
        ("slowest nodes", "operator", "median", "spread", "workspace", "output"),
        [
            (
                node.id,
                node.op_type,
                format_ns(node.median_ns),
                format_ns(node.spread_ns),
                format_bytes(node.workspace_bytes),
                format_bytes(sum(node.output_bytes)),
            )
            for node in slowest
        ],
        right=("median", "spread", "workspace", "output"),
    )
