"""The executor gives the bits of a plain session, whatever is recomputed, wherever tensors lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from execute_plans import (
    Plain,
    dropping,
    load,
    plan_for,
    problem_for,
    same,
    save,
    training_model,
    value,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from remat_cli.execute.executor import Executor
from remat_cli.execute.program import Held, Resident, build_program
from remat_cli.model.feeds import seeded_feeds

node = helper.make_node


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("in_place", [True, False])
def test_training_steps_equal_a_plain_session(tmp_path: Path, seed: int | None, in_place: bool) -> None:
    graph = load(training_model(tmp_path / "m.onnx"))
    problem = problem_for(graph, in_place=in_place)
    sequence = None if seed is None else dropping(problem, seed)
    plan = plan_for(graph, sequence, in_place=in_place)
    assert (plan.predicted.recomputed > 0) == (seed is not None)
    feeds = seeded_feeds(graph)
    plain = Plain(graph)
    with Executor(plan, graph, inputs=feeds) as executor:
        for _ in range(3):
            expected = plain.step(feeds)
            assert same(executor.step(), expected)
            feeds |= {source: expected[name] for name, source in graph.state.items()}


def test_states_are_updated_on_their_residents(tmp_path: Path) -> None:
    graph = load(training_model(tmp_path / "m.onnx"))
    program = build_program(plan_for(graph), graph, 64)
    assert program.outputs["W0/new"] == Resident("W0")
    assert program.copies == ()
    plan = plan_for(graph)
    assert program.peak_bytes == plan.predicted.peak_bytes


def test_states_that_swap_values_are_copied_back_together(tmp_path: Path) -> None:
    nodes = [node("Identity", ["b"], ["a/new"]), node("Identity", ["a"], ["b/new"]), node("Add", ["a", "b"], ["sum"])]
    inputs, outputs = [value("a", [4]), value("b", [4])], [value(n, [4]) for n in ("a/new", "b/new", "sum")]
    state = {"a/new": "a", "b/new": "b"}
    graph = load(save(tmp_path / "m.onnx", nodes, inputs, outputs, state=state))
    a, b = np.arange(4, dtype=np.float32), np.full(4, 7, np.float32)
    with Executor(plan_for(graph), graph, inputs={"a": a, "b": b}) as executor:
        first, second, third = executor.step(), executor.step(), executor.step()
    assert same(first, {"a/new": b, "b/new": a, "sum": a + b})
    assert same(second, {"a/new": a, "b/new": b, "sum": a + b})
    assert same(third, first)


def test_a_state_that_others_still_read_is_copied_back(tmp_path: Path) -> None:
    # The running mean is shown as well, so its update may not overwrite it.
    nodes = [node("Mul", ["m", "m"], ["m/new"]), node("Identity", ["m"], ["shown"])]
    graph = load(
        save(tmp_path / "m.onnx", nodes, [value("m", [3])], [value("m/new", [3]), value("shown", [3])],
             state={"m/new": "m"})
    )  # fmt: skip
    assert build_program(plan_for(graph), graph, 64).copies == (("m/new", "m"),)
    m = np.array([1, 2, 3], np.float32)
    with Executor(plan_for(graph), graph, inputs={"m": m}) as executor:
        assert same(executor.step(), {"m/new": m**2, "shown": m})
        assert same(executor.step(), {"m/new": m**4, "shown": m**2})
        assert same(executor.step({"m": m}), {"m/new": m**2, "shown": m})


@st.composite
def _graphs(draw: st.DrawFn) -> list[onnx.NodeProto]:
    """Random graphs of operators on [4, 4], some of which view, run in place, or have two outputs."""
    names = ["x", "y"]
    nodes = []
    for k in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["Relu", "Exp", "Add", "Sub", "MatMul", "Transpose", "Identity", "Split", "Where"]))
        pick = st.sampled_from(names)
        out = [f"v{k}"]
        if kind in ("Add", "Sub", "MatMul"):
            nodes.append(node(kind, [draw(pick), draw(pick)], out))
        elif kind == "Where":
            nodes += [node("Greater", [draw(pick), draw(pick)], [f"c{k}"])]
            nodes += [node("Where", [f"c{k}", draw(pick), draw(pick)], out)]
        elif kind == "Split":
            nodes.append(node("Split", [draw(pick)], [f"p{k}", f"q{k}"], axis=0, num_outputs=2))
            nodes.append(node("Concat", [f"q{k}", f"p{k}"], out, axis=0))
        else:
            nodes.append(node(kind, [draw(pick)], out))
        names.append(out[0])
    return nodes


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_graphs(), st.integers(0, 99), st.booleans())
def test_random_graphs_equal_a_plain_session(
    tmp_path: Path, nodes: list[onnx.NodeProto], seed: int, in_place: bool
) -> None:
    made = [name for n in nodes for name in n.output if name.startswith("v")]
    read = {name for n in nodes for name in n.input}
    outputs = [name for name in made if name not in read]
    graph = load(
        save(tmp_path / "m.onnx", nodes, [value("x", [4, 4]), value("y", [4, 4])], [value(o, [4, 4]) for o in outputs])
    )
    sequence = dropping(problem_for(graph, in_place=in_place), seed)
    plan = plan_for(graph, sequence, in_place=in_place)
    feeds = seeded_feeds(graph, seed)
    with Executor(plan, graph, inputs=feeds) as executor:
        expected = Plain(graph).step(feeds)
        assert same(executor.step(), expected)
        assert same(executor.step(), expected)


def _check(graph_path: Path, **inputs: np.ndarray) -> dict[str, object]:
    """Two steps equal those of a plain session; returns the outputs."""
    graph = load(graph_path, feeds=inputs)
    feeds = inputs or seeded_feeds(graph)
    with Executor(plan_for(graph), graph, inputs=feeds) as executor:
        expected = Plain(graph).step(feeds)
        assert same(executor.step(), expected)
        assert same(executor.step(), expected)
    return expected


def test_empty_tensors(tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["h"]), node("Concat", ["h", "h"], ["y"], axis=1)]
    out = _check(save(tmp_path / "m.onnx", nodes, [value("x", [2, 0, 4])], [value("y", [2, 0, 4])]))
    assert np.asarray(out["y"]).shape == (2, 0, 4)


def test_an_output_that_is_an_input_and_one_that_is_a_constant(tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["y"]), node("Add", ["c", "c"], ["two"])]
    outputs = [value("x", [2]), value("y", [2]), value("two", [2])]
    _check(save(tmp_path / "m.onnx", nodes, [value("x", [2])], outputs, {"c": np.ones(2, np.float32)}))


def test_bfloat16(tmp_path: Path) -> None:
    import ml_dtypes

    nodes = [
        node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
        node("Identity", ["b"], ["shown"]),
        node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    path = save(
        tmp_path / "m.onnx", nodes, [value("x", [3])], [value("shown", [3], TensorProto.BFLOAT16), value("y", [3])]
    )
    graph = load(path)
    x = np.array([1.5, 3.14159, -2.0], np.float32)
    with Executor(plan_for(graph), graph) as executor:
        out = executor.step({"x": x})
    assert out["shown"].dtype == ml_dtypes.bfloat16
    assert np.array_equal(out["y"], x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_values_of_unknown_size_are_held_until_the_plan_frees_them(tmp_path: Path) -> None:
    nodes = [
        node("NonZero", ["x"], ["where"]),
        node("Transpose", ["where"], ["rows"]),
        node("GatherND", ["x", "rows"], ["found"]),
        node("ReduceSum", ["found"], ["sum"], keepdims=0),
    ]
    path = save(tmp_path / "m.onnx", nodes, [value("x", [2, 3])], [value("sum", []), value("found", ["n"])])
    x = np.array([[0, 2, 0], [3, 0, 4]], np.float32)
    out = _check(path, x=x)
    assert np.array_equal(np.asarray(out["found"]), [2, 3, 4])
    graph = load(path, feeds={"x": x})
    program = build_program(plan_for(graph), graph, 64)
    assert program.outputs["found"] == Held("found")
    with Executor(plan_for(graph), graph) as executor:
        assert executor.step({"x": np.zeros((2, 3), np.float32)})["found"].shape == (0,)
        assert set(executor._engine.values) == {"found"}


def test_outputs_of_known_and_unknown_size_of_one_node(tmp_path: Path) -> None:
    def branch(name: str, op_type: str) -> onnx.GraphProto:
        nodes = [node(op_type, ["x"], [f"{name}h"]), node("NonZero", [f"{name}h"], [f"{name}n"])]
        outputs = [value(f"{name}n", [1, "n"], TensorProto.INT64), value(f"{name}h", [4])]
        return helper.make_graph(nodes, name, [], outputs)

    nodes = [node("If", ["c"], ["found", "sized"], then_branch=branch("t", "Relu"), else_branch=branch("e", "Neg"))]
    outputs = [value("found", [1, "n"], TensorProto.INT64), value("sized", [4])]
    path = save(tmp_path / "m.onnx", nodes, [value("c", [], TensorProto.BOOL), value("x", [4])], outputs)
    for c in (True, False):
        out = _check(path, c=np.array(c), x=np.array([1, -1, 0, 2], np.float32))
        assert np.asarray(out["found"]).shape == (1, 2 if c else 3)


def test_strings_and_sequences(tmp_path: Path) -> None:
    string = TensorProto.STRING
    nodes = [
        node("StringConcat", ["s", "s"], ["twice"]),
        node("SplitToSequence", ["x", "parts"], ["list"], axis=0),
        node("SequenceAt", ["list", "one"], ["second"]),
        node("Relu", ["second"], ["y"]),
    ]
    sequence = helper.make_tensor_sequence_value_info("list", TensorProto.FLOAT, None)
    path = save(
        tmp_path / "m.onnx", nodes, [value("s", [2], string), value("x", [3, 2])],
        [value("twice", [2], string), sequence, value("y", [2, 2])],
        {"parts": np.array([1, 2]), "one": np.array(1)}, opset=20,
    )  # fmt: skip
    out = _check(path, s=np.array(["a", "bc"], dtype=object), x=np.arange(6, dtype=np.float32).reshape(3, 2))
    assert np.asarray(out["twice"]).tolist() == ["aa", "bcbc"]
    assert [part.shape for part in out["list"]] == [(1, 2), (2, 2)]  # type: ignore[attr-defined]


def test_bodies_read_outer_tensors_that_were_recomputed(tmp_path: Path) -> None:
    then = helper.make_graph([node("Mul", ["h", "W"], ["t"])], "then", [], [value("t", [4])])
    other = helper.make_graph([node("Sub", ["h", "W"], ["e"])], "else", [], [value("e", [4])])
    nodes = [
        node("Exp", ["x"], ["h"]),
        node("ReduceSum", ["h"], ["sum"], keepdims=0),
        node("Greater", ["sum", "limit"], ["c"]),
        node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    weights = {"W": np.arange(4, dtype=np.float32), "limit": np.array(10, np.float32)}
    graph = load(save(tmp_path / "m.onnx", nodes, [value("x", [4])], [value("y", [4])], weights))
    names = [row.id for row in problem_for(graph).nodes]
    sequence = [names.index(name) for name in ("h", "sum", "c", "h", "y")]
    with Executor(plan_for(graph, sequence), graph) as executor:
        for x in (np.zeros(4, np.float32), np.full(4, 2, np.float32)):
            assert same(executor.step({"x": x}), Plain(graph).step({"x": x}))


def _dropout(seed: int | None) -> onnx.NodeProto:
    return node("Dropout", ["x", "ratio", "train"], ["y"], **({} if seed is None else {"seed": seed}))


def test_seeded_random_nodes_draw_what_a_plain_session_draws(tmp_path: Path) -> None:
    weights = {"ratio": np.array(0.5, np.float32), "train": np.array(True)}
    graph = load(save(tmp_path / "m.onnx", [_dropout(7)], [value("x", [64])], [value("y", [64])], weights))
    feeds = {"x": np.ones(64, np.float32)}
    plain = Plain(graph)
    with Executor(plan_for(graph), graph) as one, Executor(plan_for(graph), graph) as two:
        first = plain.step(feeds)
        assert same(one.step(feeds), first)
        second = plain.step(feeds)
        assert not same(first, second)
        assert same(one.step(feeds), second)
        # Another executor begins the stream again, whatever this one has drawn.
        assert same(two.step(feeds), first)


def test_unseeded_random_nodes_draw_different_numbers_and_hang_on_the_seed(tmp_path: Path) -> None:
    nodes = [node("RandomNormalLike", ["x"], ["a"]), node("RandomNormalLike", ["x"], ["b"])]
    graph = load(save(tmp_path / "m.onnx", nodes, [value("x", [64])], [value("a", [64]), value("b", [64])]))
    outs = []
    for seed in (1, 1, 2):
        with Executor(plan_for(graph), graph, inputs={"x": np.zeros(64, np.float32)}, seed=seed) as executor:
            outs.append(executor.step())
    assert not np.array_equal(outs[0]["a"], outs[0]["b"])
    assert same(outs[0], outs[1])
    assert not np.array_equal(outs[0]["a"], outs[2]["a"])


def test_many_executors_at_once(tmp_path: Path) -> None:
    graph = load(training_model(tmp_path / "m.onnx"))
    feeds = [seeded_feeds(graph, seed) for seed in range(3)]
    plans = [plan_for(graph, dropping(problem_for(graph), seed), workspace=4096) for seed in range(3)]
    executors = [Executor(plan, graph, inputs=feed) for plan, feed in zip(plans, feeds, strict=True)]
    expected = [Plain(graph).step(feed) for feed in feeds]
    results = [executor.step() for executor in executors]
    executors[1].close()
    again = Plain(graph).step(feeds[2] | {source: expected[2][name] for name, source in graph.state.items()})
    assert same(executors[2].step(), again)
    for executor in executors:
        executor.close()
    assert all(same(result, wanted) for result, wanted in zip(results, expected, strict=True))
