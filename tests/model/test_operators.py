"""Which nodes are views, and which may run only once."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_texts import case, load, parse
from onnx import NodeProto, TensorProto, helper

from remat_cli.model.element_types import tensor_bytes
from remat_cli.model.graph import TensorInfo
from remat_cli.model.operators import once_reason, view_source


def views(folder: Path, text: str) -> dict[str, str | None]:
    return {node.id: node.view_of for node in load(folder, text).nodes}


def once(folder: Path, text: str) -> dict[str, str]:
    return {node.id: node.once for node in load(folder, text).nodes}


def test_view_operators(tmp_path: Path) -> None:
    found = views(
        tmp_path,
        """g (float[2,3,4] x) => (float[2,3,4] y) <int64[2] s = {6, 4}, int64[1] ax = {0}> {
        a = Relu(x)\n b = Reshape(a, s)\n c = Flatten(b)\n d = Unsqueeze(c, ax)\n e = Squeeze(d, ax)
        f = Identity(e)\n h = Cast <to = 1> (f)\n i = Dropout(h)\n r = Reshape(i, t)\n y = Neg(r) }""".replace(
            "{0}>", "{0}, int64[3] t = {2, 3, 4}>"
        ),
    )
    assert found == {
        "a": None,
        "b": "a",
        "c": "b",
        "d": "c",
        "e": "d",
        "f": "e",
        "h": "f",
        "i": "h",
        "r": "i",
        "y": None,
    }


def test_a_view_may_look_at_an_input_or_a_weight() -> None:
    assert [node.view_of for node in case("025").nodes] == ["x"]
    assert [node.view_of for node in case("093").nodes] == [None, "big", "r1", "r2", None]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[4] x) => (int64[4] y) { y = Cast <to = 7> (x) }",
        "g (float[4] x) => (int32[4] y) { y = Cast <to = 6> (x) }",
        "g (string[4] x) => (string[4] y) { y = Identity(x) }",
        "g (float[4] x) => (float[4] y, bool[4] m) { y, m = Dropout(x) }",
        "g (float[4] x) => (float[4] y) <float r = {0.5}, bool t = {1}> { y = Dropout(x, r, t) }",
        "g (float[4] x, bool t) => (float[4] y) <float r = {0.5}> { y = Dropout(x, r, t) }",
        "g (float[2,2] x) => (float[2,2] y) { y = Transpose(x) }",
    ],
)
def test_not_views(tmp_path: Path, text: str) -> None:
    assert set(views(tmp_path, text).values()) == {None}


def test_dropout_whose_training_mode_is_constant_false_is_a_view(tmp_path: Path) -> None:
    text = "g (float[4] x, float r) => (float[4] y) <bool t = {0}> { y, m = Dropout(x, r, t) }"
    assert views(tmp_path, text) == {"y": "x"}
    assert once(tmp_path, text) == {"y": ""}


def info(name: str, *shape: int, fixed: bool = True) -> TensorInfo:
    size = tensor_bytes(TensorProto.FLOAT, shape)
    return TensorInfo(name, TensorProto.FLOAT, shape if fixed else None, size, fixed_size=fixed)


def test_reshape_by_a_computed_shape_is_no_view() -> None:
    tensors = {"x": info("x", 2, 3), "s": TensorInfo("s", TensorProto.INT64, (1,), 8), "y": info("y", 6)}
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    value = helper.make_tensor("s", TensorProto.INT64, [1], [6])
    assert view_source(node, tensors, {}, {"y"}, 21) is None
    assert view_source(node, tensors, {"s": value}, {"y"}, 21) == "x"
    assert view_source(node, tensors | {"y": info("y", 6, fixed=False)}, {"s": value}, {"y"}, 21) is None
    sequence = TensorInfo("x", TensorProto.FLOAT, None, 24, "sequence", fixed_size=False)
    assert (
        view_source(helper.make_node("Identity", ["x"], ["y"]), {"x": sequence, "y": sequence}, {}, {"y"}, 21) is None
    )


def test_operators_of_other_domains_are_no_views() -> None:
    tensors = {"x": info("x", 4), "y": info("y", 4)}
    node = helper.make_node("Identity", ["x"], ["y"], domain="my.domain")
    assert view_source(node, tensors, {}, {"y"}, 21) is None


# Once --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "node", "reason"), [
    ("150", "h", "random"), ("151", "h", "random"), ("152", "h", ""), ("154", "y0", "random inside If"),
    ("156", "b", ""), ("113", "y", "custom operator"), ("115", "upd", "stateful operator"),
    ("134", "t", "unknown size"), ("046", "s", "unknown size"),
])  # fmt: skip
def test_trial_cases(name: str, node: str, reason: str) -> None:
    assert {n.id: n.once for n in case(name).nodes}[node] == reason


def reason_of(node: NodeProto, opset: int = 21) -> str:
    tensors = {name: info(name, 4) for name in (*node.input, *node.output)}
    value = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    return once_reason(node, tensors, {"yes": value}, opset)


@pytest.mark.parametrize(
    ("op_type", "domain", "reason"),
    [
        ("RandomNormalLike", "", "random"), ("Bernoulli", "", "random"), ("Multinomial", "", "random"),
        ("BiasDropout", "com.microsoft", "random"), ("BitmaskDropout", "com.microsoft", "random"),
        ("InPlaceAccumulatorV2", "com.microsoft", "stateful operator"),
        ("GroupQueryAttention", "com.microsoft", "stateful operator"),
        ("FusedMatMul", "com.microsoft", ""), ("BatchNormalization", "", ""), ("Conv", "com.microsoft.nchwc", ""),
        ("Adam", "ai.onnx.preview.training", ""), ("Relu", "my.domain", "custom operator"),
    ],
)  # fmt: skip
def test_reasons(op_type: str, domain: str, reason: str) -> None:
    assert reason_of(helper.make_node(op_type, ["x"], ["y"], domain=domain)) == reason


def test_seeds_do_not_make_random_operators_repeatable() -> None:
    assert reason_of(helper.make_node("RandomNormalLike", ["x"], ["y"], seed=1.0)) == "random"


def test_dropout_modes() -> None:
    assert reason_of(helper.make_node("Dropout", ["x"], ["y"])) == ""
    assert reason_of(helper.make_node("Dropout", ["x", "r", "yes"], ["y"])) == "random"
    assert reason_of(helper.make_node("Dropout", ["x", "r", "fed"], ["y"])) == "random"
    assert reason_of(helper.make_node("Dropout", ["x", "", ""], ["y"])) == ""
    assert reason_of(helper.make_node("Dropout", ["x"], ["y"]), opset=6) == "random"
    assert reason_of(helper.make_node("Dropout", ["x"], ["y"], is_test=1), opset=6) == ""


def test_attention_that_shares_its_past_buffer() -> None:
    plain = helper.make_node("Attention", ["x"], ["y"], domain="com.microsoft")
    shared = helper.make_node("Attention", ["x"], ["y"], domain="com.microsoft", past_present_share_buffer=1)
    assert (reason_of(plain), reason_of(shared)) == ("", "stateful operator")


def test_random_operators_in_nested_bodies() -> None:
    model = parse("""g (float[4] x, bool c) => (float[4] y) {
        y = If(c) <then_branch = t () => (float[4] a) {
            a = If(c) <then_branch = t2 () => (float[4] b) { b = RandomUniformLike(x) },
                       else_branch = e2 () => (float[4] d) { d = Neg(x) }> },
            else_branch = e () => (float[4] f) { f = Relu(x) }> }""")
    assert reason_of(model.graph.node[0]) == "random inside If"
