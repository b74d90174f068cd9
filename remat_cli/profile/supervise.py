"""The parent's side of measuring: starts the child, follows it, and turns its end into an answer or an error."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from remat_cli.errors import DeviceError, InternalError, ModelError
from remat_cli.ort_session import Device
from remat_cli.profile.scratch import HEAP_ENVIRONMENT
from remat_cli.profile.worker import Job
from remat_cli.reporter import Task

_WORKER = "remat_cli.profile.worker"
_PACKAGE_ROOT = Path(__file__).parent.parent.parent
_OUT_OF_MEMORY = ("failed to allocate memory", "out of memory", "bad_alloc", "smaller than requested bytes")


@dataclass
class Outcome:
    """What a job found: entry (id of its first node) -> median and spread in ns, or scratch in bytes.

    `unavailable`: why scratch cannot be measured here, or "".
    """

    times: dict[str, tuple[int, int]] = field(default_factory=dict)
    scratch: dict[str, int] = field(default_factory=dict)
    unavailable: str = ""


class _Crash(Exception):
    """The child died while `node` ran; "" when it was not running any."""

    def __init__(self, node: str, how: str) -> None:
        super().__init__(how)
        self.node = node
        self.how = how


def run_job(job: Job, task: Task) -> Outcome:
    """Do `job` in a child process. An entry that crashes the child is tried once more, on real values.

    Raises ModelError when the runtime refuses a node, DeviceError when it dies on one or runs out of memory, naming
    the node in both; InternalError when the child fails by itself.
    """
    while True:
        try:
            return _run_child(job, task)
        except _Crash as crash:
            if not crash.node:
                raise InternalError(f"the measuring process ended by itself: {crash.how}") from crash
            if crash.node in job.fragile or not _is_entry(job, crash.node):
                label = _label(job, crash.node)
                raise DeviceError(
                    f"onnxruntime died ({crash.how}) while {label} ran on {job.device.name}",
                    "use estimated costs instead (--cost-model cpu), or change that node",
                ) from crash
            job = replace(job, fragile=job.fragile | {crash.node})


def _run_child(job: Job, task: Task) -> Outcome:
    environment = os.environ | {"PYTHONPATH": _python_path()}
    if job.phase == "scratch":
        environment |= HEAP_ENVIRONMENT
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        )
        try:
            return _follow(child, job, task, errors)
        finally:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()


def _python_path() -> str:
    """The child must import the package that runs, from wherever that is."""
    rest = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(_PACKAGE_ROOT), *([rest] if rest else [])])


def _follow(child: subprocess.Popen[bytes], job: Job, task: Task, errors: IO[bytes]) -> Outcome:
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        pickle.dump(job, child.stdin)
        child.stdin.close()
    except BrokenPipeError:
        raise _Crash("", _how(child.wait(), errors)) from None
    outcome, node = Outcome(), ""
    for line in child.stdout:
        message: list[Any] = json.loads(line)
        if message[0] == "begin":
            node = message[1]
        elif message[0] == "time":
            outcome.times[message[1]] = (message[2], message[3])
        elif message[0] == "scratch":
            outcome.scratch[message[1]] = message[2]
        elif message[0] == "progress":
            task.advance(1, _label(job, node))
        elif message[0] == "failed":
            raise _refusal(job, message[1], message[2])
        elif message[0] == "unavailable":
            outcome.unavailable = message[1]
            return outcome
        elif message[0] == "done":
            return outcome
    code = child.wait()
    # A Python exception of ours ends with 1, and is no fault of the node.
    raise _Crash("" if code >= 0 else node, _how(code, errors))


def _refusal(job: Job, node: str, reason: str) -> Exception:
    label, device = _label(job, node), job.device.name
    if any(words in reason.lower() for words in _OUT_OF_MEMORY):
        return DeviceError(f"{label} cannot be measured on {device}: out of memory: {reason}", _memory_hint(job.device))
    return ModelError(
        f"{label} cannot be run on {device}: {reason}",
        "give inputs that the model accepts (--inputs feeds.npz), or use estimated costs (--cost-model cpu)",
    )


def _memory_hint(device: Device) -> str:
    return f"fix smaller dims (--dim batch=1), or use estimated costs (--cost-model {device.kind})"


def _how(code: int, errors: IO[bytes]) -> str:
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return f"exit status {code}{': ' + lines[-1] if lines else ''}"


def _is_entry(job: Job, node: str) -> bool:
    """Whether the node may have been measured on synthetic values."""
    from remat_cli.profile.entries import distinct_entries

    return any(entry.node.id == node and not entry.needs_values for entry in distinct_entries(job.graph)[0])


def _label(job: Job, node: str) -> str:
    return next((n.label for n in job.graph.nodes if n.id == node), node)
