"""`remat run`: a plan executed, measured, and compared with an ordinary session."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal

import msgspec

from remat_cli.errors import DeviceError, InputError, RematError
from remat_cli.execute.child import run_child
from remat_cli.execute.feed_file import Fed, write_feeds
from remat_cli.execute.job import Job, Report, Role
from remat_cli.execute.outputs import largest_difference, require_writable, write_npz
from remat_cli.execute.prepare import Ready, prepare
from remat_cli.execute.random_nodes import unseeded_random_node
from remat_cli.model.feeds import check_feeds, merged_feeds, read_feeds
from remat_cli.ort_session import Device
from remat_cli.plan.files import load_plan
from remat_cli.reporter import Reporter
from remat_cli.units import format_bytes

if TYPE_CHECKING:
    from remat_cli.plan.types import Plan

_FEEDS = "feeds"
# Stacks, caches that kernels make when they first run, and the kernel's counters, which run late by some pages a
# processor: a peak that is higher than the budget by less than this breaks no promise.
NOISE_BYTES = 2**20


@dataclass(frozen=True)
class RunRequest:
    """What to run. `model`: looked for beside the plan and in the current folder when None. `device`, `threads`:
    the plan's when None. `inputs`: an ``.npz`` of feeds; inputs that it lacks are made from `seed`. `outputs`: where to
    write the last iteration's outputs, as ``.npz``. `iterations`: state outputs become the next iteration's inputs.
    `compare`: run a plain session too. `force`: `outputs` may replace a file that is not ours."""

    plan: Path
    model: Path | None = None
    device: Device | None = None
    inputs: Path | None = None
    outputs: Path | None = None
    iterations: int = 1
    threads: int | None = None
    compare: bool = False
    seed: int = 0
    engine: Literal["arena"] = "arena"
    force: bool = False
    reporter: Reporter = field(default_factory=Reporter)


class StepTimes(msgspec.Struct, frozen=True):
    """Nanoseconds of one iteration, over all but the first where there are several: that one is cold."""

    median: int
    min: int
    max: int


class PeakBytes(msgspec.Struct, frozen=True):
    """`measured`: the most that the process took for weights, inputs, steps and kernels; None where nothing says.
    `measured_by`: "VmHWM" (Linux), "ru_maxrss" (a mark that cannot be reset) or "nothing"."""

    predicted: int
    measured: int | None
    budget: int
    measured_by: str


class Comparison(msgspec.Struct, frozen=True):
    """Against one onnxruntime session over the same graph and feeds, with optimisation and prepacking off.

    `identical`: whether every output of every iteration is equal bit for bit; None when that cannot be asked, and
    `note` says why. `max_abs_diff`: over the first and the last iteration; None when not finite or not asked.
    `time_ratio`: the plan's median step to the plain session's. `default_ort_step_ns`: the user's file with
    onnxruntime's default optimisations; None when it cannot be run.
    """

    identical: bool | None
    max_abs_diff: float | None
    plain_step_ns: int
    time_ratio: float
    plain_peak_bytes: int | None
    default_ort_step_ns: int | None
    note: str = ""


class RunResult(msgspec.Struct, frozen=True):
    """The JSON of ``remat run``. `iterations`: as asked. `recomputed`: compute steps that are not a node's first."""

    engine: str
    device: str
    iterations: int
    step_ns: StepTimes
    peak_bytes: PeakBytes
    recomputed: int
    compare: Comparison | None = None

    @property
    def over_budget(self) -> bool:
        """Whether the process took more than the budget, by more than what a process takes to run anything."""
        measured = self.peak_bytes.measured
        return measured is not None and measured > self.peak_bytes.budget + NOISE_BYTES

    def raise_over_budget(self) -> None:
        """DeviceError with the numbers when the process took more than the budget."""
        peak = self.peak_bytes
        if self.over_budget and peak.measured is not None:
            raise DeviceError(
                f"the measured peak is {peak.measured} bytes ({format_bytes(peak.measured)}), more than the budget of"
                f" {peak.budget} by {peak.measured - peak.budget}; predicted were {peak.predicted}",
                "profile on this device (remat profile MODEL), and solve with that profile",
            )


