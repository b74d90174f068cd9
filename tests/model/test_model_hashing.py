"""Fingerprints: what changes them, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.errors import ModelError
from remat_cli.model.hashing import graph_sha256, weights_sha256
from remat_cli.model.load import load_graph

CASES = Path(__file__).parents[1] / "data" / "cases"
TEXT = """<ir_version: 8, opset_import: ["" : 17], producer_name: "p">
g (float[N,4] x, bool c) => (float[N,4] y)
<float[4] w = {1, 2, 3, 4}, float slope = {0.5}, int64[2] shape = {-1, 4}>
{
   [mul] h = Mul (x, w)
   [leaky] k = LeakyRelu <alpha = 0.25> (h)
   [if] z = If (c) <then_branch = t () => (float[N,4] a) { [n] a = Add(k, slope) },
                    else_branch = e () => (float[N,4] b) { [m] b = Neg(k) }>
   [rs] y = Reshape (z, shape)
}
"""


def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def prints(folder: Path, proto: onnx.ModelProto, batch: int = 2) -> tuple[str, str]:
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    graph = load_graph(path, {"N": batch})
    return graph_sha256(graph), weights_sha256(graph)


def test_known_values(tmp_path: Path) -> None:
    """Equal on every machine and in every release of the same format; change them only with the plan format."""
    graph_hash, weights_hash = prints(tmp_path, model())
    assert graph_hash == "a6af97c080eaf8e4e45bb451057ecacf1c816da5d71414016620d5c47632ac7e"
    assert weights_hash == "344b345ee289e3eb257b89e041ad4bdda47f184869d857f7f0a84b609a4c0a86"


def _other_names(proto: onnx.ModelProto) -> None:
    proto.producer_name = "q"
    proto.doc_string = proto.graph.doc_string = proto.graph.node[0].doc_string = "d"
    proto.graph.name = "other"
    proto.graph.node[0].name = "other"
    proto.graph.node[2].attribute[0].g.name = proto.graph.node[2].attribute[0].g.node[0].name = "other"


def _other_encoding(proto: onnx.ModelProto) -> None:
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))


def _other_order(proto: onnx.ModelProto) -> None:
    for field in (proto.graph.initializer, proto.graph.node[2].attribute):
        reverse = [type(item).FromString(item.SerializeToString()) for item in reversed(field)]
        del field[:]
        field.extend(reverse)


def _stored_shapes(proto: onnx.ModelProto) -> None:
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [99]))


def _dead_node(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(helper.make_node("Exp", ["x"], ["dead"]))


@pytest.mark.parametrize("change", [_other_names, _other_encoding, _other_order, _stored_shapes, _dead_node])
def test_same_graph(tmp_path: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    changed = model()
    change(changed)
    assert changed != model()
    assert prints(tmp_path, changed) == prints(tmp_path, model())


def _alpha(proto: onnx.ModelProto) -> None:
    proto.graph.node[1].attribute[0].f = np.nextafter(np.float32(0.25), np.float32(1))


def _operator(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].op_type = "Add"


def _inner_operator(proto: onnx.ModelProto) -> None:
    proto.graph.node[2].attribute[1].g.node[0].op_type = "Abs"


def _opset(proto: onnx.ModelProto) -> None:
    proto.opset_import[0].version = 16


def _constant(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[1].float_data[0] = 0.75


def _tensor_name(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].output[0] = proto.graph.node[1].input[0] = "other"


def _state(proto: onnx.ModelProto) -> None:
    proto.metadata_props.add(key="remat.state", value='{"y": "x"}')


@pytest.mark.parametrize("change", [_alpha, _operator, _inner_operator, _opset, _constant, _tensor_name, _state])
def test_other_graph(tmp_path: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    changed = model()
    change(changed)
    assert prints(tmp_path, changed)[0] != prints(tmp_path, model())[0]
    assert prints(tmp_path, changed)[1] == prints(tmp_path, model())[1]


def test_dims_are_part_of_the_graph(tmp_path: Path) -> None:
    assert prints(tmp_path, model(), 2)[0] != prints(tmp_path, model(), 3)[0]


def test_weights_are_told_apart_but_not_by_the_graph(tmp_path: Path) -> None:
    changed = model()
    changed.graph.initializer[0].float_data[3] = 9
    before, after = prints(tmp_path, model()), prints(tmp_path, changed)
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_storage_does_not_matter(tmp_path: Path) -> None:
    """Embedded, large, or in a file of its own: the same weights."""
    proto = model()
    big = np.arange(4 * 5000, dtype=np.float32).reshape(5000, 4)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(big, "w"))
    embedded = prints(tmp_path, proto, 5000)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    graph = load_graph(tmp_path / "m.onnx", {"N": 5000})
    assert graph.weights["w"].file == tmp_path / "m.bin"
    assert (graph_sha256(graph), weights_sha256(graph)) == embedded


def test_external_bytes_count(tmp_path: Path) -> None:
    for name in ("model.onnx", "w.bin"):
        (tmp_path / name).write_bytes((CASES / "170_external_ok" / name).read_bytes())
    graph = load_graph(tmp_path / "model.onnx")
    before = weights_sha256(graph)
    content = bytearray((tmp_path / "w.bin").read_bytes())
    content[0] ^= 1
    (tmp_path / "w.bin").write_bytes(content)
    assert weights_sha256(graph) == before, "bytes before the weight's offset are not its own"
    content[-1] ^= 1
    (tmp_path / "w.bin").write_bytes(content)
    assert weights_sha256(graph) != before
    (tmp_path / "w.bin").write_bytes(content[:100])
    with pytest.raises(ModelError, match="ends inside weight 'W'"):
        weights_sha256(graph)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        weights_sha256(graph)


def test_large_tensors_in_attributes_count_as_weights(tmp_path: Path) -> None:
    proto = model()
    body = proto.graph.node[2].attribute[0].g
    body.initializer.append(numpy_helper.from_array(np.zeros((1, 2000), np.float32), "inner"))
    body.node.insert(0, helper.make_node("ReduceSum", ["inner"], ["sum"]))
    body.node[1].input[1] = "sum"
    first = prints(tmp_path, proto)
    body.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((1, 2000), np.float32), "inner"))
    second = prints(tmp_path, proto)
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_strings_and_other_attributes(tmp_path: Path) -> None:
    """Every kind of attribute changes the hash; strings of weights are read."""
    hashes = set()
    for values in ([b"a", b"b"], [b"a", b"c"]):
        node = helper.make_node("Op", ["s"], ["y"], domain="d", strings=values, string="t", floats=[0.5], ints=[1])
        tensor = TensorProto(name="s", data_type=TensorProto.STRING, dims=[2000], string_data=[b"x"] * 2000)
        inputs = [helper.make_tensor_value_info("s", TensorProto.STRING, [2000])]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])]
        graph = helper.make_graph([node], "g", inputs, outputs, [tensor])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
        path = tmp_path / "m.onnx"
        path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
        loaded = load_graph(path)
        hashes.add((graph_sha256(loaded), weights_sha256(loaded)))
    (first, weights), (second, same_weights) = hashes
    assert first != second
    assert weights == same_weights
