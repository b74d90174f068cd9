"""Profile files: bytes that do not change, and a reader that takes nothing doubtful."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.errors import FileFormatError, InputError
from remat_cli.problem import NodeCost
from remat_cli.profile.files import dumps, is_profile, read_profile, write_profile
from remat_cli.profile.schema import SCHEMA_FILE, schema_bytes
from remat_cli.profile.types import Profile, ProfileDevice, ProfileModel, ProfileNode

PROFILE = Profile(
    "remat-profile",
    "1.0",
    ProfileModel("net.onnx", "ab12", {"batch": 8, "N": 2}),
    ProfileDevice("cpu", 1, "A Processor"),
    {"remat": "0.1.0", "onnxruntime": "1.31.1"},
    (
        ProfileNode("h", "Conv", 1000, 10, 65536, (4096,)),
        ProfileNode("größe", "Split", 5, 0, 0, (16, 0)),
    ),
)
TEXT = """{
  "format": "remat-profile", "format_version": "1.0",
  "model": {"file": "net.onnx", "graph_sha256": "ab12", "dims": {"N": 2, "batch": 8}},
  "device": {"name": "cpu", "threads": 1, "model": "A Processor"},
  "versions": {"onnxruntime": "1.31.1", "remat": "0.1.0"},
  "workspace": "measured",
  "nodes": [
    ["h", "Conv", 1000, 10, 65536, [4096]],
    ["größe", "Split", 5, 0, 0, [16, 0]]
  ]
}
"""


def changed(**fields: Any) -> str:
    """The text with other top-level values; None leaves a field out."""
    document = json.loads(TEXT) | fields
    return json.dumps({key: value for key, value in document.items() if value is not None})


def read(folder: Path, text: str) -> Profile:
    path = folder / "p.json"
    path.write_text(text, encoding="utf-8")
    return read_profile(path)


def test_the_bytes_are_these(tmp_path: Path) -> None:
    assert dumps(PROFILE).decode() == TEXT
    write_profile(PROFILE, tmp_path / "p.json")
    assert read_profile(tmp_path / "p.json") == PROFILE
    assert PROFILE.costs() == {"h": NodeCost(1000, 65536), "größe": NodeCost(5, 0)}


def test_a_profile_of_nothing(tmp_path: Path) -> None:
    empty = msgspec.structs.replace(PROFILE, nodes=())
    assert read(tmp_path, dumps(empty).decode()) == empty


def test_only_profiles_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_profile(PROFILE, path)
    write_profile(PROFILE, path)
    path.write_text('{"format": "remat-plan"}')
    with pytest.raises(InputError, match="not written by remat"):
        write_profile(PROFILE, path)
    write_profile(PROFILE, path, force=True)
    assert is_profile(path.read_bytes())


def test_newer_minor_versions_are_read_without_what_is_new(tmp_path: Path) -> None:
    rows = [["h", "Conv", 1000, 10, 65536, [4096], "new"]]
    profile = read(tmp_path, changed(format_version="1.7", nodes=rows, news={"a": 1}))
    assert profile.nodes == PROFILE.nodes[:1]


@pytest.mark.parametrize(
    ("fields", "where", "message"),
    [
        ({"format": "remat-plan"}, "$.format", "must be 'remat-profile', got 'remat-plan'"),
        ({"format": None}, "$.format", "got 'nothing'"),
        ({"format_version": "2.0"}, "$.format_version", "format 2.0 is unknown: this remat reads 1.x"),
        ({"format_version": 1.0}, "$.format_version", "got 1.0"),
        ({"format_version": "1"}, "$.format_version", "such as '1.0'"),
        ({"nodes": None}, "$", "missing required field `nodes`"),
        ({"nodes": {}}, "$.nodes", "expected `array`"),
        ({"workspace": "guessed"}, "$.workspace", "guessed"),
        ({"device": {"name": "tpu", "threads": 1}}, "$.device.name", "'tpu' is not a device"),
        ({"device": {"name": "cpu", "threads": 0}}, "$.device.threads", ">= 1"),
        ({"model": {"file": "f", "graph_sha256": "a", "dims": {"n": -1}}}, "$.model.dims[...]", ">= 0"),
        ({"nodes": [["a", "Add", -1, 0, 0, []]]}, "$.nodes[0][2]", "median_ns: expected `int` >= 0"),
        ({"nodes": [["a", "Add", 1.5, 0, 0, []]]}, "$.nodes[0][2]", "median_ns: expected `int`, got `float`"),
        ({"nodes": [["a", "Add", 10**15 + 1, 0, 0, []]]}, "$.nodes[0][2]", "median_ns: expected `int` <="),
        ({"nodes": [["a", "Add", 1, True, 0, []]]}, "$.nodes[0][3]", "spread_ns: expected `int`, got `bool`"),
        ({"nodes": [["a", "Add", 1, 0, "9", []]]}, "$.nodes[0][4]", "workspace_bytes: expected `int`, got `str`"),
        ({"nodes": [["a", "Add", 1, 0, 0, [1, 10.5]]]}, "$.nodes[0][5][1]", "output_bytes: expected `int`"),
        ({"nodes": [["", "Add", 1, 0, 0, []]]}, "$.nodes[0][0]", "id: expected `str` of length >= 1"),
        ({"nodes": [["a", "Add", 1, 0, 0]]}, "$.nodes[0]", "at least length 6"),
        ({"nodes": [["a", "B", 1, 0, 0, []], ["c", "D", 1, 0, 0, []], ["a", "B", 1, 0, 0, []]]},
         "$.nodes[2][0]", "id: 'a' is given twice, first at $.nodes[0]"),
    ],
)  # fmt: skip
def test_faults_are_named_by_index_and_field(tmp_path: Path, fields: dict[str, Any], where: str, message: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        read(tmp_path, changed(**fields))
    assert caught.value.where == where
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("row", "where", "message"),
    [
        ('["a", "Add", NaN, 0, 0, []]', "$.nodes[0][2]", "median_ns: NaN is not a JSON number"),
        ('["a", "Add", 1e400, 0, 0, []]', "$.nodes[0][2]", "median_ns: 1e400 is infinite"),
        ('["a", "Add", 1, -Infinity, 0, []]', "$.nodes[0][3]", "spread_ns: -Infinity"),
        ('["a", "Add", 1, 0, 99999999999999999999, []]', "$.nodes[0][4]", "workspace_bytes: the integer"),
    ],
)
def test_numbers_that_json_does_not_have(tmp_path: Path, row: str, where: str, message: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        read(tmp_path, changed(nodes=[]).replace('"nodes": []', f'"nodes": [{row}]'))
    assert caught.value.where == where
    assert message in caught.value.message


def test_documents_that_are_no_object(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="one JSON object"):
        read(tmp_path, "[1, 2]")
    with pytest.raises(FileFormatError, match="line 1, column 6"):
        read(tmp_path, "[1, 2")


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
NODES = st.lists(
    st.builds(
        ProfileNode,
        st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8),
        TEXTS,
        st.integers(0, 10**15),
        st.integers(0, 10**15),
        st.integers(0, 2**60),
        st.lists(st.integers(0, 2**60), max_size=3).map(tuple),
    ),
    unique_by=lambda node: node.id,
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(NODES, st.dictionaries(TEXTS, st.integers(0, 2**40), max_size=3), TEXTS)
def test_what_is_written_is_read_back_and_fits_the_schema(
    tmp_path_factory: pytest.TempPathFactory, nodes: list[ProfileNode], dims: dict[str, int], text: str
) -> None:
    profile = msgspec.structs.replace(
        PROFILE, nodes=tuple(nodes), model=ProfileModel(text, text, dims), versions={text: text}
    )
    path = tmp_path_factory.mktemp("profile") / "p.json"
    write_profile(profile, path)
    assert read_profile(path) == profile
    jsonschema.validate(json.loads(path.read_bytes()), json.loads(SCHEMA_FILE.read_bytes()))


def test_the_published_schema_is_not_stale() -> None:
    assert SCHEMA_FILE.read_bytes() == schema_bytes(), "run: python -m remat_cli.profile.schema"


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    schema = json.loads(SCHEMA_FILE.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    for fields in ({"format": "x"}, {"format_version": "2.0"}, {"nodes": [["a", "Add", -1, 0, 0, []]]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(json.loads(changed(**fields)), schema)
