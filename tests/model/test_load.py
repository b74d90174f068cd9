"""Loading whole models: what is accepted, in which form, and what is refused, by name."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.errors import ModelError
from remat_cli.model.graph import Graph
from remat_cli.model.load import load_graph
from remat_cli.model.weights import weight_array
from remat_cli.ort_session import Device, make_session
from remat_cli.reporter import Reporter

CASES = Path(__file__).parents[1] / "data" / "cases"
HEAD = '<ir_version: 8, opset_import: ["" : 17, "loc" : 1]>\n'


def case(number: str, dims: Mapping[str, int] | None = None, **options: Any) -> Graph:
    (path,) = CASES.glob(f"{number}_*.onnx")
    return load_graph(path, dims, **options)


def written(folder: Path, text: str) -> Path:
    """A model file from ONNX's text form, without the header."""
    path = folder / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(HEAD + text).SerializeToString())
    return path


def load(folder: Path, text: str, dims: Mapping[str, int] | None = None) -> Graph:
    return load_graph(written(folder, text), dims)


def ops(graph: Graph) -> list[str]:
    return [node.op_type for node in graph.nodes]


def refused(number: str, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        case(number, **options)
    assert "\n" not in caught.value.message
    return caught.value


class TestVersions:
    @pytest.mark.parametrize(("number", "ir", "opset"), [("001", 14, 28), ("002", 13, 27)])
    def test_newer_than_the_runtime(self, number: str, ir: int, opset: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("remat_cli.model.limits.runtime_limits", lambda: (13, 26))
        error = refused(number)
        assert f"file is IR {ir} / opset {opset}, installed onnxruntime takes IR <= 13, opset <= 26" in error.message
        assert error.hint == "export for opset 26 with IR version 13, or install a newer onnxruntime"

    def test_limits_are_what_the_runtime_says(self) -> None:
        """The largest versions that load; the next ones do not."""
        from remat_cli.model.limits import _loads, runtime_limits

        ir, opset = runtime_limits()
        assert ir >= 11
        assert opset >= 23
        assert _loads(ir, opset)
        assert not _loads(ir + 1, opset)
        assert not _loads(ir, opset + 1)

    def test_no_opset_import(self) -> None:
        assert "has no opset_import" in refused("004").message

    def test_opset_of_another_domain_only(self, tmp_path: Path) -> None:
        path = tmp_path / "m.onnx"
        model = onnx.load(CASES / "062_unnamed_nodes.onnx")
        model.opset_import[0].domain = "loc"
        path.write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match="opset_import has no version for them"):
            load_graph(path)

    def test_the_default_domain_has_two_names(self, tmp_path: Path) -> None:
        path = tmp_path / "m.onnx"
        model = onnx.load(CASES / "062_unnamed_nodes.onnx")
        model.opset_import[0].domain = model.graph.node[0].domain = "ai.onnx"
        path.write_bytes(model.SerializeToString())
        graph = load_graph(path)
        assert graph.opsets == {"": 17}
        assert [node.domain for node in graph.nodes] == ["", ""]


class TestInitialisers:
    def test_ir3_initialiser_that_is_no_input(self) -> None:
        graph = case("006")
        assert graph.inputs == ("x",)
        assert not graph.weights["W"].overridable

    def test_initialiser_that_is_an_input_has_a_default(self) -> None:
        graph = case("007")
        assert graph.inputs == ("x",)
        assert graph.weights["W"].overridable
        assert weight_array(graph.weights["W"]).tolist() == [1, 2, 3]

    def test_before_ir4_listed_initialisers_are_fixed(self, tmp_path: Path) -> None:
        model = onnx.load(CASES / "007_initializer_is_input.onnx")
        model.ir_version = 3
        path = tmp_path / "m.onnx"
        path.write_bytes(model.SerializeToString())
        assert not load_graph(path).weights["W"].overridable

    def test_constants_and_weights(self, tmp_path: Path) -> None:
        """Small integers and scalars are embedded into nodes; small float vectors are parameters."""
        graph = load(
            tmp_path,
            "g (float[2,3] x) => (float[3,2] y)\n"
            "<int64[2] shape = {3, 2}, float half = {0.5}, float[3] bias = {1, 2, 3}>\n"
            "{ a = Add(x, bias)  b = Mul(a, half)  y = Reshape(b, shape) }",
        )
        assert sorted(graph.constants) == ["half", "shape"]
        assert list(graph.weights) == ["bias"]

    def test_resize_scales_are_constants(self, tmp_path: Path) -> None:
        graph = load(
            tmp_path,
            "g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] scales = {1, 1, 2, 2}> { y = Resize(x, , scales) }",
        )
        assert list(graph.constants) == ["scales"]
        assert graph.tensors["y"].shape == (1, 1, 8, 8)
        assert graph.nodes[0].inputs == ("x", "", "scales")

    def test_value_fields_are_read_alike(self, tmp_path: Path) -> None:
        model = onnx.load(written(tmp_path, "g (float[2] x) => (float[2] y) { y = Add(x, w) }"))
        model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT16, [2], [1.5, -2]))
        del model.graph.node[:]
        cast = helper.make_node("Cast", ["w"], ["c"], to=TensorProto.FLOAT)
        model.graph.node.extend([cast, helper.make_node("Add", ["x", "c"], ["y"])])
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        graph = load_graph(tmp_path / "m.onnx")
        assert numpy_helper.to_array(graph.constants["c"]).tolist() == [1.5, -2]

    def test_sparse_initialisers_become_dense(self, tmp_path: Path) -> None:
        model = onnx.load(written(tmp_path, "g (float[2,3] x) => (float[2,3] y) { y = Add(x, w) }"))
        values = numpy_helper.from_array(np.array([5, 7], np.float32), "w")
        for indices in (np.array([1, 5], np.int64), np.array([[0, 1], [1, 2]], np.int64)):
            del model.graph.sparse_initializer[:]
            sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(indices), [2, 3])
            model.graph.sparse_initializer.append(sparse)
            (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
            graph = load_graph(tmp_path / "m.onnx")
            assert weight_array(graph.weights["w"]).tolist() == [[0, 5, 0], [0, 0, 7]]

    @pytest.mark.parametrize(
        ("tensor", "message"),
        [
            (TensorProto(name="w", data_type=1, dims=[3], raw_data=b"1234"), "do not make a float tensor of shape 3"),
            (TensorProto(name="w", data_type=1, dims=[2], float_data=[1]), "is damaged"),
            (TensorProto(name="w", data_type=77, dims=[1], raw_data=b"1"), r"unknown element type \(type 77\)"),
            (TensorProto(name="w", dims=[1]), "unknown element type"),
            (TensorProto(name="w", data_type=1, dims=[-1]), "negative dim"),
            (TensorProto(data_type=1, dims=[0]), "initialiser 0 has no name"),
        ],
    )
    def test_damaged_initialisers(self, tmp_path: Path, tensor: TensorProto, message: str) -> None:
        model = onnx.load(written(tmp_path, "g (float[2] x) => (float[2] y) { y = Add(x, w) }"))
        model.graph.initializer.append(tensor)
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match=message):
            load_graph(tmp_path / "m.onnx")

    def test_given_twice(self, tmp_path: Path) -> None:
        model = onnx.load(CASES / "007_initializer_is_input.onnx")
        model.graph.initializer.append(model.graph.initializer[0])
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match="initialiser 1 'W' is given twice"):
            load_graph(tmp_path / "m.onnx")

    def test_unused_ones_are_left_out(self, tmp_path: Path) -> None:
        text = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Relu(x) }"
        graph = load(tmp_path, text)
        assert not graph.weights
        assert graph.notes == ("1 initialiser left out that nothing reads",)


