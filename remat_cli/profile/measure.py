"""Measured node costs: each distinct node of a graph is timed once on the device, in a child process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from remat_cli import __version__
from remat_cli.device_memory import free_bytes
from remat_cli.errors import DeviceError
from remat_cli.model.feeds import check_feeds
from remat_cli.model.graph import Graph
from remat_cli.model.hashing import graph_sha256
from remat_cli.model.kernels import check_kernels
from remat_cli.ort_session import Device, check_provider, versions
from remat_cli.profile.entries import Entry, distinct_entries
from remat_cli.profile.hardware import processor_name
from remat_cli.profile.op_view import OpView
from remat_cli.profile.stopwatch import ROUNDS
from remat_cli.profile.supervise import Outcome, run_job
from remat_cli.profile.types import FORMAT, VERSION, Profile, ProfileDevice, ProfileModel, ProfileNode
from remat_cli.profile.worker import Job
from remat_cli.profile.workspace import estimate_workspace
from remat_cli.reporter import Reporter
from remat_cli.units import format_bytes

if TYPE_CHECKING:
    import numpy as np

Workspace = Literal["measured", "estimated"]


def profile_graph(
    graph: Graph,
    device: Device,
    *,
    threads: int = 1,
    feeds: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> Profile:
    """Time and scratch of every node that takes a step (views take none).

    `feeds`: values of graph inputs, for models whose shapes or paths hang on them; others are seeded. Nodes with the
    same signature share one measurement. On CUDA, and where the system cannot tell, scratch is estimated;
    `Profile.workspace` says which.

    Raises InputError for feeds that do not fit the graph, ModelError for a node without a kernel or that refuses its
    inputs, DeviceError when the device is missing, too small for a single node, or the runtime dies.
    """
    reporter = reporter or Reporter()
    # What is bound by address must have the size that the graph says.
    job = Job("time", graph, device, threads, check_feeds(feeds or {}, graph), seed)
    entries, entry_of = distinct_entries(graph)
    times = time_entries(job, entries, reporter)
    scratch, workspace = _scratch(graph, entries, job, reporter)
    rows = []
    for node in graph.nodes:
        if node.view_of is None:
            first = entries[entry_of[node.id]].node.id
            outputs = tuple(graph.tensors[name].size_bytes for name in node.outputs)
            rows.append(ProfileNode(node.id, node.op_type, *times[first], scratch[first], outputs))
    return Profile(
        FORMAT,
        VERSION,
        ProfileModel(graph.path.name, graph_sha256(graph), dict(sorted(graph.dims.items()))),
        ProfileDevice(device.name, threads, processor_name(device)),
        {**versions(), "remat": __version__},
        tuple(rows),
        workspace,
    )


def time_entries(job: Job, entries: list[Entry], reporter: Reporter) -> dict[str, tuple[int, int]]:
    """Entry -> median time and spread in ns, for the distinct entries of the job's graph. Errors as `profile_graph`."""
    check_provider(job.device)
    check_kernels(job.graph, job.device)
    _check_room(entries, job.device)
    title = f"timing {len(entries)} distinct nodes on {job.device.name}"
    with reporter.task(title, len(entries) * ROUNDS) as task:
        return run_job(job, task).times


def _scratch(graph: Graph, entries: list[Entry], job: Job, reporter: Reporter) -> tuple[dict[str, int], Workspace]:
    """Entry -> scratch in bytes, and whether it was measured or estimated."""
    if job.device.kind == "cpu":
        job = Job("scratch", graph, job.device, job.threads, job.feeds, job.seed)
        with reporter.task(f"measuring the scratch of {len(entries)} distinct nodes", len(entries)) as task:
            outcome = run_job(job, task)
    else:
        outcome = Outcome(unavailable=f"it cannot be told apart on {job.device.name}")
    if not outcome.unavailable:
        return outcome.scratch, "measured"
    reporter.note(f"kernel scratch is estimated, not measured: {outcome.unavailable}")
    return {
        entry.node.id: estimate_workspace(OpView(graph, entry.node), job.device.kind) for entry in entries
    }, "estimated"


def _check_room(entries: list[Entry], device: Device) -> None:
    """Refuse early what would otherwise be killed for memory halfway."""
    if not entries:
        return
    largest = max(entries, key=lambda entry: entry.operand_bytes)
    free = free_bytes(device)
    if largest.operand_bytes > free:
        raise DeviceError(
            f"{largest.node.label} reads and writes {largest.operand_bytes} bytes "
            f"({format_bytes(largest.operand_bytes)}), {device.name} has {free} bytes ({format_bytes(free)}) free: "
            "it cannot be measured here",
            "fix smaller dims (--dim batch=1), or use estimated costs: remat solve --cost-model cpu",
        )
