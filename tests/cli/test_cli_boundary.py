"""Exceptions become lines and exit codes in one place."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from remat_cli import errors
from remat_cli.cli.boundary import Session, guarded


def raising(fault: BaseException) -> Callable[[], object]:
    def invoke() -> object:
        raise fault

    return invoke


@pytest.mark.parametrize(
    ("fault", "code", "text"),
    [
        (
            errors.CheckFailed("peak 9 over budget 8", "remat solve"),
            1,
            "error: peak 9 over budget 8\nhint: remat solve\n",
        ),
        (errors.InputError("no"), 2, "error: no\n"),
        (errors.ModelError("no"), 2, "error: no\n"),
        (errors.InfeasibleError("no"), 3, "error: no\n"),
        (errors.NoScheduleError("no"), 4, "error: no\n"),
        (errors.DeviceError("no"), 5, "error: no\n"),
        (click.UsageError("Got unexpected extra argument (b)"), 2, "error: Got unexpected extra argument (b)\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (click.Abort(), 130, "error: interrupted\n"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "m.onnx"), 2, "error: m.onnx: No such file"),
        (PermissionError(errno.EACCES, "Permission denied", "m.onnx"), 2, "error: m.onnx: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device", "plan.json"), 5, "error: plan.json: No space left"),
        (MemoryError(), 5, "error: this machine has no memory left\n"),
        (KeyError("v"), 70, "error: this is a fault of remat: KeyError: 'v'\nhint: run the command again with --debug"),
        (RecursionError("too deep"), 70, "error: this is a fault of remat: RecursionError: too deep\n"),
    ],
)
def test_exceptions(fault: BaseException, code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(fault), Session()) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(text)
    assert "Traceback" not in printed.err


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(KeyError("v")), Session(debug=True)) == 70
    printed = capsys.readouterr().err
    assert "Traceback (most recent call last)" in printed
    assert printed.splitlines()[-2] == "error: this is a fault of remat: KeyError: 'v'"


def test_statuses_of_commands_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: 1, Session()) == 1
    assert guarded(lambda: None, Session()) == 0
    assert capsys.readouterr().err == ""


def test_text_that_stderr_cannot_encode_is_escaped(bare: Path) -> None:
    command = [sys.executable, "-c", "from remat_cli.cli.main import main; main()", "info", "größe-\u20ac.onnx"]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, cwd=bare, env=env, timeout=60, check=False)
    assert done.returncode == 2
    assert b"error: gr\\xf6\\xdfe-\\u20ac.onnx" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals and pipes of POSIX")
def test_a_closed_pipe_is_quiet(bare: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from remat_cli.cli.main import main; main()", "completion", "bash"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_interrupt_ends_with_130(bare: Path) -> None:
    script = (
        "import os, signal, click\n"
        "from remat_cli.cli import main, doctor\n"
        "@click.command()\n"
        "def wait():\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "doctor.command = wait\n"
        "main.cli.main(['doctor'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr.strip() == "error: interrupted"
