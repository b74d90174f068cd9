"""``remat profile``: measure what each node of a model costs on a device."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from remat_cli.cli import options as opt
from remat_cli.cli.plan_text import device_text
from remat_cli.errors import InputError
from remat_cli.ort_session import Device
from remat_cli.units import format_bytes, format_ns

if TYPE_CHECKING:
    from remat_cli.cli.console import Terminal
    from remat_cli.profile.types import Profile

_SLOWEST = 10


@click.command(
    "profile",
    cls=opt.RematCommand,
    examples=(
        "remat profile model.onnx",
        "remat profile dynamic.onnx --dim batch=8 --threads 2 -o dynamic.profile.json",
        "remat profile model.onnx --inputs feeds.npz --format json -o model.profile.json",
    ),
)
@click.argument("path", metavar="MODEL", type=click.Path(path_type=Path))
@opt.device_option
@opt.dims_option
@opt.inputs_option
@opt.seed_option
@opt.threads_option
@opt.output_option("Where the profile goes [default: <model>.profile.json in the current folder]; - for stdout.")
@opt.force_option
@opt.quiet_option
@opt.common_options()
def command(
    path: Path,
    device: Device | None,
    dim: dict[str, int],
    inputs: Path | None,
    seed: int,
    threads: int,
    output: Path | None,
    force: bool,
    format: str,
    quiet: bool,
) -> None:
    """Run every distinct node of MODEL alone on the device and write its median time and kernel workspace.

    Inputs that --inputs lacks get seeded values. The profile serves `remat solve --profile`.
    """
    from remat_cli.cli.console import Terminal
    from remat_cli.pipeline import load_source
    from remat_cli.profile.files import dumps, write_profile
    from remat_cli.profile.measure import profile_graph

    to_stdout = output == opt.STDOUT
    if to_stdout and format == "json":
        raise InputError("-o - and --format json both want stdout", "write the profile to a file: -o profile.json")
    terminal = Terminal(json_output=format == "json", quiet=quiet, text_to_stderr=to_stdout)
    feeds = opt.feeds_of(inputs)
    source = load_source(path, dim, feeds, terminal.reporter)
    if source.graph is None:
        raise InputError(f"{path.name} is a problem file: it carries its own costs and cannot be measured")
    profile = profile_graph(
        source.graph, device or Device(), threads=threads, feeds=feeds, seed=seed, reporter=terminal.reporter
    )
    target = output or Path(f"{path.stem}.profile.json")
    if to_stdout:
        sys.stdout.buffer.write(dumps(profile))
    else:
        write_profile(profile, target, force=force)
    if terminal.json_output:
        terminal.json(summary(profile) | {"profile": str(target)})
    elif not quiet:
        _print(terminal, profile, "stdout" if to_stdout else str(target))


def summary(profile: Profile) -> dict[str, Any]:
    """The profile's totals as JSON values."""
    return {
        "model": msgspec.to_builtins(profile.model),
        "device": msgspec.to_builtins(profile.device),
        "nodes": len(profile.nodes),
        "total_ns": sum(node.median_ns for node in profile.nodes),
        "largest_workspace_bytes": max((node.workspace_bytes for node in profile.nodes), default=0),
    }


def _print(terminal: Terminal, profile: Profile, target: str) -> None:
    figures = summary(profile)
    terminal.facts(
        [
            ("model", profile.model.file),
            ("device", device_text(profile.device)),
            ("nodes", str(figures["nodes"])),
            ("total time", format_ns(figures["total_ns"])),
            ("workspace", f"{format_bytes(figures['largest_workspace_bytes'])} at most"),
            ("profile", target),
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
