"""One-node models and the whole model, run against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_texts import case, load
from onnx import ModelProto

from remat_cli.errors import ModelError
from remat_cli.model.feeds import seeded_feeds
from remat_cli.model.graph import Graph
from remat_cli.model.kernels import check_kernels
from remat_cli.model.node_model import node_bindings, node_model, node_signature
from remat_cli.model.weights import weight_array
from remat_cli.model.whole_model import whole_model
from remat_cli.ort_session import Device, make_session


def run_both_ways(graph: Graph) -> None:
    """Every value of the whole model is that of the nodes run one by one."""
    made = [name for node in graph.nodes for name in node.outputs]
    values: dict[str, Any] = {
        **seeded_feeds(graph),
        **{name: weight_array(weight) for name, weight in graph.weights.items()},
    }
    whole = make_session(whole_model(graph, made).SerializeToString(), Device())
    expected = dict(zip(made, whole.run(made, values), strict=True))
    for node in graph.nodes:
        bindings = node_bindings(graph, node)
        session = make_session(node_model(graph, node), Device())
        assert {value.name for value in session.get_inputs()} == {name for name, _ in bindings.inputs}
        found = session.run([name for name, _ in bindings.outputs], {n: values[t] for n, t in bindings.inputs})
        for (_, tensor), value in zip(bindings.outputs, found, strict=True):
            values[tensor] = value
            np.testing.assert_array_equal(value, expected[tensor], err_msg=f"{node.label}: {tensor}")


@pytest.mark.parametrize(
    "name",
    ["006", "007", "025", "040", "041", "043", "046", "060", "063", "080", "085", "090", "091", "093", "110", "111",
     "114", "134", "152", "154", "156", "170_external_ok/model", "200", "202"],
)  # fmt: skip
def test_trial_cases_node_by_node(name: str) -> None:
    run_both_ways(case(name))


NESTED = """g (float[4] x, bool c, bool d) => (float[4] y)
    <float[4] w = {1, 2, 3, 4}, int64[1] ax = {0}, int64 n = {3}> {
    i0 = Relu(x)\n c0 = Neg(x)\n s0 = Exp(x)
    y = If(c) <
        then_branch = t () => (float[4] o0) {
            i1 = Add(i0, w)
            q = If(d) <then_branch = t2 () => (float[4] a) { z = Mul(i1, c0)\n a = Add(z, s0) },
                       else_branch = e2 () => (float[4] b) { r = ReduceSum <keepdims = 1> (s0, ax)\n b = Mul(r, i1) }>
            o0 = Loop(n, c, q) <body = l (int64 i, bool k, float[4] v) => (bool k2, float[4] v2)
                { k2 = Identity(k)\n u = Add(v, i0)\n v2 = Add(u, i1) }> },
        else_branch = e () => (float[4] f) { f = Sub(c0, x) }> }"""


def test_nested_bodies_whose_names_look_like_ours(tmp_path: Path) -> None:
    graph = load(tmp_path, NESTED)
    run_both_ways(graph)
    branch = graph.nodes[-1]
    assert {tensor for _, tensor in node_bindings(graph, branch).inputs} == {"c", "i0", "w", "c0", "d", "s0", "x"}


def test_scan_with_captures(tmp_path: Path) -> None:
    text = """g (float[3,4] x, float[4] st) => (float[4] z, float[3,4] q) { h = Exp(st)
        z, q = Scan <num_scan_inputs = 1, body = b (float[4] s, float[4] a) => (float[4] s2, float[4] sc)
            { t = Add(s, a)\n s2 = Mul(t, h)\n sc = Sub(s, a) }> (st, x) }"""
    run_both_ways(load(tmp_path, text))


def test_one_tensor_read_twice_is_bound_twice() -> None:
    graph = case("090")
    bindings = node_bindings(graph, graph.nodes[0])
    assert bindings.inputs == (("i0", "x"), ("i1", "x"))
    assert bindings.outputs == (("o0", "h"),)


def test_gaps_are_kept_and_constants_embedded() -> None:
    graph = case("110")
    model = ModelProto.FromString(node_model(graph, graph.nodes[0]))
    assert list(model.graph.node[0].input) == ["i0", "", "i2"]
    assert [value.name for value in model.graph.input] == ["i0"]
    assert [tensor.name for tensor in model.graph.initializer] == ["i2"]
    assert node_bindings(graph, graph.nodes[0]).inputs == (("i0", "x"),)


# Signatures ----------------------------------------------------------------------------------------------------------


def signatures(folder: Path, text: str) -> list[str]:
    graph = load(folder, text)
    return [node_signature(graph, node) for node in graph.nodes]


def test_equal_nodes_share_a_signature_whatever_their_names(tmp_path: Path) -> None:
    found = signatures(
        tmp_path,
        """g (float[4] x, bool c) => (float[4] y) { a = LeakyRelu <alpha = 0.5> (x)\n b = LeakyRelu <alpha = 0.5> (a)
        d = If(c) <then_branch = t () => (float[4] p) { p = Add(a, b) },
            else_branch = e () => (float[4] q) { q = Neg(a) }>
        y = If(c) <then_branch = s () => (float[4] u) { u = Add(b, d) },
            else_branch = f () => (float[4] v) { v = Neg(b) }>
        }""",
    )
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert len(set(found)) == 2


def test_what_a_kernel_can_see_changes_the_signature(tmp_path: Path) -> None:
    found = signatures(
        tmp_path,
        """g (float[4] x, float[2,4] w, float16[4] h, bool c) => (float[4] y, float[2,4] y2, float16[4] y3)
        <float lo = {-1}, float hi = {1}> {
        a = LeakyRelu <alpha = 0.5> (x)\n b = LeakyRelu <alpha = 0.25> (a)\n d = LeakyRelu(b)
        y2 = LeakyRelu <alpha = 0.5> (w)\n y3 = LeakyRelu <alpha = 0.5> (h)
        e = Clip(d, lo)\n f = Clip(e, hi)\n k = Clip(f, "", hi)\n l = Clip(k, lo, hi)
        m = If(c) <then_branch = t () => (float[4] p) { p = Add(k, l) },
            else_branch = e () => (float[4] q) { q = Neg(l) }>
        y = If(c) <then_branch = t () => (float[4] p) { p = Sub(k, m) },
            else_branch = e () => (float[4] q) { q = Neg(m) }>
        }""",
    )
    assert len(set(found)) == len(found)


def test_a_body_that_captures_one_tensor_twice_differs_from_one_that_captures_two(tmp_path: Path) -> None:
    text = """g (float[4] x, float[4] w, bool c) => (float[4] y, float[4] z) {
        y = If(c) <then_branch = t () => (float[4] p) { p = Sub(x, x) },
            else_branch = e () => (float[4] q) { q = Neg(x) }>
        z = If(c) <then_branch = t () => (float[4] p) { p = Sub(x, w) },
            else_branch = e () => (float[4] q) { q = Neg(x) }>
        }"""
    first, second = signatures(tmp_path, text)
    assert first != second


def test_models_state_the_graphs_versions(tmp_path: Path) -> None:
    graph = load(tmp_path, "g (float[4] x) => (float[4] y) { y = com.microsoft.FastGelu(x) }")
    model = ModelProto.FromString(node_model(graph, graph.nodes[0]))
    assert model.ir_version == 10
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 21, "com.microsoft": 1}


# The whole model -----------------------------------------------------------------------------------------------------


def test_whole_model_has_weights_as_inputs_and_no_values() -> None:
    graph = case("170_external_ok/model")
    model = whole_model(graph)
    assert set(graph.weights) <= {value.name for value in model.graph.input}
    assert not {tensor.name for tensor in model.graph.initializer} & set(graph.weights)
    assert [value.name for value in model.graph.output] == list(graph.outputs)


def test_whole_model_names_nodes_by_id() -> None:
    graph = case("060")
    assert [node.name for node in whole_model(graph).graph.node] == [node.id for node in graph.nodes]


# Kernels -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("005", "Add 'add': no kernel for Add (opset 6) on float -> float in onnxruntime on cpu"),
        ("113", "Foo 'foo': no kernel for my.domain:Foo (opset 1) on float -> float in onnxruntime on cpu"),
        (
            "115",
            "InPlaceAccumulatorV2 'ipa': no kernel for com.microsoft:InPlaceAccumulatorV2 (opset 1) on float -> bool",
        ),
        ("131", "Add 'a': no kernel for Add (opset 17) on bfloat16 -> bfloat16 in onnxruntime on cpu"),
        ("135", "Cast 'c1': no kernel for Cast (opset 17) on float -> complex64 in onnxruntime on cpu"),
    ],
)
def test_missing_kernels_are_named(name: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        check_kernels(case(name), Device())
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("name", ["040", "046", "063", "085", "130", "134", "156"])
def test_models_that_run_pass_the_kernel_check(name: str) -> None:
    check_kernels(case(name), Device())
