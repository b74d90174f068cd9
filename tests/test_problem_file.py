"""Problem files: known values, and a refusal with the JSON path for every fault."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.errors import FileFormatError, InputError
from remat_cli.memory import replay_sequence
from remat_cli.problem_file import parse_problem, read_problem

PROBLEMS = Path(__file__).parent / "data" / "problems"

GOOD: dict[str, Any] = {
    "schema": "remat-instance/1",
    "name": "small",
    "fixed_bytes": 7,
    "batch": 2,
    "meta": {"note": "anything"},
    "nodes": [
        {"name": "a", "cost": 5, "out": [10, 0], "deps": [], "ws": 3, "keep": False},
        {"name": "b", "cost": 0, "out": [4], "deps": [[0, 1], [0, 0], [0, 1]], "ws": 0, "keep": True},
    ],
}


def changed(path: str, value: object) -> dict[str, Any]:
    """GOOD with the value at `path` (keys and indices joined by dots) replaced, or removed when it is `...`."""
    document = copy.deepcopy(GOOD)
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place: Any = document
    for step in steps:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document


def test_reads_every_field() -> None:
    problem = parse_problem(GOOD, "p.json")
    assert (problem.name, problem.fixed_bytes, problem.batch, problem.alignment) == ("small", 7, 2, 1)
    assert [t.id for t in problem.tensors] == ["a:0", "a:1", "b"]
    assert [t.size_bytes for t in problem.tensors] == [10, 0, 4]
    assert [t.kind for t in problem.tensors] == ["activation", "activation", "output"]
    assert [(n.id, n.cost_ns, n.workspace_bytes) for n in problem.nodes] == [("a", 5, 3), ("b", 0, 0)]
    assert problem.nodes[1].inputs == (1, 0, 1)
    assert problem.kept == (2,)
    assert problem.last_stage == (2, 2)


def test_optional_keys_have_defaults() -> None:
    document = {"schema": "remat-instance/1", "name": "x", "nodes": [{"name": "a", "cost": 1, "out": [1], "deps": []}]}
    problem = parse_problem(document, "p.json")
    assert (problem.fixed_bytes, problem.batch, problem.outputs) == (0, None, ())
    assert problem.nodes[0].workspace_bytes == 0


def test_repeated_names_are_numbered() -> None:
    node = {"cost": 1, "out": [1], "deps": []}
    names = ["pad", "pad", "pad#2", "pad", "pad#2"]
    document = {"schema": "remat-instance/1", "name": "x", "nodes": [{"name": name, **node} for name in names]}
    problem = parse_problem(document, "p.json")
    assert [n.id for n in problem.nodes] == ["pad", "pad#3", "pad#2", "pad#4", "pad#2#2"]
    assert [t.id for t in problem.tensors] == [n.id for n in problem.nodes]


def test_a_network_replays_to_its_known_peak() -> None:
    problem = read_problem(PROBLEMS / "vgg16.json")
    assert len(problem.nodes) == 45
    assert problem.fixed_bytes == 1_106_860_352
    # Both values as a replay on the JSON itself, written apart from this package, finds them.
    timeline = replay_sequence(problem, range(45))
    assert (timeline.peak_bytes, timeline.compute_ns) == (15_825_108_992, 11_881_162_997_760)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("schema", "remat-instance/2", "$.schema"),
        ("schema", ..., "$"),
        ("name", "", "$.name"),
        ("name", 3, "$.name"),
        ("nodes", ..., "$"),
        ("nodes", [], "$.nodes"),
        ("nodes", {}, "$.nodes"),
        ("fixed_bytes", -1, "$.fixed_bytes"),
        ("fixed_bytes", 2**60 + 1, "$.fixed_bytes"),
        ("batch", 0, "$.batch"),
        ("batch", 1.0, "$.batch"),
        ("meta", [], "$.meta"),
        ("budget", 5, "$"),
        ("nodes.1", [], "$.nodes[1]"),
        ("nodes.0.name", ..., "$.nodes[0]"),
        ("nodes.0.name", "", "$.nodes[0].name"),
        ("nodes.1.name", "a:1", "$.nodes[1].name"),
        ("nodes.0.cost", ..., "$.nodes[0]"),
        ("nodes.0.cost", -5, "$.nodes[0].cost"),
        ("nodes.0.cost", 5.0, "$.nodes[0].cost"),
        ("nodes.0.cost", True, "$.nodes[0].cost"),
        ("nodes.0.cost", "5", "$.nodes[0].cost"),
        ("nodes.0.cost", None, "$.nodes[0].cost"),
        ("nodes.0.out", ..., "$.nodes[0]"),
        ("nodes.0.out", [], "$.nodes[0].out"),
        ("nodes.0.out", 10, "$.nodes[0].out"),
        ("nodes.0.out.1", -1, "$.nodes[0].out[1]"),
        ("nodes.0.out.0", 2**60 + 1, "$.nodes[0].out[0]"),
        ("nodes.0.out", [2**60, 2**60], "$.nodes"),
        ("nodes.1.cost", 2**60, "$.nodes"),
        ("nodes.1.deps", ..., "$.nodes[1]"),
        ("nodes.1.deps.0", 0, "$.nodes[1].deps[0]"),
        ("nodes.1.deps.0", [0], "$.nodes[1].deps[0]"),
        ("nodes.1.deps.0", [0, 0, 0], "$.nodes[1].deps[0]"),
        ("nodes.1.deps.2", [0, 2], "$.nodes[1].deps[2][1]"),
        ("nodes.1.deps.2", [0, -1], "$.nodes[1].deps[2][1]"),
        ("nodes.1.deps.2", [1, 0], "$.nodes[1].deps[2][0]"),
        ("nodes.1.deps.2", [-1, 0], "$.nodes[1].deps[2][0]"),
        ("nodes.0.deps", [[1, 0]], "$.nodes[0].deps[0][0]"),
        ("nodes.1.ws", 1.5, "$.nodes[1].ws"),
        ("nodes.1.keep", 1, "$.nodes[1].keep"),
        ("nodes.1.workspace", 1, "$.nodes[1]"),
    ],
)
def test_faults_are_refused_with_their_path(path: str, value: object, where: str) -> None:
    with pytest.raises(FileFormatError) as error:
        parse_problem(changed(path, value), "p.json")
    assert error.value.where == where
    assert error.value.message.startswith(f"p.json: {where}: ")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400", "123456789012345678901234567890"])
def test_numbers_that_json_does_not_have(tmp_path: Path, number: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(GOOD).replace('"cost": 5', f'"cost": {number}'), encoding="utf-8")
    with pytest.raises(FileFormatError) as error:
        read_problem(path)
    assert error.value.where == "$.nodes[0].cost"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.json: cannot be read"):
        read_problem(tmp_path / "absent.json")


@pytest.mark.parametrize("document", [None, [], "text", 5, {"nodes": 1}])
def test_documents_that_are_something_else(document: object) -> None:
    with pytest.raises(FileFormatError):
        parse_problem(document, "p.json")


scalars = st.none() | st.booleans() | st.integers(-2, 2**62) | st.floats(allow_nan=False) | st.text(max_size=3)
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
paths = ["schema", "name", "fixed_bytes", "batch", "meta", "nodes", "nodes.0", "nodes.0.name", "nodes.0.cost"]
paths += [
    "nodes.0.out",
    "nodes.0.out.0",
    "nodes.0.deps",
    "nodes.1.deps",
    "nodes.1.deps.0",
    "nodes.1.ws",
    "nodes.1.keep",
]


@given(st.sampled_from(paths), anything)
@settings(max_examples=150, deadline=None)
def test_any_value_anywhere_is_read_or_refused(path: str, value: object) -> None:
    document = changed(path, value)
    try:
        problem = parse_problem(document, "p.json")
    except FileFormatError:
        return
    assert len(problem.nodes) == len(document["nodes"])