class TestDims:
    def test_open_dims_are_refused_with_the_option(self) -> None:
        error = refused("020")
        assert error.message.endswith("dims without a value: input 'x', dim 0 'batch'")
        assert error.hint == "add --dim batch=N"

    def test_fixed_dims_reach_every_size(self) -> None:
        graph = case("020", {"batch": 6})
        assert graph.dims == {"batch": 6}
        assert graph.tensors["y"].shape == (6, 4)
        assert graph.tensors["x"].size_bytes == 6 * 8 * 4

    def test_unknown_names_are_refused_with_the_known_ones(self) -> None:
        with pytest.raises(ModelError, match="has no symbolic dim 'seq'; its symbolic dims are 'batch'"):
            case("020", {"batch": 1, "seq": 2})
        with pytest.raises(ModelError, match="has no symbolic dim 'N'; all its dims are fixed"):
            case("062", {"N": 1})

    def test_negative_values_are_refused(self) -> None:
        with pytest.raises(ModelError, match="dim 'batch' cannot be -1"):
            case("020", {"batch": -1})

    def test_unnamed_dims_go_by_input_and_axis(self, tmp_path: Path) -> None:
        path = written(tmp_path, "g (float[?,N] x, float[N] b) => (float[?,N] y) { y = Add(x, b) }")
        with pytest.raises(ModelError, match="input 'x', dim 0, input 'x', dim 1 'N'") as caught:
            load_graph(path)
        assert caught.value.hint == "add --dim x:0=N --dim N=N"
        graph = load_graph(path, {"x:0": 2, "N": 3})
        assert graph.tensors["y"].shape == (2, 3)
        assert graph.dims == {"x:0": 2, "N": 3}

    def test_minus_one_is_an_open_dim(self, tmp_path: Path) -> None:
        model = onnx.load(CASES / "062_unnamed_nodes.onnx")
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match=r"input 'x', dim 0$"):
            load_graph(tmp_path / "m.onnx")
        assert load_graph(tmp_path / "m.onnx", {"x:0": 9}).tensors["y"].shape == (9,)

    def test_feeds_fix_dims(self) -> None:
        graph = case("020", feeds={"x": np.zeros((5, 8), np.float32)})
        assert graph.dims == {"batch": 5}

    def test_feeds_that_disagree(self, tmp_path: Path) -> None:
        path = written(tmp_path, "g (float[N] a, float[N] b) => (float[N] y) { y = Add(a, b) }")
        feeds = {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)}
        with pytest.raises(ModelError, match="feeds give dim 'N' two values, 2 and 3"):
            load_graph(path, feeds=feeds)

    def test_inputs_without_rank(self, tmp_path: Path) -> None:
        model = onnx.load(CASES / "062_unnamed_nodes.onnx")
        model.graph.input[0].type.tensor_type.ClearField("shape")
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match="input 'x' has no shape"):
            load_graph(tmp_path / "m.onnx")


