"""Writing output files: whole or not at all, and never over a file that is somebody else's."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from remat_cli.errors import InputError

# Enough of an old file to know it by: our formats name themselves in their first bytes.
HEAD_BYTES = 2**16


def write_atomic(path: Path, data: bytes, *, force: bool, ours: Callable[[bytes], bool]) -> None:
    """Make `data` the contents of `path`: readers see the old file or the new one, never half of it.

    An existing file is replaced when it is empty, when `ours` says of its first `HEAD_BYTES` bytes that we wrote
    it, or with `force`; its permissions stay, and a symbolic link keeps pointing to it. Pipes and devices
    (``/dev/null``) are written to as they are. Raises InputError when the file is not ours or cannot be written.
    """
    try:
        target = Path(os.path.realpath(path))
        status = target.stat() if target.exists() else None
        if status is not None and not stat.S_ISREG(status.st_mode):
            _write_special(path, target, data, status)
            return
        if status is not None and not force:
            _check_ours(path, target, ours)
        _replace(target, data, stat.S_IMODE(status.st_mode) if status else None)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


def _write_special(path: Path, target: Path, data: bytes, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path}: is a folder", f"name a file in it, such as {path / 'out.json'}")
    with target.open("wb") as stream:
        stream.write(data)


def _check_ours(path: Path, target: Path, ours: Callable[[bytes], bool]) -> None:
    with target.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    if head and not ours(head):
        raise InputError(
            f"{path}: exists and was not written by remat", "choose another name, or replace it with --force"
        )


def _replace(target: Path, data: bytes, mode: int | None) -> None:
    # Not named after the target: its name may already be as long as names can be.
    temporary = target.parent / f".remat-{secrets.token_hex(8)}.tmp"
    # Plain open() rather than tempfile: new files then get the user's umask, not 0600.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
