"""YAML as our settings and device files are read: the plain part of the language, and every fault with its line.

YAML 1.1 reads ``1:30`` as 90, ``010`` as 8, ``8_000`` as 8000 and ``no`` as false, keeps the last of two equal
keys, and has tags that build objects. Here each of these is a `FileFormatError`; unquoted scalars are null,
true, false, decimal numbers, or else strings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from remat_cli.errors import FileFormatError
from remat_cli.strict_json import read_at_most

MAX_BYTES = 2**20

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "true": True, "false": False}
# What YAML 1.1 or other readers would take for something else than the text that stands there.
_TRAPS = (
    (re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?", re.ASCII), "a number to base 60"),
    (re.compile(r"[-+]?0[0-9]+", re.ASCII), "an octal number"),
    (re.compile(r"[-+]?0[xob][0-9a-fA-F_]+", re.ASCII), "a hexadecimal, octal or binary number"),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9_]+)?", re.ASCII),
        "a number in an unusual spelling or too large",
    ),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), "an infinity or not a number"),
    (re.compile(r"(yes|no|on|off|y|n|true|false)", re.IGNORECASE), "true or false"),
    (re.compile(r"null", re.IGNORECASE), "null"),
)
_MSGSPEC_PATH = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?(?P<where>\$[^`]*)`)?", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)

T = TypeVar("T")


@dataclass(frozen=True)
class YamlDocument:
    """What a file says (dicts with string keys, lists, strings, numbers, bools, None) and where.

    `lines`: path such as ``$.peak_flops.fp32`` or ``$.runs[2]`` -> line, from 1.
    """

    file: str
    value: object
    lines: Mapping[str, int]

    def fault(self, where: str, message: str, hint: str | None = None) -> FileFormatError:
        """An error about the value at the path `where`: names its line and its key."""
        line = self.lines.get(where, 1)
        name = where.removeprefix("$").removeprefix(".")
        return FileFormatError(self.file, f"line {line}", f"{name}: {message}" if name else message, hint)


def load_yaml_file(path: Path) -> YamlDocument:
    """`load_yaml` of a file; InputError when it cannot be read."""
    return load_yaml(read_at_most(path, MAX_BYTES), str(path))


def load_yaml(data: bytes, file: str) -> YamlDocument:
    """The one document in `data`; an empty file has the value None. `file` names the source in messages.

    Raises FileFormatError for syntax errors, repeated keys, keys that are no strings, tags, anchors and aliases,
    several documents, and unquoted scalars that YAML 1.1 reads in a surprising way.
    """
    if len(data) > MAX_BYTES:
        raise FileFormatError(file, "", f"{len(data)} bytes, more than the {MAX_BYTES} that are read")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(
            file, "", f"not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}"
        ) from error
    try:
        root = _Loader(text).get_single_node()
        lines: dict[str, int] = {}
        value = _Reader(file, lines).read(root, "$") if root is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise FileFormatError(file, place, f"not YAML as read here: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise FileFormatError(file, "", f"not YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise FileFormatError(file, "", "nested too deeply") from error
    return YamlDocument(file, value, lines)


def convert_yaml(document: YamlDocument, kind: type[T]) -> T:
    """The document as `kind`, a msgspec struct; FileFormatError names the key and line of the first fault.

    Structs with `forbid_unknown_fields=True` refuse unknown keys by name.
    """
    try:
        return msgspec.convert({} if document.value is None else document.value, kind, strict=True)
    except msgspec.ValidationError as error:
        match = _MSGSPEC_PATH.fullmatch(str(error))
        assert match is not None  # the pattern takes any text
        where, what = match["where"] or "$", match["what"]
        if unknown := _UNKNOWN_FIELD.fullmatch(what):
            key = f"{where}.{unknown['name']}"
            raise document.fault(key, "unknown key", _known_keys(kind) if where == "$" else None) from error
        raise document.fault(where, what[:1].lower() + what[1:]) from error


def _known_keys(kind: type[Any]) -> str | None:
    fields = getattr(kind, "__struct_encode_fields__", ())
    return f"known keys: {', '.join(fields)}" if fields else None


class _Loader(yaml.BaseLoader):
    """Composes nodes only, resolves nothing, and has neither tags nor anchors."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        mark: Any = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem=f"alias *{event.anchor}", problem_mark=mark)
        if (anchor := getattr(event, "anchor", None)) is not None:
            raise yaml.MarkedYAMLError(problem=f"anchor &{anchor}", problem_mark=mark)
        if (tag := getattr(event, "tag", None)) is not None:
            raise yaml.MarkedYAMLError(problem=f"tag {tag}", problem_mark=mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


@dataclass(frozen=True)
class _Reader:
    file: str
    lines: dict[str, int]

    def read(self, node: yaml.Node, where: str) -> object:
        self.lines.setdefault(where, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, where)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, f"{where}[{index}]") for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node, where)

    def _mapping(self, node: yaml.MappingNode, where: str) -> dict[str, object]:
        members: dict[str, object] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise FileFormatError(self.file, f"line {line}", "a key must be a word, not a list or mapping")
            name = str(key.value)
            place = f"{where}.{name}"
            if name in members:
                message = f"the key {name!r} is given twice, first on line {self.lines[place]}"
                raise FileFormatError(self.file, f"line {line}", message)
            self.lines[place] = line
            members[name] = self.read(value, place)
        return members

    def _scalar(self, node: yaml.ScalarNode, where: str) -> object:
        text = str(node.value)
        if node.style is not None:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text) and len(text) <= 20:
            return int(text)
        if _FLOAT.fullmatch(text) and not text.lstrip("+-").isdigit() and not isinf(value := float(text)):
            return value
        for pattern, reading in _TRAPS:
            if pattern.fullmatch(text):
                raise YamlDocument(self.file, None, self.lines).fault(
                    where,
                    f"{text} is doubtful: YAML readers may take it for {reading}",
                    f'write a plain number, true or false, or the text in quotes: "{text}"',
                )
        return text
