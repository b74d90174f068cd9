"""Plan files: exact bytes, round trips, and everything that a reader must refuse, with its place."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import Builder, lower, random_problem, random_sequence, replace_fields, training_plan

from remat_cli.errors import FileFormatError, InputError
from remat_cli.plan.files import dump_plan, is_plan, load_plan, parse_plan, write_plan
from remat_cli.plan.types import Plan, PlanModel, PlanStep

EXAMPLE = (
    """\
{
  "format": "remat-plan", "format_version": "1.0",
  "model": {"file": "net.onnx", "graph_sha256": "GRAPH", "weights_sha256": "WEIGHTS", "dims": {"batch": 8, "seq": 3}, \
"optimize": "none"},
  "device": {"name": "cpu", "alignment": 64, "threads": 1},
  "costs": {"source": "profile", "file": "net.profile.json", "sha256": "COSTS", "workspace": "measured"},
  "budget_bytes": 320,
  "solver": {"method": "greedy", "asked": "auto", "status": "feasible", "scope": "live bytes", "cost_ns": 12, \
"lower_bound_ns": 10, "seed": 0, "ortools": "9.15.6755"},
  "predicted": {"peak_bytes": 320, "live_peak_bytes": 128, "arena_bytes": 128, "fixed_bytes": 192, \
"workspace_bytes": 128, "compute_ns": 12, "store_all_ns": 12, "store_all_peak_bytes": 320, "recomputed": 0},
  "tensors": [
    ["x", 64, "input"],
    ["a", 128, "activation"],
    ["b", 128, "activation"],
    ["flat", 0, "view of b"]
  ],
  "outputs": [
    "flat"
  ],
  "nodes": [
    ["a", "Conv", ["x"], ["a"], 7, 100, ["once"]],
    ["b", "Relu", ["a"], ["b"], 5, 0, ["in place of a"]]
  ],
  "steps": [
    ["compute", "a"],
    ["compute", "b", "in place of a"]
  ]
}
""".replace("GRAPH", "a0" * 32)
    .replace("WEIGHTS", "b0" * 32)
    .replace("COSTS", "c0" * 32)
)


def example() -> Plan:
    b = Builder()
    b.resident("x", 3, "input")
    b.node([("a", 100)], ["x"], op_type="Conv", cost=7, workspace=100, once=True)
    b.node([("b", 100)], ["a"], op_type="Relu", cost=5, in_place=["a"])
    b.view("flat", "b")
    return lower(b, ["flat"], [0, 1], bound=10)


def document() -> Any:
    return json.loads(EXAMPLE)


def parse(value: object) -> Plan:
    return parse_plan(json.dumps(value).encode(), "plan.json")


def refusal(value: object) -> FileFormatError:
    with pytest.raises(FileFormatError) as error:
        parse(value)
    assert error.value.exit_code == 2
    return error.value


def test_bytes_of_a_plan() -> None:
    assert dump_plan(example()).decode() == EXAMPLE


def test_example_is_read_back() -> None:
    assert parse_plan(EXAMPLE.encode(), "plan.json") == example()


def test_one_more_step_changes_one_line() -> None:
    plan = example()
    longer = replace_fields(plan, steps=(PlanStep("compute", "a"), *plan.steps))
    old, new = dump_plan(plan).splitlines(), dump_plan(longer).splitlines()
    assert len(new) == len(old) + 1
    assert [line for line in new if line not in old] == []


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 25))
def test_round_trip_is_byte_identical(seed: int, size: int) -> None:
    builder, outputs = random_problem(seed, size)
    plan = lower(builder, outputs, random_sequence(builder.build(outputs), seed))
    data = dump_plan(plan)
    again = parse_plan(data, "plan.json")
    assert again == plan
    assert dump_plan(again) == data


def test_dims_come_in_order_of_their_names() -> None:
    plan = example()
    turned = replace_fields(plan, model=msgspec.structs.replace(plan.model, dims={"seq": 3, "batch": 8}))
    assert dump_plan(turned) == dump_plan(plan)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "net.plan.json"
    write_plan(example(), path)
    assert path.read_text("utf-8") == EXAMPLE
    assert load_plan(path) == example()
    write_plan(training_plan(), path)
    assert load_plan(path) == training_plan()
    other = tmp_path / "other.json"
    other.write_text('{"format": "remat-profile"}')
    with pytest.raises(InputError, match="was not written by remat"):
        write_plan(example(), other)
    write_plan(example(), other, force=True)
    assert is_plan(other.read_bytes())


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no-such\.json: cannot be read: No such file"):
        load_plan(tmp_path / "no-such.json")


NAMES = [
    'quo"te', "new\nline", "tab\t", "back\\slash", "naïve/日本語", "a, b", "", " ", "in place of a", "view of x",
    "\u2028", "\x7f\x1b[31m", "x" * 5250, "😀", "once", "\x00",
]  # fmt: skip


@pytest.mark.parametrize("name", [n for n in NAMES if n])
def test_any_name_is_kept(name: str) -> None:
    b = Builder()
    b.resident(f"in{name}", 64, "input")
    b.node([(name, 64)], [f"in{name}"])
    b.node([(f"2{name}", 64)], [name], in_place=[name], op_type=name)
    b.view(f"3{name}", f"2{name}")
    plan = lower(b, [f"3{name}"], [0, 1])
    data = dump_plan(plan)
    assert parse_plan(data, "plan.json") == plan
    assert plan.steps[1].note == f"in place of {name}"
    # One row, one line, whatever the name.
    assert len(data.split(b"\n")) == len(EXAMPLE.split("\n"))


def test_lone_surrogates_are_refused_on_writing() -> None:
    b = Builder()
    b.resident("x", 64, "input")
    b.node([("a\ud800", 64)], ["x"])
    with pytest.raises(InputError, match="half of a surrogate pair"):
        dump_plan(lower(b, ["a\ud800"], [0]))


def test_lone_surrogates_are_refused_on_reading() -> None:
    with pytest.raises(FileFormatError, match=r"\$\.steps\[0\]\[1\]: .*surrogate"):
        parse_plan(EXAMPLE.replace('["compute", "a"]', r'["compute", "a\ud800"]').encode(), "plan.json")


def test_unknown_fields_of_a_newer_minor_version_are_ignored() -> None:
    value = document()
    value["format_version"] = "1.7"
    value["extra"] = {"deep": [1, 2]}
    value["model"]["license"] = "MIT"
    value["steps"][0] += ["", "later"]
    value["tensors"][0].append("float32")
    plan = parse(value)
    assert plan.format_version == "1.7"
    assert plan.steps == example().steps


@pytest.mark.parametrize("version", ["999.0", "999", "2.0", "0.9"])
def test_other_major_versions_are_refused(version: str) -> None:
    value = {**document(), "format_version": version}
    major = version.partition(".")[0]
    error = refusal(value)
    assert error.where == "$.format_version"
    assert f"this is plan format {major}, and this remat reads format 1" in error.message


@pytest.mark.parametrize("version", [999, 1.0, None, "", "1", "1.", "1.0.0", "٣.0", "1.0\n", [], "-1.0"])
def test_odd_versions_are_refused(version: object) -> None:
    error = refusal({**document(), "format_version": version})
    assert error.where == "$.format_version"
    assert "expected a string such as '1.0'" in error.message


@pytest.mark.parametrize("value", [[1, 2], "plan", 1, None, True])
def test_something_else_than_an_object(value: object) -> None:
    assert "the file must hold one JSON object" in refusal(value).message


@pytest.mark.parametrize("name", [999, "remat-profile", "", None])
def test_another_format_is_refused(name: object) -> None:
    error = refusal({**document(), "format": name})
    assert error.where == "$.format"
    assert f"got {name!r}" in error.message
    assert error.hint is not None
    assert "remat solve" in error.hint


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[1, 2", "line 1, column 6: not JSON"),
        (b'{\n  "format": "remat-plan",\n  "steps": [,]\n}', "line 3, column 13: not JSON"),
        (b"", "line 1, column 1: not JSON"),
        (b"\xff\xfe{", "not UTF-8"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"[" * 200_000, "nested deeper"),
        (b'{"format":' * 100_000, "nested deeper"),
        (EXAMPLE[:-3].encode() + b',\n "steps": []\n}\n', 'the key "steps" is given twice'),
        (EXAMPLE.replace('"alignment": 64', '"alignment": NaN').encode(), "$.device.alignment: NaN"),
        (EXAMPLE.replace("320", "1e999").encode(), "is infinite"),
        (EXAMPLE.replace("320", "9" * 30).encode(), "does not fit 64 bits"),
        (EXAMPLE.replace("320", "9" * 5000).encode(), "does not fit 64 bits"),
    ],
)
def test_bad_json(data: bytes, message: str) -> None:
    with pytest.raises(FileFormatError) as error:
        parse_plan(data, "plan.json")
    assert str(error.value).startswith("plan.json: ")
    assert message in error.value.message
    assert "not JSON" not in message or error.value.hint


def test_deep_nesting_in_a_large_file() -> None:
    with pytest.raises(FileFormatError, match="nested deeper"):
        parse_plan(b'{"a":[' * 2_000_000, "plan.json")


def _set(*path: object) -> Callable[[Any, object], None]:
    def change(value: Any, to: object) -> None:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("path", "to", "where", "message"),
    [
        (("steps", 0, 1), 5, "$.steps[0][1]", "target: expected `str`, got `int`"),
        (("steps", 0), {"compute": "a"}, "$.steps[0]", "expected `array`, got `object`"),
        (("steps", 0), ["compute"], "$.steps[0]", "array"),
        (("steps", 0, 0), "comput", "$.steps[0][0]", "expected compute or free, got 'comput'"),
        (("steps", 0, 1), "nope", "$.steps[0][1]", "there is no node 'nope'"),
        (("steps", 0), ["free", "nope"], "$.steps[0][1]", "there is no tensor 'nope'"),
        (("steps", 0), ["free", "a", "in place of b"], "$.steps[0][2]", "a free has no note"),
        (("steps", 1, 2), "over a", "$.steps[1][2]", "expected 'in place of TENSOR', got 'over a'"),
        (("steps", 1, 2), "in place of z", "$.steps[1][2]", "there is no tensor 'z'"),
        (("tensors", 1, 1), -64, "$.tensors[1][1]", "size_bytes: expected `int` >= 0"),
        (("tensors", 1, 1), 2**60 + 64, "$.tensors[1][1]", "size_bytes: expected `int` <= 1152921504606846976"),
        (("tensors", 1, 1), 128.0, "$.tensors[1][1]", "size_bytes: expected `int`, got `float`"),
        (("tensors", 1, 1), True, "$.tensors[1][1]", "size_bytes: expected `int`, got `bool`"),
        (("tensors", 1, 1), 100, "$.tensors[1][1]", "100 bytes are no multiple of the alignment, 64"),
        (("tensors", 0, 1), 100, "$.tensors[0][1]", "100 bytes are no multiple of the alignment, 64"),
        (("tensors", 1, 2), "activity", "$.tensors[1][2]", "there is no kind 'activity'"),
        (("tensors", 1, 2), "view", "$.tensors[1][2]", "there is no kind 'view'"),
        (("tensors", 1, 2), "weight", "$.nodes[0][3][0]", "'a' is of kind 'weight', which no node makes"),
        (("tensors", 0, 2), "activation", "$.tensors[0]", "'x' is made by no node"),
        (("tensors", 3, 2), "view of z", "$.tensors[3][2]", "there is no tensor 'z'"),
        (("tensors", 3, 2), "view of flat", "$.tensors[3][2]", "'flat' is a view itself"),
        (("tensors", 3, 1), 64, "$.tensors[3][1]", "view of b has no bytes of its own, got 64"),
        (("tensors", 2, 2), "state of a", "$.tensors[2][2]", "'a' is not resident, but activation"),
        (("tensors", 2, 2), "state of x", "$.tensors[2][1]", "state of x has no bytes of its own, got 128"),
        (("tensors", 2, 0), "a", "$.tensors[2][0]", "'a' is given twice, first at $.tensors[1]"),
        (("tensors", 2, 0), "", "$.tensors[2][0]", "id: expected `str` of length >= 1"),
        (("nodes", 1, 0), "a", "$.nodes[1][0]", "'a' is given twice, first at $.nodes[0]"),
        (("nodes", 1, 2), ["z"], "$.nodes[1][2][0]", "there is no tensor 'z'"),
        (("nodes", 0, 2), ["b"], "$.nodes[0][2][0]", "'b' is made no earlier than by $.nodes[1]"),
        (("nodes", 0, 2), ["flat"], "$.nodes[0][2][0]", "'flat' is made no earlier than by $.nodes[1]"),
        (("nodes", 0, 2), ["a"], "$.nodes[0][2][0]", "'a' is made no earlier than by $.nodes[0]"),
        (("nodes", 1, 3), ["a"], "$.nodes[1][3][0]", "'a' is made twice, first at $.nodes[0]"),
        (("nodes", 1, 4), -5, "$.nodes[1][4]", "cost_ns: expected `int` >= 0"),
        (("nodes", 1, 6), ["twice"], "$.nodes[1][6][0]", "expected 'once' or 'in place of TENSOR', got 'twice'"),
        (("nodes", 1, 6), ["once", "once"], "$.nodes[1][6][1]", "'once' is given twice"),
        (("nodes", 1, 6), ["in place of x"], "$.nodes[1][6][0]", "'x' is no input that an output could overwrite"),
        (("nodes", 1, 6), "once", "$.nodes[1][6]", "flags: expected `array`, got `str`"),
        (("outputs", 0), "z", "$.outputs[0]", "there is no tensor 'z'"),
        (("outputs",), None, "$.outputs", "expected `array`, got `null`"),
        (("device", "alignment"), 0, "$.device.alignment", "expected `int` >= 1"),
        (("device", "alignment"), 256, "$.tensors[0][1]", "no multiple of the alignment, 256"),
        (("costs", "workspace"), "guessed", "$.costs.workspace", "invalid enum value"),
        (("solver", "status"), "proved", "$.solver.status", "invalid enum value"),
        (("model", "dims"), {"batch": "8"}, "$.model.dims[...]", "expected `int`, got `str`"),
        (("predicted", "peak_bytes"), -1, "$.predicted.peak_bytes", "expected `int` >= 0"),
        (("budget_bytes",), "320", "$.budget_bytes", "expected `int`, got `str`"),
    ],
)  # fmt: skip
def test_faults_have_their_path(path: tuple[object, ...], to: object, where: str, message: str) -> None:
    value = document()
    _set(*path)(value, to)
    error = refusal(value)
    assert error.where == where
    assert message in error.message


@pytest.mark.parametrize("key", list(json.loads(EXAMPLE)))
def test_every_key_is_needed(key: str) -> None:
    value = document()
    del value[key]
    assert key in refusal(value).message


def test_two_states_of_one_resident_are_refused() -> None:
    value = document()
    value["tensors"][1:3] = [["a", 0, "state of x"], ["b", 0, "state of x"]]
    error = refusal(value)
    assert (error.where, "'x' is overwritten twice" in error.message) == ("$.tensors[2][2]", True)


def test_long_names_are_cut_in_messages() -> None:
    value = document()
    value["steps"][0][1] = "n" * 5250
    message = refusal(value).message
    assert len(message) < 200
    assert "5250 characters" in message


def test_folders_are_cut_from_file_names() -> None:
    value = document()
    value["model"]["file"] = "/home/u/ci/123/net.onnx"
    value["costs"]["file"] = "C:\\runs\\net.profile.json"
    assert parse(value) == example()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_bytes_are_a_plan_or_a_refusal(data: st.DataObject) -> None:
    """Bytes of a plan, damaged in a few places."""
    blob = bytearray(EXAMPLE.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(blob) - 1))
        length = data.draw(st.integers(0, 30))
        blob[at : at + length] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"null", b"-1", b"[]", b'"a"', b","])
        )
    with contextlib.suppress(InputError):
        parse_plan(bytes(blob), "plan.json")


def test_model_is_kept_as_given() -> None:
    assert parse_plan(EXAMPLE.encode(), "p").model == PlanModel(
        "net.onnx", "a0" * 32, "b0" * 32, {"batch": 8, "seq": 3}, "none"
    )
