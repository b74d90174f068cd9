"""JSON as our files are read: nothing doubtful is let through, and every fault is named with its JSON path.

Python's `json` keeps the last of two equal keys, takes NaN, reads 1e400 as infinity and integers of any length.
Here each of these is a `FileFormatError` such as ``plan.json: $.steps[3][1]: NaN is not a JSON number``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import TypeVar

import msgspec

from remat_cli.errors import FileFormatError, InputError

# Files of 50,000-node graphs stay below 50 MB; more is the wrong file, and would be held in memory several times.
MAX_BYTES = 2**29
# Our formats nest five deep; recursive readers overflow near a thousand.
MAX_DEPTH = 64
_MAX_INT = 2**63 - 1
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_MSGSPEC_PATH = re.compile(r"(?P<what>.*) - at `(?P<where>\$[^`]*)`", re.DOTALL)

T = TypeVar("T")


@dataclass(frozen=True)
class _Fault:
    """Takes the place of a bad value until the walk over the document knows its path."""

    message: str


def load_file(path: Path) -> object:
    """`load_strict` of a file; messages name it as `path` does. InputError when it cannot be read."""
    return load_strict(read_at_most(path, MAX_BYTES), str(path))


def read_at_most(path: Path, limit_bytes: int) -> bytes:
    """The contents of a file; InputError when it cannot be read or is larger (or endless)."""
    try:
        with path.open("rb") as stream:
            data = stream.read(limit_bytes + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > limit_bytes:
        raise InputError(f"{path}: larger than the {limit_bytes} bytes that are read")
    return data


def load_strict(data: bytes, file: str) -> object:
    """The document in `data`: dicts, lists, strings, ints of 64 bits, finite floats, bools and None.

    `file` names the source in messages. Raises FileFormatError for syntax errors (line and column), bytes that
    are not UTF-8, repeated keys, NaN and infinities (spelt, or by overflow as 1e400), integers beyond 64 bits,
    lone surrogates, nesting deeper than `MAX_DEPTH` and more than `MAX_BYTES`.
    """
    if len(data) > MAX_BYTES:
        raise FileFormatError(file, "", f"{len(data)} bytes, more than the {MAX_BYTES} that are read")
    document = _parse(_decode(data, file), file)
    _check(document, file)
    return document


def convert(document: object, kind: type[T], file: str) -> T:
    """`document` as `kind` (msgspec, strict: no int from a float, string or bool); FileFormatError with the path.

    Fields that `kind` does not know are ignored: a newer minor version may have them.
    """
    try:
        return msgspec.convert(document, kind, strict=True)
    except msgspec.ValidationError as error:
        match = _MSGSPEC_PATH.fullmatch(str(error))
        where, what = (match["where"], match["what"]) if match else ("$", str(error))
        raise FileFormatError(file, where, what[:1].lower() + what[1:]) from error


def _decode(data: bytes, file: str) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(
            file, "", f"not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}"
        ) from error
    if text.startswith("\ufeff"):
        raise FileFormatError(
            file, "line 1, column 1", "not JSON: a byte order mark", "save the file as UTF-8 without BOM"
        )
    return text


def _parse(text: str, file: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_int, parse_float=_float, parse_constant=_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise FileFormatError(file, place, f"not JSON: {error.msg[:1].lower()}{error.msg[1:]}") from error
    except RecursionError as error:
        raise FileFormatError(file, "", f"nested deeper than {MAX_DEPTH} levels") from error


def _object(pairs: list[tuple[str, object]]) -> object:
    members: dict[str, object] = {}
    for key, value in pairs:
        # The first repeated key is the news; the value's own faults can wait for the next try.
        members[key] = _Fault(f"the key {_quote(key)} is given twice") if key in members else value
    return members


def _int(text: str) -> object:
    if len(text) > 20 or abs(int(text)) > _MAX_INT:
        return _Fault(f"the integer {_cut(text)} does not fit 64 bits")
    return int(text)


def _float(text: str) -> object:
    value = float(text)
    return _Fault(f"{_cut(text)} is infinite in 64 bits") if isinf(value) else value


def _constant(text: str) -> object:
    return _Fault(f"{text} is not a JSON number")


def _check(document: object, file: str) -> None:
    """Raise at the first fault in document order. A stack of its own: the document may be deep."""
    stack: list[tuple[object, str, int]] = [(document, "$", 0)]
    while stack:
        value, where, depth = stack.pop()
        if isinstance(value, _Fault):
            raise FileFormatError(file, where, value.message)
        if isinstance(value, str):
            _check_text(value, file, where)
        elif isinstance(value, (dict, list)):
            if depth >= MAX_DEPTH:
                raise FileFormatError(file, "", f"nested deeper than {MAX_DEPTH} levels")
            if isinstance(value, list):
                children = [(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
            else:
                for key in value:
                    _check_text(key, file, where)
                children = [(item, where + _step(key), depth + 1) for key, item in value.items()]
            stack.extend(reversed(children))


def _check_text(text: str, file: str, where: str) -> None:
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise FileFormatError(file, where, "a string holds half of a surrogate pair, which is no character")


def _step(key: str) -> str:
    return f".{key}" if _NAME.fullmatch(key) else f"[{_quote(key)}]"


def _quote(key: str) -> str:
    return json.dumps(_cut(key))


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
