"""The error tree is the exit code table."""

from __future__ import annotations

import inspect

from remat_cli import errors
from remat_cli.errors import FileFormatError, RematError

EXIT_CODES = {
    "RematError": 70,
    "CheckFailed": 1,
    "InputError": 2,
    "FileFormatError": 2,
    "ModelError": 2,
    "InfeasibleError": 3,
    "NoScheduleError": 4,
    "DeviceError": 5,
    "InternalError": 70,
}


def test_every_class_has_its_exit_code() -> None:
    classes = {
        name: kind.exit_code
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, RematError)
    }
    assert classes == EXIT_CODES


def test_message_and_hint() -> None:
    fault = RematError("what, where", "the command that works")
    assert (str(fault), fault.message, fault.hint) == ("what, where", "what, where", "the command that works")
    assert RematError("what").hint is None


def test_format_errors_name_the_file_and_the_place() -> None:
    fault = FileFormatError("plan.json", "$.steps[3]", "is no step")
    assert fault.message == "plan.json: $.steps[3]: is no step"
    assert FileFormatError("plan.json", "", "is empty").message == "plan.json: is empty"