class TestStructure:
    def test_wrong_stored_shapes_are_not_used(self) -> None:
        graph = case("027")
        assert graph.tensors["h"].size_bytes == 64
        assert graph.notes == ("shapes in the file that are wrong: 'h' is 4x4, not 400x400",)

    def test_repeated_node_names(self) -> None:
        graph = case("060")
        assert [node.id for node in graph.nodes] == ["h", "y"]
        assert [node.label for node in graph.nodes] == ["Relu 'dup' (node 0)", "Neg 'dup' (node 1)"]
        assert len({node.proto.name for node in graph.nodes}) == 2

    def test_unnamed_nodes(self) -> None:
        assert [node.label for node in case("062").nodes] == ["Relu (node 0)", "Neg (node 1)"]

    def test_long_names(self) -> None:
        graph = case("063")
        assert max(len(node.id) for node in graph.nodes) > 5000
        assert all(len(node.label) < 120 for node in graph.nodes)

    def test_written_twice(self) -> None:
        assert "'h' is written twice: by Relu 'r' and by Neg 'n'" in refused("066").message

    def test_output_that_is_also_an_input(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="'x' is written twice: by a graph input and by Relu"):
            load(tmp_path, "g (float[2] x) => (float[2] x) { x = Relu(x) }")

    def test_undefined(self, tmp_path: Path) -> None:
        assert refused("067").message.endswith("Relu 'r' reads 'nope', which nothing makes")
        with pytest.raises(ModelError, match="graph output 'z' is made by no node"):
            load(tmp_path, "g (float[2] x) => (float[2] z) { y = Relu(x) }")
        body = (
            "then_branch = t () => (float[2] a) { a = Relu(nope) }, else_branch = e () => (float[2] b) { b = Neg(x) }"
        )
        with pytest.raises(ModelError, match=r"If \(node 0\) reads 'nope'"):
            load(tmp_path, f"g (float[2] x, bool c) => (float[2] y) {{ y = If(c) <{body}> }}")

    def test_unsorted(self) -> None:
        graph = case("080")
        assert ops(graph) == ["Relu", "Neg"]
        assert graph.nodes[0].label == "Relu 'first'"
        assert graph.notes == ("nodes were not in topological order; they are sorted",)

    def test_cycles(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"cycle: Add \(node 1\) -> Neg \(node 2\) -> Add \(node 1\)"):
            load(tmp_path, "g (float[2] x) => (float[2] y) { a = Relu(x)  b = Add(a, c)  c = Neg(b)  y = Abs(c) }")

    def test_long_chain(self) -> None:
        start = time.perf_counter()
        graph = case("081")
        assert len(graph.nodes) == 3000
        assert time.perf_counter() - start < 2

    def test_dead_nodes(self) -> None:
        graph = case("083")
        assert ops(graph) == ["Relu"]
        assert graph.notes == ("2 dead nodes left out: Exp 'd1', Neg 'd2'",)
        assert "dead" not in graph.tensors

    def test_output_is_input(self) -> None:
        graph = case("085")
        assert graph.outputs == ("y", "x")
        assert graph.tensors["x"].shape == (4,)

    def test_no_nodes(self) -> None:
        assert refused("088").message.endswith("the graph has no nodes: nothing to schedule")

    def test_all_nodes_constant(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="all its nodes are constants or dead"):
            load(tmp_path, "g (float[2] x) => (int64[1] s) { s = Shape(x) }")

    def test_no_outputs(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="no outputs"):
            load(tmp_path, "g (float[2] x) => () { y = Relu(x) }")

    def test_same_input_twice(self) -> None:
        assert case("090").nodes[1].reads == ("h", "h")

    def test_repeated_outputs(self, tmp_path: Path) -> None:
        graph = load(tmp_path, "g (float[2] x) => (float[2] y, float[2] y) { y = Relu(x) }")
        assert graph.outputs == ("y",)
        assert graph.notes == ("graph outputs that are listed twice are counted once",)

    def test_input_gaps_are_kept(self) -> None:
        assert case("110").nodes[0].inputs == ("x", "", "hi")

    def test_output_gaps_of_variadic_operators_are_named(self) -> None:
        """Split counts its outputs, so gaps at the end stay; onnxruntime would die on them."""
        graph = case("111")
        assert graph.nodes[0].outputs == ("sp_unused_0", "y", "sp_unused_2", "sp_unused_3")
        assert graph.tensors["sp_unused_3"].shape == (1, 5)
        _runs(graph)

    def test_output_gaps_at_the_end_are_dropped(self, tmp_path: Path) -> None:
        graph = load(tmp_path, "g (float[4] x) => (float[4] y) { y, = Dropout(x) }")
        assert graph.nodes[0].outputs == ("y",)

    def test_dead_loop_without_output_names(self) -> None:
        graph = case("043")
        assert ops(graph) == ["Relu"]

    def test_loop_with_one_unnamed_output(self, tmp_path: Path) -> None:
        body = "body = b (int64 i, bool c, float[2] p, float[2] q) => (bool d, float[2] r, float[2] s) "
        body += "{ d = Identity(c)  r = Add(p, q)  s = Neg(q) }"
        text = "g (float[2] x) => (float[2] y) <int64 n = {3}, bool t = {1}> { , y = Loop(n, t, x, x) <" + body + "> }"
        graph = load(tmp_path, text)
        assert graph.nodes[0].outputs == ("Loop_0_unused_0", "y")
        _runs(graph)

    def test_names_that_are_taken(self, tmp_path: Path) -> None:
        text = "g (float[4] Split_0_unused_0) => (float[2] y) { , y = Split(Split_0_unused_0) }"
        assert load(tmp_path, text).nodes[0].outputs == ("Split_0_unused_0_2", "y")


