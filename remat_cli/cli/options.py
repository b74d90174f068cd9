"""Options that several commands share, their types, and the command class that lists examples."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from remat_cli.cli.boundary import Session
from remat_cli.cli.settings import Setting, config_callback
from remat_cli.errors import InputError
from remat_cli.ort_session import Device, parse_device
from remat_cli.units import Percent, parse_size

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:  # older versions of click cannot be subscripted
    _ParamType = click.ParamType

F = TypeVar("F", bound=Callable[..., Any])
STDOUT = Path("-")
_DIM = re.compile(r"(?P<name>.+)=(?P<size>[0-9]{1,18})", re.ASCII)


class RematCommand(click.Command):
    """A command whose help ends in examples; the tests run them."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **attributes: Any) -> None:
        attributes.setdefault("context_settings", {"help_option_names": ["-h", "--help"], "max_content_width": 100})
        super().__init__(*args, **attributes)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if self.examples:
            formatter.write_paragraph()
            formatter.write("Examples:\n")
            for example in self.examples:
                formatter.write(f"  {example}\n")


class BudgetType(_ParamType):
    """A size, a percent, and where `words` allows it ``auto`` or ``min``: bytes, `Percent` or the word."""

    name = "size"

    def __init__(self, *words: str) -> None:
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Percent | str:
        if isinstance(value, Percent) or value in self.words:
            return value  # type: ignore[no-any-return]
        return parse_size(str(value))


class DeviceType(_ParamType):
    """``cpu``, ``cuda`` or ``cuda:N``."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Device:
        return value if isinstance(value, Device) else parse_device(str(value))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in ("cpu", "cuda:0") if name.startswith(incomplete)]


class MethodType(_ParamType):
    """A method of the solver registry."""

    name = "method"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from remat_cli.solve.registry import find_method

        return find_method(str(value)).name

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from remat_cli.solve.registry import methods

        return [CompletionItem(m.name, help=m.summary) for m in methods() if m.name.startswith(incomplete)]


class DimType(_ParamType):
    """``NAME=N``: a symbolic dim and the size to fix it at."""

    name = "name=n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        match = _DIM.fullmatch(str(value))
        if match is None:
            raise InputError(f"{value!r} is not NAME=N", "name a dim and a whole number, such as --dim batch=8")
        return match["name"], int(match["size"])


def _dims(ctx: click.Context, parameter: click.Parameter, value: Sequence[tuple[str, int]]) -> dict[str, int]:
    dims: dict[str, int] = {}
    for name, size in value:
        if dims.setdefault(name, size) != size:
            raise InputError(f"dim {name} is given as {dims[name]} and as {size}", "give each name once")
    return dims


def _debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    session = ctx.find_object(Session)
    if session is not None:
        session.debug = value


def _option(*names: str, **attributes: Any) -> Callable[[F], F]:
    return click.option(*names, cls=Setting, **attributes)


dims_option = _option(
    "--dim", multiple=True, type=DimType(), callback=_dims, metavar="NAME=N",
    help="Fix a symbolic dim of the model; repeatable.",
)  # fmt: skip
device_option = _option("--device", type=DeviceType(), metavar="cpu|cuda:N", help="Device to run on.")
threads_option = _option(
    "--threads", type=click.IntRange(1, 1024), metavar="N", default=1, show_default=True, help="Threads of the CPU."
)
seed_option = _option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    metavar="N",
    default=0,
    show_default=True,
    help="Seed of all that is random.",
)
inputs_option = _option(
    "--inputs", type=click.Path(path_type=Path), metavar="NPZ", help="Values of the model's inputs, by name."
)
force_option = _option("--force", is_flag=True, help="Overwrite files that remat did not write.")


def output_option(text: str) -> Callable[[F], F]:
    """``-o``: a path, or ``-`` for stdout."""
    return _option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help=text)


quiet_option = _option("--quiet", is_flag=True, help="No progress, notes or summary: only what was asked for.")


def common_options(*more_formats: str) -> Callable[[F], F]:
    """``--format``, ``--config`` and ``--debug``, which nearly every command has. Formats: text, json, and more."""
    options = (
        _option(
            "--format", type=click.Choice(["text", "json", *more_formats]), default="text", show_default=True,
            help="Form of the result on stdout.",
        ),
        click.option(
            "--config", type=click.Path(path_type=Path), metavar="YAML", is_eager=True, expose_value=False,
            callback=config_callback, envvar="REMAT_CONFIG", show_envvar=True, help="Settings file.",
        ),
        click.option(
            "--debug", is_flag=True, is_eager=True, expose_value=False, callback=_debug, envvar="REMAT_DEBUG",
            help="Show tracebacks.",
        ),
    )  # fmt: skip

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def feeds_of(inputs: Path | None) -> dict[str, Any] | None:
    """The arrays of ``--inputs``, by name; None without it."""
    if inputs is None:
        return None
    from remat_cli.model.feeds import read_feeds

    return read_feeds(inputs)
