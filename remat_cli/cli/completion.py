"""``remat completion``: the script that makes a shell complete commands, options, methods and devices."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from remat_cli.cli.main import cli
from remat_cli.cli.options import RematCommand


@click.command(
    "completion",
    cls=RematCommand,
    examples=("remat completion bash", "remat completion zsh", "remat completion fish"),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    Load it with `eval "$(remat completion bash)"` in ~/.bashrc, the same with zsh in ~/.zshrc, or
    `remat completion fish > ~/.config/fish/completions/remat.fish`.
    """
    completion = get_completion_class(shell)
    assert completion is not None  # click has all three
    click.echo(completion(cli, {}, "remat", "_REMAT_COMPLETE").source())