class TestBodies:
    def test_captures(self) -> None:
        graph = case("040")
        assert graph.nodes[1].captures == ("h", "x", "W")
        assert list(graph.weights) == ["W"]

    def test_loop_capture(self) -> None:
        loop = case("041").nodes[-1]
        assert loop.captures == ("big",)
        assert loop.reads == ("trip", "t", "n2", "big")

    def test_nested_captures(self, tmp_path: Path) -> None:
        inner = (
            "then_branch = it () => (float[2] p) { p = Add(a, w) }, else_branch = ie () => (float[2] q) { q = Neg(x) }"
        )
        outer = f"then_branch = t () => (float[2] o) {{ a = Relu(h)  o = If(c) <{inner}> }}"
        outer += ", else_branch = e () => (float[2] r) { r = Neg(h) }"
        text = "g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> { h = Exp(x)  y = If(c) <" + outer + "> }"
        graph = load(tmp_path, text)
        assert set(graph.nodes[1].captures) == {"h", "w", "x"}
        _runs(graph, c=np.array(True))

    def test_hidden_names_unsorted_bodies_and_returned_captures(self, tmp_path: Path) -> None:
        """onnxruntime refuses all three, and repeated node names inside bodies."""
        branches = "then_branch = t () => (float[2] ty) { [n] ty = Neg(h)  [n] h = Exp(x) }, "
        branches += "else_branch = e () => (float[2] x) { }"
        text = "g (float[2] x, bool c) => (float[2] y) { h = Relu(x)  z = If(c) <" + branches + ">  y = Add(z, h) }"
        with pytest.raises(Exception, match=r"single static assignment|same node name|sorted"):
            make_session(written(tmp_path, text), Device())
        graph = load(tmp_path, text)
        assert graph.nodes[1].captures == ("x",)
        assert graph.notes == ("renamed inside bodies, since outer tensors have these names: 'h'",)
        x = np.array([0.5, -2], np.float32)
        (value,) = _runs(graph, x=x, c=np.array(True))
        np.testing.assert_allclose(value, -np.exp(x) + np.maximum(x, 0))
        (value,) = _runs(graph, x=x, c=np.array(False))
        np.testing.assert_allclose(value, x + np.maximum(x, 0))

    def test_cycle_inside_a_body(self, tmp_path: Path) -> None:
        branches = "then_branch = t () => (float[2] b) { a = Add(b, x)  b = Neg(a) }, "
        branches += "else_branch = e () => (float[2] f) { f = Neg(x) }"
        with pytest.raises(ModelError, match=r"inside If \(node 0\): nodes form a cycle"):
            load(tmp_path, "g (float[2] x, bool c) => (float[2] y) { y = If(c) <" + branches + "> }")

    def test_written_twice_inside_a_body(self, tmp_path: Path) -> None:
        branches = "then_branch = t () => (float[2] a) { a = Neg(x)  a = Abs(x) }, "
        branches += "else_branch = e () => (float[2] f) { f = Neg(x) }"
        with pytest.raises(ModelError, match=r"'a' is written twice: by Neg \(node 0\) inside If \(node 0\)"):
            load(tmp_path, "g (float[2] x, bool c) => (float[2] y) { y = If(c) <" + branches + "> }")

    def test_large_initialisers_of_bodies_become_weights(self, tmp_path: Path) -> None:
        """They are counted, and stay in the file; the same inner name in both branches is two weights."""
        big = np.arange(5000, dtype=np.float32)
        info = helper.make_tensor_value_info("r", TensorProto.FLOAT, [5000])
        then = helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["r"])], "t", [], [info], [numpy_helper.from_array(big, "w")]
        )
        nodes = [
            helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(-big)),
            helper.make_node("Add", ["x", "w"], ["r"]),
        ]
        other = helper.make_graph(nodes, "e", [], [info])
        node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
        inputs = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [5000]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ]
        graph_proto = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, [5000])])
        path = tmp_path / "m.onnx"
        opsets = [helper.make_opsetid("", 17)]
        path.write_bytes(helper.make_model(graph_proto, opset_imports=opsets, ir_version=8).SerializeToString())
        graph = load_graph(path)
        assert set(graph.weights) == {"y/w", "y/w_2"}
        assert all(weight.file == path.absolute() for weight in graph.weights.values())
        assert graph.nodes[0].proto.ByteSize() < 1000
        x = np.ones(5000, np.float32)
        np.testing.assert_array_equal(_runs(graph, x=x, c=np.array(True))[0], x + big)
        np.testing.assert_array_equal(_runs(graph, x=x, c=np.array(False))[0], x - big)