def run_plan(request: RunRequest) -> RunResult:
    """Check the plan, run it in a process of its own, and measure it; with `compare`, run plain sessions as well.

    Raises what `prepare` does, InputError for bad feeds or outputs that must not be written, and DeviceError when the
    run fails. A measured peak above the budget does not raise: see `RunResult.raise_over_budget`.
    """
    if request.iterations < 1:
        raise InputError(f"{request.iterations} iterations: at least one is needed", "--iterations 1")
    if request.threads is not None and request.threads < 1:
        raise InputError(f"{request.threads} threads: at least one is needed", "--threads 1")
    if request.outputs is not None:
        require_writable(request.outputs, force=request.force)
    plan = load_plan(request.plan)
    model = find_model(plan, request)
    given = read_feeds(request.inputs) if request.inputs else {}
    ready = prepare(plan, model, request.device, feeds=given, name=request.plan.name, reporter=request.reporter)
    if request.inputs:
        given = check_feeds(given, ready.graph, request.inputs.name)
    threads = plan.device.threads if request.threads is None else request.threads
    with tempfile.TemporaryDirectory(prefix="remat-run-") as name:
        feeds = write_feeds(ready.graph, merged_feeds(ready.graph, given, request.seed), Path(name) / _FEEDS)
        children = _Children(request, ready, threads, Path(name), feeds)
        report = children.run("arena")
        compare = children.compare(report) if request.compare else None
        if request.outputs is not None:
            write_npz(report.last, Path(name) / "arena", request.outputs, force=request.force)
    return RunResult(
        engine=request.engine,
        device=ready.device.name,
        iterations=request.iterations,
        step_ns=StepTimes(_median(report), min(report.step_ns), max(report.step_ns)),
        peak_bytes=PeakBytes(ready.program.peak_bytes, report.peak_bytes, ready.budget_bytes, report.measured_by),
        recomputed=plan.predicted.recomputed,
        compare=compare,
    )


def find_model(plan: Plan, request: RunRequest) -> Path:
    """The model's file: as asked, beside the plan, or in the current folder. InputError when it is in neither."""
    if plan.costs.source == "problem":
        # `prepare` says what that means, whether or not there is such a file.
        return request.model or Path(plan.model.file)
    if request.model is not None:
        return request.model
    for candidate in (request.plan.parent / plan.model.file, Path(plan.model.file)):
        if candidate.is_file():
            return candidate
    raise InputError(
        f"{plan.model.file}, the model of {request.plan.name}, is neither beside the plan nor in the current folder",
        f"remat run {request.plan.name} --model PATH/{plan.model.file}",
    )


@dataclass(frozen=True)
class _Children:
    """The processes of one run, each with a folder below `folder`, on the same feeds."""

    request: RunRequest
    ready: Ready
    threads: int
    folder: Path
    feeds: tuple[Fed, ...]

    def run(self, role: Role) -> Report:
        request = self.request
        folder = self.folder / role
        folder.mkdir()
        kept = role != "default" and (request.compare or (role == "arena" and request.outputs is not None))
        job = Job(
            role=role,
            graph=self.ready.graph,
            program=self.ready.program if role == "arena" else None,
            device=self.ready.device,
            threads=self.threads,
            feed_file=self.folder / _FEEDS,
            feeds=self.feeds,
            seed=request.seed,
            iterations=request.iterations,
            digests=request.compare and role != "default",
            keep=kept,
        )
        title = {"arena": "running the plan", "plain": "running a plain session", "default": "running onnxruntime"}
        with request.reporter.task(title[role]):
            return run_child(job, folder)

    def compare(self, arena: Report) -> Comparison:
        plain = self.run("plain")
        identical: bool | None = arena.digests == plain.digests
        difference: float | None = 0.0
        note = ""
        random = unseeded_random_node(self.ready.graph)
        if random is not None:
            identical, difference = None, None
            note = f"not comparable: {random.label} draws random numbers and has no seed"
        elif not identical:
            difference = self._difference(arena, plain)
            note = self._first_difference(arena, plain)
        default_ns, reason = self._default_ns()
        return Comparison(
            identical=identical,
            max_abs_diff=difference,
            plain_step_ns=_median(plain),
            time_ratio=round(_median(arena) / max(_median(plain), 1), 4),
            plain_peak_bytes=plain.peak_bytes,
            default_ort_step_ns=default_ns,
            note="; ".join(filter(None, (note, reason))),
        )

    def _difference(self, arena: Report, plain: Report) -> float | None:
        ours, theirs = self.folder / "arena", self.folder / "plain"
        largest = max(
            largest_difference(arena.first, ours, plain.first, theirs),
            largest_difference(arena.last, ours, plain.last, theirs),
        )
        return largest if math.isfinite(largest) else None

    def _first_difference(self, arena: Report, plain: Report) -> str:
        for iteration, (ours, theirs) in enumerate(zip(arena.digests, plain.digests, strict=True)):
            for name, digest in ours.items():
                if theirs[name] != digest:
                    return f"{name} differs first, in iteration {iteration + 1}"
        return ""

    def _default_ns(self) -> tuple[int | None, str]:
        try:
            return _median(self.run("default")), ""
        except RematError as error:
            return None, f"default onnxruntime: {error.message}"


def _median(report: Report) -> int:
    return round(median(report.step_ns))
