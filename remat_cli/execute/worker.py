"""The child of `run`: executes one job and tells what it took. ``python -m remat_cli.execute.worker FOLDER``.

A process of its own, so that a crash of the runtime is an error message, and so that the operating system measures this
run's memory and nothing else: sessions and bindings are made first, then the baseline is taken, and what weights,
inputs, steps and kernels take above it is the measured peak.
"""

from __future__ import annotations

import mmap
import pickle
import sys
import time
from pathlib import Path

import msgspec

from remat_cli.errors import InternalError, RematError
from remat_cli.execute.arena import ArenaEngine
from remat_cli.execute.job import (
    JOB_FILE,
    PROGRESS_BYTES,
    PROGRESS_FILE,
    REPORT_FILE,
    ChildError,
    Job,
    KeptOutput,
    Report,
)
from remat_cli.execute.measure import PeakMeter, settle
from remat_cli.execute.outputs import digest, keep
from remat_cli.execute.plain import PlainSession

# Iterations beyond those that were asked for, whose results are dropped, so that a median means something.
_WANTED_TIMES = 5
_MOST_EXTRA_NS = 2_000_000_000


class _Progress:
    """What is going on, in a file that outlives a crash of this process."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as stream:
            self._map = mmap.mmap(stream.fileno(), PROGRESS_BYTES)

    def __call__(self, text: str) -> None:
        self._map[:] = text.encode()[:PROGRESS_BYTES].ljust(PROGRESS_BYTES, b"\0")


def main(folder: Path) -> None:
    """Do the job in `folder` and leave the report there. Anything unexpected is a traceback on stderr."""
    job = pickle.loads((folder / JOB_FILE).read_bytes())
    try:
        report = _work(job, folder, _Progress(folder / PROGRESS_FILE))
    except RematError as error:
        report = Report(error=ChildError(type(error).__name__, error.message, error.hint))
    (folder / REPORT_FILE).write_bytes(msgspec.json.encode(report))


def _work(job: Job, folder: Path, progress: _Progress) -> Report:
    runner = _runner(job, progress)
    meter = PeakMeter()
    progress("reading weights and inputs")
    runner.load()
    runner.read_feeds(job.feed_file, job.feeds)
    settle()
    times: list[int] = []
    digests: list[dict[str, str]] = []
    first: tuple[KeptOutput, ...] = ()
    last: tuple[KeptOutput, ...] = ()
    for iteration in range(job.iterations):
        meter.reset()
        times.append(_timed(runner, progress, iteration))
        meter.sample()
        if job.digests:
            digests.append({name: digest(value) for name, value in runner.outputs()})
        if job.keep and iteration == 0:
            first = keep(job.graph, runner.outputs(), folder, "first")
        if job.keep and iteration == job.iterations - 1:
            last = keep(job.graph, runner.outputs(), folder, "last")
    times += _further_times(runner, times[-1], _WANTED_TIMES - len(times))
    measured = None if meter.measured_by == "nothing" else meter.peak_bytes
    # The first iteration is cold: pages and caches are not there yet.
    return Report(tuple(times[1:] or times), measured, meter.measured_by, tuple(digests), first, last)


def _runner(job: Job, progress: _Progress) -> ArenaEngine | PlainSession:
    if job.role == "arena":
        if job.program is None:
            raise InternalError("an arena job has no program")
        return ArenaEngine(job.program, job.graph, job.device, job.threads, seed=job.seed, watch=progress)
    progress(f"making the {job.role} session")
    return PlainSession(job.graph, job.role, job.threads, seed=job.seed)


def _timed(runner: ArenaEngine | PlainSession, progress: _Progress, iteration: int) -> int:
    """Nanoseconds of one iteration, the copies of states that could not be updated in place included."""
    start = time.perf_counter_ns()
    if iteration == 0:
        runner.trace(progress)
    else:
        progress(f"iteration {iteration + 1}")
        runner.feed_back()
        runner.run()
    return time.perf_counter_ns() - start


def _further_times(runner: ArenaEngine | PlainSession, step_ns: int, wanted: int) -> list[int]:
    times: list[int] = []
    while len(times) < wanted and sum(times) + step_ns < _MOST_EXTRA_NS:
        start = time.perf_counter_ns()
        runner.feed_back()
        runner.run()
        times.append(time.perf_counter_ns() - start)
    return times


if __name__ == "__main__":
    main(Path(sys.argv[1]))