class TestFunctions:
    def test_inlined(self) -> None:
        graph = case("114")
        assert ops(graph) == ["Add", "Relu", "Neg"]
        assert graph.tensors["h"].shape == (4,)

    def test_nested_functions_and_calls_in_bodies(self, tmp_path: Path) -> None:
        text = (
            "g (float[2] x, bool c) => (float[2] y) "
            "{ y = If(c) <then_branch = t () => (float[2] a) { a = loc.outer(x) }, "
            "else_branch = e () => (float[2] b) { b = loc.inner(x) }> }\n"
            '<domain: "loc", opset_import: ["" : 17]> inner (p) => (q) { q = Neg(p) }\n'
            '<domain: "loc", opset_import: ["" : 17, "loc" : 1]> outer (p) => (q) { r = loc.inner(p)  q = Exp(r) }\n'
        )
        graph = load(tmp_path, text)
        x = np.array([1, 2], np.float32)
        np.testing.assert_allclose(_runs(graph, x=x, c=np.array(True))[0], np.exp(-x), rtol=1e-6)
        np.testing.assert_array_equal(_runs(graph, x=x, c=np.array(False))[0], -x)

    def test_function_of_another_opset_is_converted(self, tmp_path: Path) -> None:
        text = (
            "g (float[2] x) => (float[2] y) { y = loc.f(x) }\n"
            '<domain: "loc", opset_import: ["" : 16]> f (p) => (q) { q = Neg(p) }\n'
        )
        assert ops(load(tmp_path, text)) == ["Neg"]

    def test_domains_that_only_a_function_imports(self, tmp_path: Path) -> None:
        text = (
            "g (float[2] x) => (float[2] y) { y = loc.f(x) }\n"
            '<domain: "loc", opset_import: ["" : 16, "more" : 3]> f (p) => (q) { r = Neg(p)  q = more.Id(r) }\n'
        )
        model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["loc" : 1]>' + text)
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        graph = load_graph(tmp_path / "m.onnx")
        assert ops(graph) == ["Neg", "Id"]
        assert graph.opsets == {"": 16, "more": 3}

    def test_functions_that_call_themselves(self, tmp_path: Path) -> None:
        text = (
            "g (float[2] x) => (float[2] y) { y = loc.f(x) }\n"
            '<domain: "loc", opset_import: ["" : 17, "loc" : 1]> f (p) => (q) { q = loc.f(p) }\n'
        )
        with pytest.raises(ModelError, match="local function 'loc:f' calls itself"):
            load(tmp_path, text)


