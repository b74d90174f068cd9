"""Sizes of all tensors: inference, measuring runs, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_texts import case, parse
from onnx import TensorProto, helper

from remat_cli.errors import InputError, ModelError
from remat_cli.model import sizing_run
from remat_cli.model.element_types import ELEMENT_BITS, tensor_bytes, type_name
from remat_cli.model.graph import TensorInfo, Weight
from remat_cli.model.sizing import infer_shapes, size_tensors
from remat_cli.reporter import Reporter


class Notes(Reporter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inference has to be enough."""

    def refuse(*_: object) -> int:
        raise AssertionError("a child process was started")

    monkeypatch.setattr(sizing_run, "_run_child", refuse)


def sizes(text: str, feeds: dict[str, np.ndarray] | None = None) -> dict[str, TensorInfo]:
    return size_tensors(parse(text), {}, feeds)


# Element types ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count", "size"),
    [
        ("FLOAT", 5, 20), ("DOUBLE", 5, 40), ("FLOAT16", 5, 10), ("BFLOAT16", 5, 10), ("BOOL", 5, 5), ("INT64", 5, 40),
        ("COMPLEX64", 4, 32), ("COMPLEX128", 4, 64), ("FLOAT8E4M3FN", 5, 5), ("FLOAT8E5M2FNUZ", 5, 5),
        ("INT4", 5, 3), ("UINT4", 4, 2), ("FLOAT4E2M1", 3, 2), ("STRING", 5, 0), ("INT4", 0, 0),
    ],
)  # fmt: skip
def test_bytes_of_each_element_type(name: str, count: int, size: int) -> None:
    assert tensor_bytes(TensorProto.DataType.Value(name), (count,)) == size


def test_every_element_type_of_onnx_has_a_width() -> None:
    known = set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED, TensorProto.STRING}
    assert set(ELEMENT_BITS) == known
    assert type_name(TensorProto.BFLOAT16) == "bfloat16"
    assert type_name(999) == "type 999"


# Inference -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_child")
def test_four_tebibytes_are_sized_without_allocation() -> None:
    graph = case("028")
    assert graph.tensors["y"].size_bytes == 4 * 2**40
    assert graph.tensors["y"].fixed_size


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize(
    ("name", "tensor", "size"),
    [("025", "y", 0), ("027", "h", 64), ("130", "b", 10), ("135", "c", 32), ("156", "rm", 16), ("041", "y", 256)],
)
def test_trial_cases_by_inference(name: str, tensor: str, size: int) -> None:
    info = case(name).tensors[tensor]
    assert (info.size_bytes, info.fixed_size) == (size, True)


@pytest.mark.usefixtures("no_child")
def test_flatten_by_shape_operators() -> None:
    graph = case("023", dims={"N": 3})
    assert graph.tensors["f"].shape == (3, 12)


@pytest.mark.usefixtures("no_child")
def test_strings_have_no_size_and_no_fixed_size() -> None:
    info = case("134").tensors["t"]
    assert (info.size_bytes, info.fixed_size, info.elem_type) == (0, False, TensorProto.STRING)


@pytest.mark.usefixtures("no_child")
def test_declared_shapes_of_intermediates_are_not_believed() -> None:
    model = parse("g (float[4,4] x) => (float[9,9] y) <float[400,400] h> { h = Relu(x)\n y = Neg(h) }")
    found = size_tensors(model, {})
    assert [found[name].size_bytes for name in ("h", "y")] == [64, 64]
    assert model.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 9, "the caller's model is left as it was"


@pytest.mark.usefixtures("no_child")
def test_small_integer_weights_tell_shapes() -> None:
    model = parse("g (float[2,6] x, int64[2] shape) => (float[3,4] y) { y = Reshape(x, shape) }")
    value = helper.make_tensor("shape", TensorProto.INT64, [2], np.array([3, 4]).tobytes(), raw=True)
    weight = Weight("shape", TensorProto.INT64, (2,), 16, inline=value, overridable=True)
    assert size_tensors(model, {"shape": weight})["y"].shape == (3, 4)


@pytest.mark.usefixtures("no_child")
def test_weights_that_the_model_does_not_list_become_inputs() -> None:
    model = parse("g (float[2,3] x) => (float[2,5] y) { y = MatMul(x, W) }")
    found = size_tensors(model, {"W": Weight("W", TensorProto.FLOAT, (3, 5), 60)})
    assert found["W"].size_bytes == 60
    assert found["y"].shape == (2, 5)


