"""Strict YAML: the traps of YAML 1.1, lines in messages."""

from __future__ import annotations

import msgspec
import pytest

from remat_cli.errors import FileFormatError, InputError
from remat_cli.strict_yaml import convert_yaml, load_yaml, load_yaml_file


@pytest.mark.parametrize(
    "trap",
    ["1:30", "1:30:00", "8_000", "010", "-017", "0x10", "0b1", "0o7", "no", "Yes", "off", "ON", "y", "N", "True",
     "Null", ".inf", "-.INF", ".NaN", "1e400", "1.", "99999999999999999999999"],
)  # fmt: skip
def test_doubtful_scalars_are_refused_by_key_and_line_and_kept_when_quoted(trap: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        load_yaml(f"first: 1\nkey: {trap}\n".encode(), "f.yaml")
    assert caught.value.where == "line 2"
    assert f"key: {trap}" in caught.value.message
    assert load_yaml(f'key: "{trap}"'.encode(), "f.yaml").value == {"key": trap}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("cuda:0", "cuda:0"), ("8GB", "8GB"), ("60%", "60%"), ("8 GB", "8 GB"), ("2020-05-14", "2020-05-14"),
        ("5", 5), ("-5", -5), ("0", 0), ("1.5", 1.5), ("312e12", 312e12), ("1e-3", 1e-3), ("true", True),
        ("false", False), ("null", None), ("~", None), ("", None), ("'5'", "5"), ("[1, a]", [1, "a"]),
    ],
)  # fmt: skip
def test_plain_scalars(text: str, value: object) -> None:
    loaded = load_yaml(f"key: {text}".encode(), "f").value
    assert loaded == {"key": value}
    assert type(loaded["key"]) is type(value)  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("a: 1\nb: 2\na: 3", "line 3", "the key 'a' is given twice, first on line 1"),
        ("a:\n  b: 1\n  b: 2", "line 3", "the key 'b' is given twice, first on line 2"),
        ("a: !!python/object/apply:os.getcwd []", "line 1, column 4", "tag"),
        ("a: !!str 010", "line 1, column 4", "tag"),
        ("a: &x [1]\nb: *x", "line 1, column 4", "anchor &x"),
        ("a: *x", "line 1, column 4", "alias *x"),
        ("--- 1\n--- 2", "line 2, column 1", "another document"),
        ("a: [1,", "line 1, column 7", "not YAML"),
        ("? [1]\n: 2", "line 1", "a key must be a word"),
        ("[" * 5000, "", "nested too deeply"),
        ("a: \x01", "", "special characters"),
    ],
)
def test_faults(text: str, where: str, message: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        load_yaml(text.encode(), "f.yaml")
    assert caught.value.where == where
    assert message in caught.value.message


def test_bytes_that_are_not_utf8() -> None:
    with pytest.raises(FileFormatError, match="0xff"):
        load_yaml(b"a: \xff", "f.yaml")


def test_an_empty_file_holds_nothing(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "empty.yaml"
    path.write_bytes(b"# only a comment\n")
    assert load_yaml_file(path).value is None
    with pytest.raises(InputError, match="No such file"):
        load_yaml_file(tmp_path / "missing.yaml")


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    rate: float = 1.0


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    seed: int = 0
    inner: Inner = msgspec.field(default_factory=Inner)
    names: list[str] = []


@pytest.mark.parametrize(
    ("text", "where", "message", "hint"),
    [
        ("seed: 1\nsead: 2", "line 2", "sead: unknown key", "known keys: seed, inner, names"),
        ("seed: 1.5", "line 1", "seed: expected `int`, got `float`", None),
        ("seed: true", "line 1", "got `bool`", None),
        ("inner:\n  rate: fast", "line 2", "inner.rate: expected `float`, got `str`", None),
        ("inner:\n  rat: 1", "line 2", "inner.rat: unknown key", None),
        ("names:\n- a\n- 3", "line 3", "names[1]: expected `str`", None),
        ("- 1", "line 1", "expected `object`", None),
    ],
)
def test_convert_names_key_and_line(text: str, where: str, message: str, hint: str | None) -> None:
    with pytest.raises(FileFormatError) as caught:
        convert_yaml(load_yaml(text.encode(), "f.yaml"), Settings)
    assert caught.value.where == where
    assert message in caught.value.message
    assert caught.value.hint == hint


def test_an_empty_document_converts_to_the_defaults() -> None:
    assert convert_yaml(load_yaml(b"", "f"), Settings) == Settings()
