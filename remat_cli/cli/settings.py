"""Settings: flag, else ``REMAT_*`` of the environment, else the file of ``--config``, else the default.

A setting has one name everywhere: ``--time-limit``, ``REMAT_TIME_LIMIT`` and ``time_limit:``. One file may serve all
commands: each takes the settings that it has. Values are checked by the option that they stand for, and a refusal
says where the value came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from remat_cli.errors import InputError


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All keys of a settings file, with the types that YAML must give them. An absent key is None."""

    budget: int | str | None = None
    method: str | None = None
    effort: str | None = None
    seed: int | None = None
    time_limit: int | float | None = None
    device: str | None = None
    cost_model: str | None = None
    threads: int | None = None
    in_place: bool | None = None
    dim: dict[str, int] | None = None
    iterations: int | None = None
    format: str | None = None
    quiet: bool | None = None


def load_settings(path: Path) -> dict[str, Any]:
    """The settings of a YAML file as click's `default_map`. An empty file has none.

    Raises FileFormatError (file, line, key) for unknown or repeated keys, wrong types, tags, and scalars that YAML
    readers disagree about.
    """
    from remat_cli.strict_yaml import convert_yaml, load_yaml_file

    settings: dict[str, Any] = msgspec.to_builtins(convert_yaml(load_yaml_file(path), Settings))
    if "dim" in settings:
        settings["dim"] = [f"{name}={size}" for name, size in settings["dim"].items()]
    return settings


class Setting(click.Option):
    """An option that the environment and a settings file can set too, when `Settings` has its name.

    Any fault of its value is an InputError that begins with the source: ``--budget``, ``REMAT_BUDGET`` or
    ``budget in FILE``.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        if self.name in Settings.__struct_fields__:
            self.envvar = f"REMAT_{self.name.upper()}"
            self.show_envvar = True

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        try:
            return super().handle_parse_result(ctx, opts, args)
        except click.MissingParameter:
            raise
        except click.BadParameter as fault:
            raise InputError(f"{self._source(ctx)}: {fault.message}", _help_hint(ctx)) from fault
        except InputError as fault:
            raise InputError(f"{self._source(ctx)}: {fault.message}", fault.hint) from fault

    def _source(self, ctx: click.Context) -> str:
        source = ctx.get_parameter_source(self.name) if self.name else None
        if source == ParameterSource.ENVIRONMENT:
            return str(self.envvar)
        if source == ParameterSource.DEFAULT_MAP:
            return f"{self.name} in {ctx.meta.get('remat.config', 'the settings file')}"
        return max(self.opts, key=len)


def _help_hint(ctx: click.Context) -> str:
    return f"`{ctx.command_path} --help` lists what it takes"


def config_callback(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    """Make the settings file the defaults of this command."""
    if value is not None and not ctx.resilient_parsing:
        ctx.meta["remat.config"] = value.name
        ctx.default_map = load_settings(value)


def most_explicit(ctx: click.Context, *names: str) -> str | None:
    """Which one of rival options was asked for: a flag beats the environment, which beats the settings file.

    None when none was. Raises InputError when two come from the same place.
    """
    order = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)
    for source in order:
        given = [name for name in names if ctx.get_parameter_source(name) == source]
        if len(given) > 1:
            flags = " and ".join("--" + name.replace("_", "-") for name in given)
            raise InputError(f"{flags} exclude each other", f"give only one of them; {_help_hint(ctx)}")
        if given:
            return given[0]
    return None
