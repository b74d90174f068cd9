"""The only error boundary: where exceptions become ``error:`` and ``hint:`` lines and an exit status.

| exception | status |
| --- | --- |
| RematError | its own `exit_code` |
| click's usage errors | 2 |
| files that cannot be opened or written | 2 |
| other failures of the operating system, no memory | 5 |
| interrupt | 130 |
| the reader of stdout went away | 141, silently, as for any Unix tool |
| anything else | 70: a fault of remat |
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import click

from remat_cli.errors import DeviceError, InputError, InternalError, RematError
from remat_cli.report.text import shown

INTERRUPTED = 130
PIPE_CLOSED = 141
# \U0010ffff: what one character can become.
_LONGEST_ESCAPE = 10
_USERS_FILE_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)


@dataclass
class Session:
    """State of one invocation. `debug`: show tracebacks (set by ``--debug``)."""

    debug: bool = False


class PipeClosedError(Exception):
    """BrokenPipeError under a name that click does not handle by itself."""


def guarded(invoke: Callable[[], object], session: Session) -> int:
    """Run `invoke` and return the process' exit status; every error is printed here and nowhere else."""
    try:
        result = invoke()
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except (PipeClosedError, BrokenPipeError):
        _abandon_stdout()
        return PIPE_CLOSED
    except (KeyboardInterrupt, click.Abort):
        _print("interrupted", None)
        return INTERRUPTED
    except click.ClickException as fault:
        _print(fault.format_message(), _usage_hint(fault))
        return 2
    except Exception as fault:
        if session.debug:
            traceback.print_exc()
        error = fault if isinstance(fault, RematError) else _translate(fault)
        _print(error.message, error.hint)
        return error.exit_code


def _translate(fault: Exception) -> RematError:
    """The RematError for an exception that the library let pass."""
    if isinstance(fault, MemoryError):
        return DeviceError("this machine has no memory left", "close other programs, or use a smaller model or batch")
    if isinstance(fault, _USERS_FILE_ERRORS) and fault.strerror:
        return InputError(f"{fault.filename or 'file'}: {fault.strerror}")
    if isinstance(fault, OSError) and fault.strerror:
        return DeviceError(f"{fault.filename or 'the operating system'}: {fault.strerror}")
    text = " ".join(str(fault).split())
    return InternalError(
        f"this is a fault of remat: {type(fault).__name__}" + (f": {text}" if text else ""),
        "run the command again with --debug and report what it prints",
    )


def _usage_hint(fault: click.ClickException) -> str | None:
    context = fault.ctx if isinstance(fault, click.UsageError) else None
    return f"`{context.command_path} --help` lists what it takes" if context is not None else None


def _print(message: str, hint: str | None) -> None:
    """The two lines, on stderr, after all results. Names from files may hold anything: what is not printable, or
    cannot be encoded there, is escaped."""
    lines = [f"error: {printable(message)}"] + ([f"hint: {printable(hint)}"] if hint else [])
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    text = "\n".join(lines).encode(encoding, "backslashreplace").decode(encoding)
    try:
        sys.stdout.flush()
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        _abandon_stdout()


def printable(text: str) -> str:
    """`text` as one line without control characters, which could drive a terminal."""
    return shown(text, len(text) * _LONGEST_ESCAPE)


def _abandon_stdout() -> None:
    """Point stdout at nothing, or the interpreter complains about the closed pipe when it flushes at exit."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