def test_infer_shapes_gives_none_for_open_shapes() -> None:
    found = infer_shapes(parse("g (float[n,4] x) => (float[k] y) { h = Relu(x)\n y = NonZero(h) }"))
    assert found["x"] == (TensorProto.FLOAT, None)
    assert found["y"] == (TensorProto.INT64, None)


@pytest.mark.usefixtures("no_child")
def test_loops_keep_shapes_and_stack_scan_outputs() -> None:
    found = sizes("""g (float[4] x) => (float[4] z, float[5,4] q) <int64 n = {5}, bool t = {1}> {
        z, q = Loop(n, t, x) <body = b (int64 i, bool c, float[4] a) => (bool c2, float[4] a2, float[4] s)
            { c2 = Identity(c)\n a2 = Add(a, x)\n s = Mul(a, a) }> }""")
    assert (found["z"].shape, found["q"].shape) == ((4,), (5, 4))


def test_inferred_sizes_are_those_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two ways must agree: nothing is inferred in the second call."""
    text = """g (float[2,3,8,8] x, float[4,3,3,3] w) => (float[2,8] y) <int64[2] s = {0, -1}, int64[1] k = {3}> {
        c = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w)\n p = MaxPool <kernel_shape = [2, 2]> (c)
        f = Reshape(p, s)\n v, i = TopK(f, k)\n z = Pad(v, pad)\n y = Cast <to = 10> (z) }"""
    text = text.replace("{3}>", "{3}, int64[4] pad = {0, 1, 0, 4}>")
    inferred = sizes(text)
    with monkeypatch.context() as patch:
        patch.setattr("remat_cli.model.sizing._inferred", lambda model: model)
        assert sizes(text) == inferred


# Measuring runs --------------------------------------------------------------------------------------------------


def test_sequences_are_measured_and_not_fixed() -> None:
    info = case("046").tensors["s"]
    assert (info.container, info.size_bytes, info.fixed_size, info.shape) == ("sequence", 16, False, None)


def test_growing_loop_has_the_size_of_a_run() -> None:
    notes = Notes()
    text = """g (float[4] x) => (float[n] z) <int64 n = {5}, bool t = {1}> {
        z = Loop(n, t, x) <body = b (int64 i, bool c, float[m] a) => (bool c2, float[k] a2)
            { c2 = Identity(c)\n a2 = Concat <axis = 0> (a, x) }> }"""
    found = size_tensors(parse(text), {}, reporter=notes)
    assert found["z"] == TensorInfo("z", TensorProto.FLOAT, (24,), 96)
    assert notes.lines == ["one run to learn the sizes of 'z'"]


def test_contrib_operators_are_sized_by_the_runtime() -> None:
    text = "g (float[4,8] x, float[8] b) => (float[4,8] z) { y = com.microsoft.BiasGelu(x, b)\n z = Relu(y) }"
    assert sizes(text)["z"] == TensorInfo("z", TensorProto.FLOAT, (4, 8), 128)


def test_weights_are_read_from_their_file_for_a_run(tmp_path: object) -> None:
    data = np.array([0, 1, 0, 1, 1, 0], np.float32)
    file = tmp_path / "w.bin"  # type: ignore[operator]
    file.write_bytes(b"head" + data.tobytes())
    model = parse("g (float[6] x) => (int64[1,n] y) { y = NonZero(W) }")
    found = size_tensors(model, {"W": Weight("W", TensorProto.FLOAT, (6,), 24, file=file, offset=4)})
    assert found["y"] == TensorInfo("y", TensorProto.INT64, (1, 3), 24)


def test_shape_that_hangs_on_random_numbers_is_not_fixed() -> None:
    info = sizes("g (float[4] x) => (int64[1,n] z) { b = RandomUniformLike <seed = 1.0> (x)\n z = NonZero(b) }")["z"]
    assert (info.fixed_size, info.shape, info.size_bytes) == (False, None, 32)


# Shapes that hang on values --------------------------------------------------------------------------------------


def test_reshape_by_an_input_asks_for_its_values() -> None:
    with pytest.raises(ModelError) as caught:
        case("022")
    assert caught.value.message.endswith(
        "the shape of 'h', made by Reshape 'rs', hangs on the values of input 'shape': no static size can be given"
    )
    assert caught.value.hint == "give those values: --inputs feeds.npz, with an array for shape"


def test_reshape_by_an_input_works_with_its_values() -> None:
    graph = case("022", {"shape": np.array([2, 3, 5])})
    assert {n: (i.size_bytes, i.fixed_size) for n, i in graph.tensors.items() if n in "hy"} == {
        "h": (120, False),
        "y": (120, False),
    }
    assert [node.once for node in graph.nodes] == ["unknown size", "unknown size"]
    assert all(node.view_of is None and node.in_place == () for node in graph.nodes)


@pytest.mark.parametrize(
    ("body", "blamed"),
    [
        ("z = NonZero(x)", "'x'"),
        ("m = Cast <to = 9> (x)\n z = Compress <axis = 0> (y, m)", "'x'"),
        ("k = Cast <to = 7> (c)\n z = Tile(x, k)", "'c'"),
        ("k = Shape(x)\n j = Cast <to = 7> (c)\n l = Mul(k, j)\n z = ConstantOfShape(l)", "'c'"),
        (
            "z = If(c) <then_branch = t () => (float[8] a) { a = Concat <axis = 0> (x, x) }, "
            "else_branch = e () => (float[4] b) { b = Relu(x) }>",
            "'c'",
        ),
        (
            "z = Loop(n, t, x) <body = b (int64 i, bool cc, float[m] a) => (bool c2, float[k] a2) "
            "{ q = ReduceSum <keepdims = 0> (y)\n c2 = Cast <to = 9> (q)\n a2 = Concat <axis = 0> (a, x) }>",
            "'y'",
        ),
    ],
)
def test_the_inputs_that_decide_a_shape_are_named(body: str, blamed: str) -> None:
    text = "g (float[4] x, float[4] y, bool[1] c) => (float[n] z) <int64 n = {5}, bool t = {1}> {\n" + body + " }"
    with pytest.raises(ModelError) as caught:
        sizes(text)
    assert f"hangs on the values of input {blamed}:" in caught.value.message


def test_feeds_of_the_wrong_type_are_refused_before_the_run() -> None:
    with pytest.raises(InputError, match="'x' is float64, but the model's input is float"):
        sizes("g (float[4] x) => (int64[1,n] z) { z = NonZero(x) }", {"x": np.zeros(4)})


# Failures --------------------------------------------------------------------------------------------------------


def test_open_inputs_are_refused() -> None:
    with pytest.raises(ModelError, match="graph input 'x' has no fixed shape"):
        sizes("g (float[n] x) => (float[n] z) { z = Relu(x) }")
    with pytest.raises(ModelError, match="graph input 'x' is a sequence"):
        sizes("g (seq(float[n]) x, int64 i) => (float[n] z) { z = SequenceAt(x, i) }")


def test_a_crash_of_the_runtime_names_the_node() -> None:
    text = """g (float[1,20] x) => (float[1,5] z) <int64 i = {0}> {
        r = Relu(x)\n "", y, "", "" = Split <axis = -1, num_outputs = 4> (r)\n n = Neg(y)
        s = SequenceConstruct(n, n)\n z = SequenceAt(s, i) }"""
    with pytest.raises(ModelError, match=r"the size of 's' cannot be measured: Split \(node 1\): .*died \(SIG"):
        sizes(text)


def test_a_failing_run_names_the_node_and_asks_for_values() -> None:
    text = """g (float[4] x) => (float[n] z) <int64[2] far = {7, 9}, int64 i = {0}> {
        y = Gather(x, far)\n s = SequenceConstruct(y)\n z = SequenceAt(s, i) }"""
    with pytest.raises(ModelError, match=r"Gather \(node 0\): indices element out of data bounds") as caught:
        sizes(text)
    assert caught.value.hint == "give realistic values: --inputs feeds.npz"


def test_unknown_operators_are_sized_as_declared_with_a_note() -> None:
    notes = Notes()
    model = parse("g (float[4] x) => (float[4] y) { h = my.domain.Foo(x)\n y = Neg(h) }")
    declared = {"h": helper.make_tensor_type_proto(TensorProto.FLOAT, [4])}
    found = size_tensors(model, {}, reporter=notes, declared=declared)
    assert found["y"].size_bytes == 16
    assert notes.lines == ["sizes of 'h', 'y' are as the file declares them: Foo (node 0): unknown operator"]
    with pytest.raises(ModelError, match=r"the size of 'h', 'y' cannot be measured: Foo \(node 0\): unknown operator"):
        size_tensors(model, {})


@pytest.mark.usefixtures("no_child")
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.sampled_from([1, 7, 9, 10, 11, 16]))
def test_elementwise_sizes(shape: list[int], elem_type: int) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", elem_type, shape)],
        [helper.make_tensor_value_info("y", elem_type, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    expected = int(np.prod(shape)) * helper.tensor_dtype_to_np_dtype(elem_type).itemsize
    assert size_tensors(model, {})["y"].size_bytes == expected
