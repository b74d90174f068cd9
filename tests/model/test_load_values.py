"""Loading: initialisers, folding, external data."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from load_helpers import CASES, case, load, ops, written
from onnx import TensorProto, helper, numpy_helper

from remat_cli.errors import ModelError
from remat_cli.model.load import load_graph
from remat_cli.model.weights import weight_array
from remat_cli.reporter import Reporter


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
        start = time.process_time()
        graph = load(tmp_path, text % "\n".join(layers), {"N": 7})
        assert time.process_time() - start < 5
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
