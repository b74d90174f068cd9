"""Reading and writing plan files (`remat-plan/1`).

The same plan gives the same bytes on any machine: fixed key order, sorted dims, one row or step a line, no numbers on
the lines, so that one more step changes one line of a diff.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec

from remat_cli.atomic import write_atomic
from remat_cli.errors import FileFormatError, InputError
from remat_cli.plan.convert import problem_of, steps_of_plan
from remat_cli.plan.types import FORMAT, VERSION, Plan, PlanNode, PlanStep, PlanTensor
from remat_cli.strict_json import convert, load_file, load_strict

_MAJOR = VERSION.partition(".")[0]
_HINT = "remat solve MODEL --budget SIZE -o plan.json makes one"
_ROWS: dict[str, type[msgspec.Struct]] = {"tensors": PlanTensor, "nodes": PlanNode, "steps": PlanStep}
_ROW_FIELD = re.compile(r"\$\.(?P<table>tensors|nodes|steps)\[\d+\]\[(?P<field>\d+)\](?:\[\d+\])?", re.ASCII)


def load_plan(path: Path) -> Plan:
    """The plan in the file `path`; see `parse_plan`. InputError when the file cannot be read."""
    try:
        document = load_file(path)
    except FileFormatError as error:
        raise _foreign(error, str(path)) from error
    return _plan_of(document, str(path))


def parse_plan(data: bytes, file: str) -> Plan:
    """The plan in `data`, the contents of `file`.

    Unknown fields are ignored, as a newer minor version may have them. Folders before the names of the model and of
    the cost file are cut off: where a plan was made is no part of it. Raises FileFormatError with the JSON path for
    everything that is not a plan of this major version: bad JSON, wrong types, negative sizes, names that are given
    twice or that nothing has. Whether the steps are legal is another question: see `remat_cli.plan.check`.
    """
    try:
        document = load_strict(data, file)
    except FileFormatError as error:
        raise _foreign(error, file) from error
    return _plan_of(document, file)


def dump_plan(plan: Plan) -> bytes:
    """The bytes of the plan's file: UTF-8, LF, ending in a newline. InputError for names that UTF-8 cannot hold."""
    fields = [f'  "format": {_json(plan.format)}, "format_version": {_json(plan.format_version)}']
    for name in Plan.__struct_fields__[2:]:
        value = getattr(plan, name)
        if isinstance(value, tuple):
            fields.append(f'  "{name}": {_table(value)}')
        else:
            fields.append(f'  "{name}": {_json(_header(value))}')
    text = "{\n" + ",\n".join(fields) + "\n}\n"
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        name = text[max(0, error.start - 40) : error.start].rpartition('"')[2]
        raise InputError(
            f"a name that begins with {name!r} holds half of a surrogate pair, which is no character"
        ) from error


def write_plan(plan: Plan, path: Path, *, force: bool = False) -> None:
    """Write `dump_plan(plan)` whole or not at all; only another plan is replaced without `force` (InputError)."""
    write_atomic(path, dump_plan(plan), force=force, ours=is_plan)


def is_plan(head: bytes) -> bool:
    """Whether a file that begins with `head` is a plan of ours."""
    return re.match(rb'\s*\{\s*"format"\s*:\s*"remat-plan"', head) is not None


def _table(rows: tuple[object, ...]) -> str:
    if not rows:
        return "[]"
    return "[\n" + ",\n".join(f"    {_json(_row(row))}" for row in rows) + "\n  ]"


def _row(row: object) -> object:
    if not isinstance(row, msgspec.Struct):
        return row
    fields = [getattr(row, name) for name in row.__struct_fields__]
    for default in reversed(row.__struct_defaults__):
        if fields[-1] != default:
            break
        fields.pop()
    return fields


def _header(value: object) -> object:
    if not isinstance(value, msgspec.Struct):
        return value
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    return {name: dict(sorted(v.items())) if isinstance(v, dict) else v for name, v in fields.items()}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plan_of(document: object, file: str) -> Plan:
    _check_format(document, file)
    try:
        plan = convert(document, Plan, file)
    except FileFormatError as error:
        raise _with_field_name(error, file) from error
    problem = problem_of(plan, file)
    steps_of_plan(plan, problem, file)
    model = msgspec.structs.replace(plan.model, file=_bare(plan.model.file))
    costs = msgspec.structs.replace(plan.costs, file=_bare(plan.costs.file))
    return msgspec.structs.replace(plan, model=model, costs=costs)


def _bare(name: str) -> str:
    return re.split(r"[/\\]", name)[-1]


def _foreign(error: FileFormatError, file: str) -> FileFormatError:
    """The reader's own fault, with a hint where it has none."""
    text = error.message.removeprefix(f"{file}: ")
    text = text.removeprefix(f"{error.where}: ") if error.where else text
    return FileFormatError(file, error.where, text, error.hint or _HINT)


def _check_format(document: object, file: str) -> None:
    if not isinstance(document, dict):
        raise FileFormatError(file, "$", "not a plan: the file must hold one JSON object", _HINT)
    if document.get("format") != FORMAT:
        found = repr(document.get("format", document.get("schema", "nothing")))[:80]
        raise FileFormatError(file, "$.format", f"not a plan: the format must be {FORMAT!r}, got {found}", _HINT)
    version = document.get("format_version")
    match = (
        re.fullmatch(r"(?P<major>\d{1,9})(?P<minor>\.\d{1,9})?", version, re.ASCII)
        if isinstance(version, str)
        else None
    )
    major = match["major"] if match else None
    if match is None or (major == _MAJOR and match["minor"] is None):
        found = repr(version)[:80]
        raise FileFormatError(file, "$.format_version", f"expected a string such as {VERSION!r}, got {found}", _HINT)
    if major != _MAJOR:
        raise FileFormatError(
            file, "$.format_version", f"this is plan format {major}, and this remat reads format {_MAJOR}",
            "update remat, or solve again with this version",
        )  # fmt: skip


def _with_field_name(error: FileFormatError, file: str) -> FileFormatError:
    """Rows are arrays: say which field the faulty position is."""
    match = _ROW_FIELD.fullmatch(error.where)
    names = _ROWS[match["table"]].__struct_fields__ if match else ()
    if match is None or int(match["field"]) >= len(names):
        return error
    text = error.message.removeprefix(f"{file}: {error.where}: ")
    return FileFormatError(file, error.where, f"{names[int(match['field'])]}: {text}", error.hint)
