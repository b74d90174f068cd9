"""Strict JSON: every doubtful thing is refused with its JSON path or line."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.errors import FileFormatError, InputError
from remat_cli.strict_json import MAX_DEPTH, convert, load_file, load_strict


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ('{"a": 1, "a": 2}', "$.a", "given twice"),
        ('{"n": [{"b": 1, "b": NaN}]}', "$.n[0].b", 'the key "b" is given twice'),
        ('{"x y": [NaN]}', '$["x y"][0]', "NaN is not a JSON number"),
        ("[1, Infinity]", "$[1]", "Infinity is not a JSON number"),
        ("[-Infinity]", "$[0]", "-Infinity"),
        ("[1e400]", "$[0]", "1e400 is infinite"),
        ("[-1e400]", "$[0]", "infinite"),
        ("[9223372036854775808]", "$[0]", "does not fit 64 bits"),
        ("9" * 5000, "$", "(5000 characters) does not fit"),
        ('["\\ud800"]', "$[0]", "surrogate"),
        ('{"\\udc00": 1}', "$", "surrogate"),
        ("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2), "", "nested deeper"),
        ("[" * 100_000, "", "nested deeper"),
        ("[1, 2", "line 1, column 6", "not JSON"),
        ('{\n  "a": 1,\n}', "line 2, column 10", "not JSON"),
        ("", "line 1, column 1", "not JSON"),
        ("\ufeff[]", "line 1, column 1", "byte order mark"),
    ],
)
def test_faults_are_named_with_their_place(text: str, where: str, message: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        load_strict(text.encode("utf-8"), "f.json")
    # Python 3.13 points at the trailing comma, older ones at the brace after it.
    assert caught.value.where == where or (where.startswith("line 2") and caught.value.where.startswith("line "))
    assert message in caught.value.message
    assert caught.value.message.startswith("f.json: ")


def test_the_first_fault_of_the_document_is_reported() -> None:
    with pytest.raises(FileFormatError, match=r"\$\.a\[0\]"):
        load_strict(b'{"a": [NaN], "b": 1e999}', "f.json")


def test_bytes_that_are_not_utf8() -> None:
    with pytest.raises(FileFormatError, match="byte 0xff at offset 2"):
        load_strict(b'["\xff"]', "f.json")


def test_a_surrogate_pair_is_one_character() -> None:
    assert load_strict(b'"\\ud83d\\ude00"', "f.json") == "\U0001f600"


TEXT = st.text(st.characters(exclude_categories=("Cs",)))
NUMBERS = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner),
    max_leaves=15,
)


@settings(max_examples=60, deadline=None)
@given(JSON_VALUES)
def test_clean_documents_are_read_as_json_reads_them(value: object) -> None:
    text = json.dumps(value)
    assert load_strict(text.encode(), "f") == json.loads(text)


class Row(msgspec.Struct, array_like=True):
    name: str
    size: int


class Document(msgspec.Struct):
    rows: tuple[Row, ...]
    sizes: dict[str, int] = {}


@pytest.mark.parametrize(
    ("document", "where", "message"),
    [
        ({"rows": [["a", 1], ["b", 1.0]]}, "$.rows[1][1]", "expected `int`, got `float`"),
        ({"rows": [["a", True]]}, "$.rows[0][1]", "got `bool`"),
        ({"rows": [["a"]]}, "$.rows[0]", "at least length 2"),
        ({"sizes": {}}, "$", "missing required field `rows`"),
        ([1], "$", "expected `object`"),
    ],
)
def test_convert_says_where(document: object, where: str, message: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        convert(document, Document, "f.json")
    assert caught.value.where == where
    assert message in caught.value.message


def test_convert_ignores_what_a_newer_version_adds() -> None:
    assert convert({"rows": [["a", 1, "new"]], "new": 3}, Document, "f") == Document((Row("a", 1),))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_file(tmp_path / "missing.json")
    with pytest.raises(InputError, match="directory"):
        load_file(tmp_path)