class TestFolding:
    def test_shape_chain(self) -> None:
        graph = case("023", {"N": 5})
        assert ops(graph) == ["Reshape", "MatMul"]
        assert numpy_helper.to_array(graph.constants["t"]).tolist() == [5, -1]
        assert graph.tensors["f"].shape == (5, 12)
        assert graph.notes == ("4 nodes became constants: Shape 'sh', Gather 'ga', Unsqueeze 'un', Concat 'cc'",)

    def test_inexact_nodes_stay(self) -> None:
        """Exp of a constant depends on the kernel to the last bit."""
        graph = case("091")
        assert ops(graph) == ["Exp", "Add"]
        assert list(graph.constants) == ["c"]
        assert graph.notes == ("1 node became a constant: Constant 'c'",)

    def test_every_kind_of_constant_node(self, tmp_path: Path) -> None:
        text = (
            "g (float[2] x, int64[2] k) => (float[2] y, int64[2] z, string[2] s) {\n"
            "a = Constant<value = float[2] {1, 2}>()  b = Constant<value_float = 0.5>()\n"
            "c = Constant<value_floats = [1.0, 2.0]>()\n"
            "d = Constant<value_int = 3>()  e = Constant<value_ints = [4, 5]>()\n"
            's = Constant<value_strings = ["p", "q"]>()\n'
            "f = Add(x, a)  g1 = Mul(f, b)  y = Add(g1, c)  h = Add(k, d)  z = Add(h, e) }"
        )
        graph = load(tmp_path, text)
        values = {name: numpy_helper.to_array(value).tolist() for name, value in graph.constants.items()}
        assert values == {"a": [1, 2], "b": 0.5, "c": [1, 2], "d": 3, "e": [4, 5], "s": ["p", "q"]}
        assert graph.outputs == ("y", "z", "s")

    def test_large_constant_nodes_stay_in_the_file(self, tmp_path: Path) -> None:
        value = numpy_helper.from_array(np.arange(40_000, dtype=np.float32))
        nodes = [helper.make_node("Constant", [], ["w"], value=value), helper.make_node("Add", ["x", "w"], ["y"])]
        info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [40_000]) for name in "xy"]
        model = helper.make_model(
            helper.make_graph(nodes, "g", info[:1], info[1:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
        path = tmp_path / "m.onnx"
        path.write_bytes(model.SerializeToString())
        graph = load_graph(path)
        assert graph.weights["w"].file == path.absolute()
        assert weight_array(graph.weights["w"])[-1] == 39_999

    def test_large_buffers_stay_nodes(self, tmp_path: Path) -> None:
        text = "g (float[2] x) => (float[40000] y) <int64[1] s = {40000}, int64[1] z = {3}> "
        text += "{ b = ConstantOfShape(s)  c = ConstantOfShape(z)  d = ReduceSum(c)  e = Add(b, d)  "
        text += "f = ReduceSum(x)  y = Add(e, f) }"
        graph = load(tmp_path, text)
        assert ops(graph) == ["ConstantOfShape", "ReduceSum", "Add", "ReduceSum", "Add"]
        assert list(graph.constants)[-1] == "c"

    def test_random_nodes_are_never_folded(self, tmp_path: Path) -> None:
        text = "g (float[2] x) => (float[2] y) <int64[1] s = {2}> "
        text += "{ c = ConstantOfShape(s)  r = RandomUniformLike(c)  y = Add(x, r) }"
        assert ops(load(tmp_path, text)) == ["RandomUniformLike", "Add"]

    def test_shapes_that_only_folding_tells(self, tmp_path: Path) -> None:
        """The pattern that exporters write for expand, once a layer: inference alone does not see through Where."""
        layers = []
        for k in range(200):
            layers.append(
                f"s{k} = Shape(h{k})  m{k} = ConstantOfShape<value = int64[1] {{-1}}>(two)  w{k} = Equal(given, m{k})  "
                f"t{k} = Where(w{k}, s{k}, given)  e{k} = Expand(h{k}, t{k})  h{k + 1} = Relu(e{k})"
            )
        text = "g (float[N,3] h0) => (float[N,3] h200) <int64[2] given = {-1, 3}, int64[1] two = {2}>\n{ %s }"
        start = time.perf_counter()
        graph = load(tmp_path, text % "\n".join(layers), {"N": 7})
        assert time.perf_counter() - start < 5
        assert ops(graph) == ["Expand", "Relu"] * 200
        assert graph.tensors["h200"].shape == (7, 3)
        assert graph.notes[0].startswith("800 nodes became constants: Shape (node 0), ConstantOfShape (node 1), ")

    def test_notes_reach_the_reporter(self) -> None:
        class Notes(Reporter):
            def __init__(self) -> None:
                self.lines: list[str] = []

            def note(self, text: str) -> None:
                self.lines.append(text)

        notes = Notes()
        graph = case("023", {"N": 1}, reporter=notes)
        assert notes.lines == list(graph.notes)


class TestExternalData:
    def test_offsets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = CASES / "170_external_ok"
        monkeypatch.chdir(folder)
        weight = load_graph(Path("model.onnx")).weights["W"]
        monkeypatch.chdir("/")
        assert (weight.offset, weight.length) == (64, 64)
        assert weight_array(weight).tobytes() == (folder / "w.bin").read_bytes()[64:]

    def test_missing_file(self) -> None:
        with pytest.raises(ModelError, match=r"initialiser 'W': weights file 'gone.bin' not found beside the model"):
            load_graph(CASES / "171_external_missing" / "model.onnx")

    def test_absolute_path(self) -> None:
        with pytest.raises(ModelError, match="by an absolute path, '/etc/hostname'"):
            load_graph(CASES / "173_external_absolute" / "model.onnx")

    def test_hub_cache_of_symbolic_links(self, tmp_path: Path) -> None:
        blobs = CASES / "175_external_symlinks" / "blobs"
        shutil.copytree(blobs, tmp_path / "blobs")
        (tmp_path / "snapshot").mkdir()
        (tmp_path / "snapshot" / "model.onnx").symlink_to("../blobs/aaaa")
        (tmp_path / "snapshot" / "w.bin").symlink_to("../blobs/bbbb")
        graph = load_graph(tmp_path / "snapshot" / "model.onnx")
        assert weight_array(graph.weights["W"]).tobytes() == (blobs / "bbbb").read_bytes()

    def test_symbolic_link_to_elsewhere(self, tmp_path: Path) -> None:
        (tmp_path / "model").mkdir()
        shutil.copy(CASES / "170_external_ok" / "model.onnx", tmp_path / "model")
        (tmp_path / "secret").write_bytes(bytes(128))
        (tmp_path / "model" / "w.bin").symlink_to(tmp_path / "secret")
        with pytest.raises(ModelError, match=r"is a symbolic link to .*secret, outside the model's folder"):
            load_graph(tmp_path / "model" / "model.onnx")

    @pytest.mark.parametrize(
        ("entries", "message"),
        [
            ({"location": "../w.bin"}, "outside the model's folder"),
            ({"location": "a/../../w.bin"}, "outside the model's folder"),
            ({"location": "..\\w.bin"}, "outside the model's folder"),
            ({"location": "C:\\w.bin"}, "absolute path"),
            ({"location": ""}, "without a file name"),
            ({}, "without a file name"),
            ({"location": "."}, "not a regular file"),
            ({"location": "w" * 5000}, "its weights file cannot be read|not found"),
            ({"location": "w.bin", "offset": "-64"}, "offset of its external data is not a number"),
            ({"location": "w.bin", "offset": "6.4e1"}, "not a number"),
            ({"location": "w.bin", "offset": "65"}, "lies at bytes 65 to 129 .* only 128 bytes"),
            ({"location": "w.bin", "length": "60"}, r"needs 64 bytes \(float, 4x4\), but the file gives 60"),
        ],
    )
    def test_refused_entries(self, tmp_path: Path, entries: dict[str, str], message: str) -> None:
        model = onnx.load(CASES / "170_external_ok" / "model.onnx", load_external_data=False)
        shutil.copy(CASES / "170_external_ok" / "w.bin", tmp_path)
        tensor = model.graph.initializer[0]
        del tensor.external_data[:]
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match=message):
            load_graph(tmp_path / "m.onnx")

    def test_small_external_constants_are_read(self, tmp_path: Path) -> None:
        """Some exporters put every tensor into the file of weights, shapes too."""
        text = "g (float[2,3] x) => (float[6] y) <int64[1] s = {-1}> { y = Reshape(x, s) }"
        model = onnx.load(written(tmp_path, text))
        onnx.save(model, tmp_path / "e.onnx", save_as_external_data=True, size_threshold=0, location="e.bin")
        graph = load_graph(tmp_path / "e.onnx")
        assert numpy_helper.to_array(graph.constants["s"]).tolist() == [-1]
        assert graph.tensors["y"].shape == (6,)


class TestState:
    TEXT = "g (float[2] x, float[2] w) => (float[2] y, float[2] w_new) { y = Mul(x, w)  w_new = Sub(w, y) }"

    def with_state(self, folder: Path, state: str) -> Path:
        model = onnx.load(written(folder, self.TEXT))
        model.metadata_props.add(key="remat.state", value=state)
        (folder / "m.onnx").write_bytes(model.SerializeToString())
        return folder / "m.onnx"

    def test_read(self, tmp_path: Path) -> None:
        assert load_graph(self.with_state(tmp_path, '{"w_new": "w"}')).state == {"w_new": "w"}
        assert load(tmp_path, self.TEXT).state == {}

    @pytest.mark.parametrize(
        ("state", "message"),
        [
            ("{", "not a JSON object"),
            ("[1]", "not a JSON object"),
            ('{"w_new": "w", "w_new": "x"}', "'w_new' is given twice"),
            ('{"nope": "w"}', "'nope' is not a graph output"),
            ('{"w_new": "nope"}', "'nope', the state of 'w_new', is not a graph input"),
            ('{"w_new": ["w"]}', "is not a graph input"),
            ('{"w_new": "w", "y": "w"}', "input 'w' has two new states"),
            ("[" * 100_000, "not a JSON object"),
        ],
    )
    def test_refused(self, tmp_path: Path, state: str, message: str) -> None:
        with pytest.raises(ModelError, match=message):
            load_graph(self.with_state(tmp_path, state))

    def test_other_shape_or_type(self, tmp_path: Path) -> None:
        self.TEXT = "g (float[2] x, float[1] w) => (float[2] y) { y = Mul(x, w) }"
        with pytest.raises(ModelError, match=r"'y' \(float, 2\) cannot be the next 'w' \(float, 1\)"):
            load_graph(self.with_state(tmp_path, '{"y": "w"}'))


def test_custom_operators_are_listed() -> None:
    graph = case("113")
    assert ops(graph) == ["Foo"]
    assert graph.opsets == {"": 17, "my.domain": 1}


def test_in_place_accumulator_is_listed() -> None:
    assert case("115").nodes[0].op_type == "InPlaceAccumulatorV2"


def test_loading_is_fast(tmp_path: Path) -> None:
    """1,900 nodes with weights, as a 12-layer transformer's training graph has."""
    nodes, initialisers = [], []
    for k in range(950):
        nodes.append(helper.make_node("MatMul", [f"h{k}", f"w{k}"], [f"m{k}"], name=f"m{k}"))
        nodes.append(helper.make_node("Relu", [f"m{k}"], [f"h{k + 1}"], name=f"r{k}"))
        initialisers.append(numpy_helper.from_array(np.zeros((64, 64), np.float32), f"w{k}"))
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 64]) for name in ("h0", "h950")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", info[:1], info[1:], initialisers),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    start = time.perf_counter()
    graph = load_graph(path)
    assert time.perf_counter() - start < 2
    assert len(graph.nodes) == 1900
    assert len(graph.weights) == 950


