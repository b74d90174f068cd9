"""The group: help, version, wrong commands, completion."""

from __future__ import annotations

import re

import pytest

from remat_cli import __version__
from remat_cli.cli.main import COMMANDS, cli


def test_help_lists_every_command(remat) -> None:
    shown = remat("--help")
    assert shown.code == 0
    assert all(re.search(rf"^  {name} ", shown.out, re.MULTILINE) for name in COMMANDS)
    assert remat("-h").out == remat().out == shown.out


def test_version(remat) -> None:
    assert remat("--version").out == f"remat {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_examples(remat, name: str) -> None:
    shown = remat(name, "-h")
    assert shown.code == 0
    assert shown.out == remat(name, "--help").out
    command = cli.get_command(None, name)
    assert command.name == name
    assert command.examples
    assert "Examples:\n" + "".join(f"  {line}\n" for line in command.examples) in shown.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name: str) -> None:
    for parameter in cli.get_command(None, name).params:
        assert parameter.param_type_name == "argument" or parameter.help, (name, parameter.name)


def test_unknown_command(remat) -> None:
    shown = remat("slove")
    assert (shown.code, shown.error) == (2, "No such command 'slove'. Did you mean 'solve'?")
    assert shown.hint == "`remat --help` lists what it takes"


def test_unknown_option(remat) -> None:
    shown = remat("solve", "model.onnx", "--bugdet", "60%")
    assert shown.code == 2
    assert shown.error.startswith("No such option '--bugdet'")
    assert shown.hint == "`remat solve --help` lists what it takes"


def test_missing_argument_and_option(remat) -> None:
    assert remat("solve").error.startswith("Missing argument 'MODEL|PROBLEM.json'")
    shown = remat("solve", "model.onnx")
    assert (shown.code, shown.error) == (2, "Missing option '--budget' (env var: 'REMAT_BUDGET').")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(remat, shell: str) -> None:
    shown = remat("completion", shell)
    assert shown.code == 0
    assert f"_REMAT_COMPLETE={shell}_complete" in shown.out


def test_completion_of_commands_and_methods(remat_process) -> None:
    def complete(words: str) -> list[str]:
        env = {"_REMAT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return remat_process(env=env).out.split()

    assert complete("remat so") == ["plain,solve"]
    assert complete("remat solve model.onnx --method gr") == ["plain,greedy"]
