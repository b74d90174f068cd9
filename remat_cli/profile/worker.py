"""The child process that measures, so that a crash of the runtime ends it and not remat.

Reads a pickled `Job` from stdin (written by `remat_cli.profile.supervise` of the same installation) and writes one
JSON array a line to stdout. Entries go by the id of their first node:

    ["begin", node]                       the node is about to run
    ["time", entry, median_ns, spread_ns] or ["scratch", entry, bytes]
    ["progress"]                          one more round of one entry
    ["failed", node, reason]              the runtime refused the node: nothing more follows
    ["unavailable", reason]               this system cannot measure scratch: nothing more follows
    ["done"]
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any, Literal, Protocol

import numpy as np

from remat_cli.model.feeds import merged_feeds
from remat_cli.model.graph import Graph, GraphNode
from remat_cli.model.ort_messages import parse_message
from remat_cli.ort_session import Device, make_session, register_scratch_arena
from remat_cli.profile.entries import Entry, distinct_entries
from remat_cli.profile.interpret import Interpreter, ancestors
from remat_cli.profile.operands import Operands

Phase = Literal["time", "scratch"]
Send = Callable[..., None]


@dataclass(frozen=True)
class Job:
    """What to measure. `fragile`: entries that crashed the runtime on synthetic values and get real ones."""

    phase: Phase
    graph: Graph
    device: Device
    threads: int
    feeds: dict[str, np.ndarray]
    seed: int
    fragile: frozenset[str] = frozenset()


class Meter(Protocol):
    """Measures entries: `Stopwatch` times them, `ScratchMeter` sees what memory they take."""

    def add(self, entry: Entry, run: Callable[[], None], wait: Callable[[], None]) -> None:
        """Measure an entry that `run` starts and `wait` waits for. Lets what `run` raises pass."""

    def add_with_values(self, entry: Entry, run: Callable[[], None]) -> None:
        """Measure an entry whose `run` makes its outputs anew each time."""

    def finish(self) -> None:
        """Do what is left to do once all entries are there, and send what was not sent yet."""


class _Refused(Exception):
    """The runtime refused a node on the best values there are."""


def main() -> None:
    """Do the job on stdin. Whatever native libraries print to stdout goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(*message: object) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    job: Job = pickle.loads(sys.stdin.buffer.read())
    try:
        measure(job, send)
    except _Refused as refusal:
        send("failed", *refusal.args)
    except KeyboardInterrupt:
        # The terminal interrupts parent and child alike; the parent tells the user.
        os._exit(130)


def measure(job: Job, send: Send) -> None:
    """Measure every distinct node of the job's graph: on synthetic values, or on real ones where those do not do."""
    from remat_cli.profile.scratch import ScratchMeter, missing_feature
    from remat_cli.profile.stopwatch import Stopwatch

    if job.phase == "scratch" and (reason := missing_feature()):
        send("unavailable", reason)
        return
    if job.phase == "time":
        register_scratch_arena()
    entries, _ = distinct_entries(job.graph)
    meter: Meter = Stopwatch(job.device, job.threads, send) if job.phase == "time" else ScratchMeter(send)
    direct = [entry for entry in entries if not entry.needs_values and entry.node.id not in job.fragile]
    real = {entry.node.id: entry for entry in entries if entry.needs_values or entry.node.id in job.fragile}
    operands = Operands(job.graph, direct, job.device, job.feeds, job.seed, spread=job.phase == "time")
    for entry in direct:
        send("begin", entry.node.id)
        try:
            _measure_direct(job, meter, operands, entry)
        except Exception:
            # onnxruntime's exceptions share no base class. Indices out of range and shapes that hang on values end
            # here; what is wrong with any values fails again below, and is reported there.
            real[entry.node.id] = entry
    if real:
        _measure_with_values(job, meter, send, real)
    meter.finish()
    send("done")


def _measure_direct(job: Job, meter: Meter, operands: Operands, entry: Entry) -> None:
    session = _session(job, entry.model)
    bindings, kept = operands.bind(entry, session)
    places = cycle([binding._iobinding for binding in bindings])
    run = partial(_run_next, session._sess.run_with_iobinding, places, _run_options(job.device), (bindings, kept))
    meter.add(entry, run, bindings[0].synchronize_outputs if job.device.kind == "cuda" else _nothing)


def _run_next(call: Callable[[Any, Any], None], places: Iterator[Any], options: Any, kept: object) -> None:
    # The call that engines make; InferenceSession.run_with_iobinding adds Python around it. `kept` only lives on.
    call(next(places), options)


def _nothing() -> None:
    """A run on the CPU is done when it returns."""


def _run_options(device: Device) -> Any:
    """On CUDA runs are queued, as in an engine, and waited for together."""
    if device.kind == "cpu":
        return None
    import onnxruntime as ort

    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options


def _session(job: Job, model: bytes) -> Any:
    """With an engine's options; for scratch, with kernels that ask malloc for each piece."""
    timing = job.phase == "time"
    return make_session(
        model, job.device, threads=job.threads, shared_scratch=timing, memory_arena=timing, prepack=False
    )


def _measure_with_values(job: Job, meter: Meter, send: Send, wanted: dict[str, Entry]) -> None:
    """Run all that the wanted entries depend on, and them, on real values."""
    feeds = merged_feeds(job.graph, job.feeds, job.seed)
    interpreter = Interpreter(job.graph, feeds, partial(_session, job))

    def visit(node: GraphNode, run: Callable[[], None]) -> None:
        if node.id in wanted:
            meter.add_with_values(wanted[node.id], run)
        else:
            run()

    for node in interpreter.ordered(ancestors(job.graph, wanted.keys())):
        send("begin", node.id)
        try:
            interpreter.run(node, visit)
        except Exception as error:
            raise _Refused(node.id, parse_message(str(error)).reason) from error


if __name__ == "__main__":
    main()