def _runs(graph: Graph, **given: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The outputs of the normalised graph in a plain session; zeros for inputs that are not given."""
    from remat_cli.model.whole_model import whole_model

    feeds = {name: weight_array(weight) for name, weight in graph.weights.items()}
    for name in graph.inputs:
        info = graph.tensors[name]
        dtype = helper.tensor_dtype_to_np_dtype(info.elem_type)
        feeds[name] = given.get(name, np.zeros(info.shape or (), dtype))
    session = make_session(whole_model(graph).SerializeToString(), Device())
    results: list[np.ndarray[Any, Any]] = session.run(list(graph.outputs), feeds)
    return results


@pytest.mark.parametrize(
    "number",
    [
        "006",
        "007",
        "020",
        "023",
        "025",
        "040",
        "041",
        "043",
        "046",
        "060",
        "062",
        "063",
        "080",
        "083",
        "085",
        "090",
        "091",
        "093",
        "110",
        "114",
        "130",
        "134",
        "152",
        "156",
        "200",
        "202",
    ],
)
def test_loading_keeps_the_meaning(number: str, tmp_path: Path) -> None:
    """Every output of the file, bit for bit, in a plain session of the normalised graph."""
    from remat_cli.model.feeds import seeded_feeds

    (path,) = CASES.glob(f"{number}_*.onnx")
    dims = {"020": {"batch": 3}, "023": {"N": 3}}.get(number)
    graph = load_graph(path, dims)
    feeds = seeded_feeds(graph)
    model = onnx.load(path)
    # These two break onnxruntime itself: a repeated name, and an output without one.
    for node in model.graph.node:
        node.name = ""
    if number == "043":
        del model.graph.node[0]
    original = make_session(model.SerializeToString(), Device())
    wanted = original.run(list(graph.outputs), {name: feeds[name] for name in graph.inputs})
    for mine, theirs in zip(_runs(graph, **feeds), wanted, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.tolist() == theirs.tolist()
