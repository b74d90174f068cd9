"""The examples of every help text, run as they stand."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from remat_cli.cli.main import COMMANDS, cli

EXAMPLES = [(name, line) for name in COMMANDS for line in cli.get_command(None, name).examples]


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_example(remat, folder: Path, name: str, line: str) -> None:
    shutil.copy("model.plan.json", "old.plan.json")
    shutil.copy("full.plan.json", "new.plan.json")
    if "--check" in line:
        assert remat("solve", "model.onnx", "--budget", "60%").code == 0
    command, _, target = line.partition(" > ")
    program, *args = shlex.split(command)
    assert program == "remat"
    assert args[0] == name
    done = remat(*args)
    differs = name == "diff"
    assert done.code == int(differs), done.err
    assert done.out or "--quiet" in args
    if target:
        Path(target).write_text(done.out)
        assert remat("check", target).code == 0
