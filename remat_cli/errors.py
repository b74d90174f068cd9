"""Every error that a user may see: one class an exit code.

Library code raises these; `remat_cli.cli.boundary` is the only place that prints them, as
``error: <message>`` and ``hint: <hint>``. A message says what, where, and with which numbers; a hint is
the command or the change that would work.
"""

from __future__ import annotations


class RematError(Exception):
    """Base of all expected errors. `exit_code` is the process' exit status."""

    exit_code = 70

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class CheckFailed(RematError):
    """A plan was read and is wrong, or two things that should be equal differ."""

    exit_code = 1


class InputError(RematError):
    """Bad usage or a bad input file (model, profile, plan, problem, configuration)."""

    exit_code = 2


class FileFormatError(InputError):
    """A JSON or YAML file breaks its format; `where` is the JSON path of the place, such as ``$.steps[3]``."""

    def __init__(self, file: str, where: str, message: str, hint: str | None = None) -> None:
        super().__init__(f"{file}: {where}: {message}" if where else f"{file}: {message}", hint)
        self.file = file
        self.where = where


class ModelError(InputError):
    """The model cannot be loaded, sized or run; the message names the node, operator and reason."""


class InfeasibleError(RematError):
    """It is proved that no schedule fits the budget."""

    exit_code = 3


class NoScheduleError(RematError):
    """No schedule was found within the limits; nothing is proved."""

    exit_code = 4


class DeviceError(RematError):
    """The device or the runtime failed: out of memory, provider missing, measured peak over the budget."""

    exit_code = 5


class InternalError(RematError):
    """A fault of ours, such as a solver whose schedule the oracle rejects."""

    exit_code = 70
