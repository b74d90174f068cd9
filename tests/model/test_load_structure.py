"""Loading: order, names, gaps, dead nodes, bodies of control flow, local functions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from load_helpers import case, load, ops, runs, written
from onnx import TensorProto, helper, numpy_helper

from remat_cli.errors import ModelError
from remat_cli.model.load import load_graph
from remat_cli.ort_session import Device, make_session


def refused(number: str, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        case(number, **options)
    assert "\n" not in caught.value.message
    return caught.value


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
        start = time.process_time()
        graph = case("081")
        assert len(graph.nodes) == 3000
        assert time.process_time() - start < 2

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
        runs(graph)

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
        runs(graph)

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
        runs(graph, c=np.array(True))

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
        (value,) = runs(graph, x=x, c=np.array(True))
        np.testing.assert_allclose(value, -np.exp(x) + np.maximum(x, 0))
        (value,) = runs(graph, x=x, c=np.array(False))
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
        np.testing.assert_array_equal(runs(graph, x=x, c=np.array(True))[0], x + big)
        np.testing.assert_array_equal(runs(graph, x=x, c=np.array(False))[0], x - big)


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
        np.testing.assert_allclose(runs(graph, x=x, c=np.array(True))[0], np.exp(-x), rtol=1e-6)
        np.testing.assert_array_equal(runs(graph, x=x, c=np.array(False))[0], -x)

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
