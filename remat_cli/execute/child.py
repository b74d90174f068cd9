"""Starting the worker, and turning whatever becomes of it into a report or an error of ours."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from remat_cli import errors
from remat_cli.device_memory import free_bytes
from remat_cli.errors import DeviceError, InternalError, RematError
from remat_cli.execute.job import JOB_FILE, PROGRESS_BYTES, PROGRESS_FILE, REPORT_FILE, ChildError, Job, Report
from remat_cli.ort_session import Device

_WORKER = "remat_cli.execute.worker"
# Large pieces go back to the system when a kernel frees them, rather than staying in the C library's heap. It is read
# when a process starts, makes no measurable difference in time, and means nothing to other C libraries.
_HEAP_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
# The number of a process that Windows ended for an access violation, and the like, is above this.
_WINDOWS_FAULT = 0xC0000000


def run_child(job: Job, folder: Path) -> Report:
    """The report of `job`, done by a process of its own in `folder`, which must be private and empty.

    Raises what the child raised; DeviceError, naming the node, when it crashed or was killed; InternalError for a fault
    of ours. An interrupt ends the child.
    """
    (folder / JOB_FILE).write_bytes(pickle.dumps(job))
    (folder / PROGRESS_FILE).write_bytes(bytes(PROGRESS_BYTES))
    code, log = _run(job, folder)
    report = folder / REPORT_FILE
    if code != 0 or not report.exists():
        raise _death(job, folder, code, log)
    found = msgspec.json.decode(report.read_bytes(), type=Report)
    if found.error is not None:
        raise _raised(found.error)
    return found


def _run(job: Job, folder: Path) -> tuple[int, str]:
    """Exit status, and what the child wrote to stderr."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH", ""))))
    command = [sys.executable, "-m", _WORKER, str(folder)]
    log = folder / "log"
    with log.open("wb") as stream:
        child = subprocess.Popen(
            command,
            env=os.environ | (_HEAP_ENVIRONMENT if job.role != "default" else {}) | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
        try:
            code = child.wait()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    return code, log.read_text(errors="replace")


def _death(job: Job, folder: Path, code: int, log: str) -> RematError:
    what = (folder / PROGRESS_FILE).read_bytes().rstrip(b"\0").decode(errors="replace") or "starting"
    if code == -_SIGKILL:
        needs = f" It needs {job.program.peak_bytes} bytes." if job.program is not None else ""
        return DeviceError(
            f"the system killed the {job.role} run (SIGKILL, most likely for want of memory) while {what}.{needs}"
            f" Free now: {_free()}",
            "solve with a smaller budget, or free memory",
        )
    if code < 0 or code >= _WINDOWS_FAULT:
        return DeviceError(f"onnxruntime crashed ({_signal_name(code)}) while {what}", "run `remat doctor`")
    lines = log.strip().splitlines()
    return InternalError(f"the {job.role} run failed while {what}: {lines[-1] if lines else f'exit status {code}'}")


def _raised(error: ChildError) -> RematError:
    kind = getattr(errors, error.kind, InternalError)
    if kind is errors.FileFormatError:
        # Its constructor wants the place apart from the message, which has it already.
        kind = errors.InputError
    raised: RematError = kind(error.message, error.hint)
    return raised


# Windows has no such signal.
_SIGKILL = int(getattr(signal, "SIGKILL", 9))


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit status {code}"


def _free() -> str:
    try:
        return f"{free_bytes(Device())} bytes"
    except DeviceError:
        return "not known"
