"""Reading ONNX files without their weights, and refusing what is no ONNX file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from remat_cli.errors import ModelError
from remat_cli.model.normalise import normalise
from remat_cli.model.sizing import infer_shapes
from remat_cli.model.weights import weight_array, weight_of
from remat_cli.model.wire import LARGE_BYTES, SELF, read_model

CASES = Path(__file__).parents[1] / "data" / "cases"


def save(path: Path, *initialisers: TensorProto, nodes: list[onnx.NodeProto] | None = None) -> Path:
    graph = helper.make_graph(nodes or [helper.make_node("Relu", ["x"], ["y"], name="r")], "g", [], [], initialisers)
    path.write_bytes(helper.make_model(graph, ir_version=8).SerializeToString())
    return path


def test_small_files_come_back_unchanged() -> None:
    for path in sorted(CASES.glob("*.onnx")):
        if path.name[:3] in ("008", "010"):
            continue
        assert read_model(path) == onnx.load(path), path.name


def test_large_raw_data_become_references(tmp_path: Path) -> None:
    small, large = np.arange(6, dtype=np.float32), np.arange(5000, dtype=np.float32).reshape(50, 100)
    path = save(tmp_path / "m.onnx", numpy_helper.from_array(small, "s"), numpy_helper.from_array(large, "w"))
    s, w = read_model(path).graph.initializer
    assert numpy_helper.to_array(s).tolist() == small.tolist()
    assert w.data_location == TensorProto.EXTERNAL
    assert not w.raw_data
    entries = {entry.key: entry.value for entry in w.external_data}
    assert entries["location"] == SELF
    assert path.read_bytes()[int(entries["offset"]) :][: int(entries["length"])] == large.tobytes()
    assert np.array_equal(weight_array(weight_of(w, path)), large)


@pytest.mark.parametrize(
    ("elem_type", "dtype"), [(TensorProto.FLOAT, np.float32), (TensorProto.DOUBLE, np.float64)], ids=["float", "double"]
)
def test_large_packed_data_become_references_too(tmp_path: Path, elem_type: int, dtype: type) -> None:
    """float_data and double_data are packed: the same bytes as raw_data."""
    values = np.linspace(-1, 1, 4000).astype(dtype)
    path = save(tmp_path / "m.onnx", helper.make_tensor("w", elem_type, [4000], values))
    (w,) = read_model(path).graph.initializer
    assert w.data_location == TensorProto.EXTERNAL
    assert np.array_equal(weight_array(weight_of(w, path)), values)


def test_large_values_in_other_fields_are_kept(tmp_path: Path) -> None:
    values = list(range(9000))
    path = save(tmp_path / "m.onnx", helper.make_tensor("w", TensorProto.INT64, [9000], values))
    (w,) = read_model(path).graph.initializer
    assert list(w.int64_data) == values
    weight = weight_of(w, path)
    assert weight.file is None
    assert weight_array(weight).tolist() == values


def test_data_in_two_pieces_are_kept(tmp_path: Path) -> None:
    """Protobuf joins a repeated field that comes twice, so neither piece alone is the tensor."""
    values = np.arange(6000, dtype=np.float32)
    pieces = [TensorProto(float_data=values[:3000]), TensorProto(float_data=values[3000:])]
    head = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[6000])
    tensor = b"".join(part.SerializeToString() for part in (head, *pieces))
    graph = b"\x2a" + _varint(len(tensor)) + tensor
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x08" + b"\x3a" + _varint(len(graph)) + graph)
    (w,) = read_model(path).graph.initializer
    assert np.array_equal(weight_array(weight_of(w, path)), values)


def test_tensors_in_attributes_bodies_and_functions_are_found(tmp_path: Path) -> None:
    value = numpy_helper.from_array(np.arange(3000, dtype=np.float32), "v")
    constant = helper.make_node("Constant", [], ["c"], value=value)
    body = helper.make_graph([constant], "b", [], [helper.make_tensor_value_info("c", 1, [3000])], [value])
    choice = helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=body)
    function = helper.make_function("loc", "f", [], ["c"], [constant], [helper.make_opsetid("", 17)])
    graph = helper.make_graph([constant, choice], "g", [], [])
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, functions=[function], ir_version=8).SerializeToString())
    model = read_model(path)
    branch = model.graph.node[1].attribute[0].g
    found = [
        model.graph.node[0].attribute[0].t,
        branch.node[0].attribute[0].t,
        branch.initializer[0],
        model.functions[0].node[0].attribute[0].t,
    ]
    for tensor in found:
        assert tensor.data_location == TensorProto.EXTERNAL
        assert weight_array(weight_of(tensor, path)).tolist() == list(range(3000))
    assert model.ByteSize() < 1000


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("empty.onnx", b"", "is empty"),
        ("lfs.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12\n", "Git LFS pointer"),
        ("model.json", b'{"a": 1}', "not an ONNX file"),
        ("link.onnx", b"../blobs/aaaa", "not an ONNX file"),
        ("page.onnx", b"<!DOCTYPE html><html></html>", "not an ONNX file"),
        ("model.pt", b"PK\x03\x04" + bytes(40), "zip archive"),
        ("model.ort", b"\x18\x00\x00\x00ORTM" + bytes(40), "ORT format"),
        ("zeros.onnx", bytes(64), "not an ONNX file"),
        ("no_graph.onnx", b"\x08\x08", "holds no graph"),
        ("no_version.onnx", b"\x3a\x00", "holds no IR version"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelError, match=expected) as caught:
        read_model(path)
    assert str(path) in caught.value.message


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        read_model(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="is a folder"):
        read_model(tmp_path)


@pytest.mark.parametrize("case", ["008_not_protobuf", "010_truncated"])
def test_damaged_cases(case: str) -> None:
    with pytest.raises(ModelError, match=f"{case}.onnx: is damaged, or not an ONNX file: .* \\d+$"):
        read_model(CASES / f"{case}.onnx")


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_bytes_raise_anything_but_model_errors(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Cut and altered copies of a real file either parse or are refused."""
    content = bytearray((CASES / "040_if_reads_outer.onnx").read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "altered.onnx"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        draft = normalise(read_model(path), path, {}, {}, infer_shapes)
    except ModelError as error:
        assert str(path) in error.message  # noqa: PT017 - both outcomes are right
    else:
        assert draft.nodes


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """Protobuf takes any bytes for a string in files, and fails only where one is used."""
    content = (CASES / "062_unnamed_nodes.onnx").read_bytes()
    path = tmp_path / "m.onnx"
    for name in (b"Relu", b"x", b"h"):
        path.write_bytes(content.replace(bytes([len(name)]) + name, bytes([len(name)]) + b"\xff" * len(name)))
        with pytest.raises(ModelError, match="a name in it is not UTF-8 text"):
            read_model(path)


def test_cut_inside_a_weight_says_what_is_missing(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.zeros(LARGE_BYTES, np.float32), "w")
    path = save(tmp_path / "m.onnx", weight)
    content = path.read_bytes()
    path.write_bytes(content[:-1000])
    with pytest.raises(ModelError, match=r"ends \d+ bytes too early, after \d+$"):
        read_model(path)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    """Bodies inside bodies, far deeper than protobuf parses, each large enough for the scanner to descend."""
    message = bytes(0)
    padding = b"\x52" + _varint(LARGE_BYTES + 1) + b"d" * (LARGE_BYTES + 1)
    for _ in range(60):
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            message = tag + _varint(len(message)) + message
        message = padding + message
        padding = b""
    path = tmp_path / "deep.onnx"
    path.write_bytes(b"\x08\x08\x3a" + _varint(len(message)) + message)
    with pytest.raises(ModelError, match=r"damaged|deep"):
        read_model(path)


@pytest.mark.parametrize("kind", ["embedded", "external"])
def test_memory_does_not_grow_with_the_weights(tmp_path: Path, kind: str) -> None:
    """A weight of 8 x 80,000,000 float32 (2.56 GB, more than protobuf can parse) in a sparse file."""
    elements = 8 * 80_000_000
    path = tmp_path / "m.onnx"
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 80_000_000])],
    )
    tensor = TensorProto(name="W", data_type=TensorProto.FLOAT, dims=[8, 80_000_000])
    if kind == "external":
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w.bin")
        graph.initializer.append(tensor)
        opsets = [helper.make_opsetid("", 17)]
        path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
        _sparse(tmp_path / "w.bin", b"", 4 * elements)
    else:
        _sparse(path, _model_that_ends_in(graph, tensor, 4 * elements), 4 * elements)
    code = (
        "import resource, sys; from pathlib import Path; from remat_cli.model.load import load_graph\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "graph = load_graph(Path(sys.argv[1]))\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "print(len(graph.nodes), graph.weights['W'].length, graph.tensors['y'].size_bytes, grown)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    nodes, length, size, grown_kib = map(int, done.stdout.split())
    assert (nodes, length, size) == (2, 4 * elements, 320_000_000)
    assert grown_kib < 50_000


def _sparse(path: Path, head: bytes, more: int) -> None:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + more)


def _model_that_ends_in(graph: onnx.GraphProto, tensor: TensorProto, length: int) -> bytes:
    """All bytes of a model file but the last `length`, which are the tensor's raw data."""
    head = tensor.SerializeToString() + b"\x4a" + _varint(length)
    graph_head = graph.SerializeToString() + b"\x2a" + _varint(len(head) + length) + head
    model = helper.make_model(onnx.GraphProto(), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.ClearField("graph")
    return model.SerializeToString() + b"\x3a" + _varint(len(graph_head) + length) + graph_head


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
