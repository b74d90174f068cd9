"""Reading and writing profile files (`remat-profile/1`).

The same profile gives the same bytes on any machine: fixed key order, sorted maps, one node a line, so that a
remeasured node changes one line of a diff.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from remat_cli.atomic import write_atomic
from remat_cli.errors import FileFormatError, InputError
from remat_cli.ort_session import parse_device
from remat_cli.profile.types import FORMAT, VERSION, Profile, ProfileNode
from remat_cli.strict_json import convert, load_file

_MAJOR = VERSION.partition(".")[0]
_NODE_FIELD = re.compile(r"(?P<node>\$\.nodes\[\d+\])\[(?P<field>\d+)\](?:\[\d+\])?", re.ASCII)


def read_profile(path: Path) -> Profile:
    """The profile in `path`. Unknown fields are ignored, as a newer minor version may have them.

    Raises InputError when the file cannot be read, and FileFormatError with the JSON path for anything that is not
    a profile of this major version: bad JSON, negative or fractional figures, a node id given twice.
    """
    try:
        document = load_file(path)
        _check_format(document, str(path))
        profile = convert(document, Profile, str(path))
    except FileFormatError as error:
        raise _with_field_name(error, str(path)) from error
    _check_meaning(profile, str(path))
    return profile


def dumps(profile: Profile) -> bytes:
    """The bytes of the profile's file: UTF-8, LF, ending in a newline."""
    model = {"file": profile.model.file, "graph_sha256": profile.model.graph_sha256}
    device = {"name": profile.device.name, "threads": profile.device.threads, "model": profile.device.model}
    rows = [f"    {_json([*_row(node)])}" for node in profile.nodes]
    lines = [
        "{",
        f'  "format": {_json(profile.format)}, "format_version": {_json(profile.format_version)},',
        f'  "model": {_json({**model, "dims": _sorted(profile.model.dims)})},',
        f'  "device": {_json(device)},',
        f'  "versions": {_json(_sorted(profile.versions))},',
        f'  "workspace": {_json(profile.workspace)},',
        '  "nodes": [',
        *([",\n".join(rows)] if rows else []),
        "  ]",
        "}",
    ]
    return ("\n".join(lines) + "\n").encode()


def write_profile(profile: Profile, path: Path, *, force: bool = False) -> None:
    """Write `dumps(profile)` whole or not at all; only another profile is replaced without `force` (InputError)."""
    write_atomic(path, dumps(profile), force=force, ours=is_profile)


def is_profile(head: bytes) -> bool:
    """Whether a file that begins with `head` is a profile of ours."""
    return re.match(rb'\s*\{\s*"format"\s*:\s*"remat-profile"', head) is not None


def _row(node: ProfileNode) -> tuple[object, ...]:
    return (
        node.id,
        node.op_type,
        node.median_ns,
        node.spread_ns,
        node.workspace_bytes,
        list(node.output_bytes),
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _sorted(mapping: dict[str, int] | dict[str, str]) -> dict[str, int | str]:
    return dict(sorted(mapping.items()))


def _check_format(document: object, file: str) -> None:
    hint = "remat profile MODEL -o profile.json makes one"
    if not isinstance(document, dict):
        raise FileFormatError(file, "$", "not a profile: the file must hold one JSON object", hint)
    if document.get("format") != FORMAT:
        found = repr(document.get("format", document.get("schema", "nothing")))[:80]
        raise FileFormatError(file, "$.format", f"not a profile: the format must be {FORMAT!r}, got {found}", hint)
    version = document.get("format_version")
    if not isinstance(version, str) or re.fullmatch(r"\d{1,6}\.\d{1,6}", version, re.ASCII) is None:
        raise FileFormatError(
            file, "$.format_version", f"expected a string such as {VERSION!r}, got {repr(version)[:80]}"
        )
    if version.partition(".")[0] != _MAJOR:
        raise FileFormatError(
            file, "$.format_version", f"format {version} is unknown: this remat reads {_MAJOR}.x", "update remat"
        )


def _check_meaning(profile: Profile, file: str) -> None:
    try:
        parse_device(profile.device.name)
    except InputError as error:
        raise FileFormatError(file, "$.device.name", error.message, error.hint) from error
    first: dict[str, int] = {}
    for index, node in enumerate(profile.nodes):
        if (earlier := first.setdefault(node.id, index)) != index:
            raise FileFormatError(
                file, f"$.nodes[{index}][0]", f"id: {node.id!r} is given twice, first at $.nodes[{earlier}]"
            )


def _with_field_name(error: FileFormatError, file: str) -> FileFormatError:
    """Node rows are arrays: say which field the faulty position is."""
    match = _NODE_FIELD.fullmatch(error.where)
    names = ProfileNode.__struct_fields__
    if match is None or int(match["field"]) >= len(names):
        return error
    text = error.message.removeprefix(f"{file}: {error.where}: ")
    return FileFormatError(file, error.where, f"{names[int(match['field'])]}: {text}", error.hint)
