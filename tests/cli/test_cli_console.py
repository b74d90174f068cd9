"""What goes to stdout and stderr, on a terminal and in a pipe."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from remat_cli.cli.console import ConsoleReporter, Terminal, _console

COLOUR = re.compile(rb"\x1b\[[0-9;]*(3[0-7]|9[0-7]|38)[0-9;]*m")


def test_lines_are_neither_wrapped_nor_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    text = "[bold]x[/bold] :smile: " + "y" * 500
    Terminal().line(text)
    assert capsys.readouterr().out == text + "\n"


def test_facts_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().facts([("a", "1"), ("long name", "2")])
    assert capsys.readouterr().out == "a          1\nlong name  2\n"


def test_tables_cut_long_names_and_escape_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().table(("name", "n"), [("a" * 500, 1), ("\x1b[2J", 22)], right=("n",))
    header, first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("aaa")
    assert "..." in first
    assert len(first) < 80
    assert second.startswith("\\x1b[2J")
    assert [line[-2:] for line in (header, first, second)] == [" n", " 1", "22"]


def test_json_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal(json_output=True).json({"name": "ä" * 300})
    assert "ä" * 300 in capsys.readouterr().out


def test_a_piped_reporter_says_what_it_does_in_lines() -> None:
    stream = io.StringIO()
    reporter = ConsoleReporter(_console(stream))
    reporter.note("folded 3 nodes")
    with reporter.task("timing", 10) as task:
        task.advance(5, "half")
    assert stream.getvalue() == "note: folded 3 nodes\ntiming ...\n"


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of POSIX")
@pytest.mark.parametrize("no_color", [False, True])
def test_progress_on_a_terminal(folder: Path, no_color: bool) -> None:
    master, slave = os.openpty()
    script = "from remat_cli.cli.main import main; main()"
    env = {**os.environ, "TERM": "xterm-256color"} | ({"NO_COLOR": "1"} if no_color else {})
    process = subprocess.Popen(
        [sys.executable, "-c", script, "profile", "model.onnx"], stdout=subprocess.PIPE, stderr=slave, env=env
    )
    os.close(slave)
    shown = b""
    try:
        while block := os.read(master, 65536):
            shown += block
    except OSError:  # Linux: the other end is closed
        pass
    os.close(master)
    assert process.stdout is not None
    out = process.stdout.read()
    process.stdout.close()
    assert process.wait() == 0
    assert b"timing" in shown
    assert b"\x1b" not in out
    assert bool(COLOUR.search(shown)) is not no_color
