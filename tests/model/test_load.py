"""Loading: versions, dims, state, speed, and that the meaning of every case is kept."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from load_helpers import CASES, case, load, ops, runs, written
from onnx import TensorProto, helper, numpy_helper

from remat_cli.errors import ModelError
from remat_cli.model.load import load_graph
from remat_cli.ort_session import Device, make_session


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

    def test_machine_learning_domain(self, tmp_path: Path) -> None:
        model = onnx.load(CASES / "062_unnamed_nodes.onnx")
        model.opset_import.add(domain="ai.onnx.ml", version=98)
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match=r"file uses ai\.onnx\.ml version 98"):
            load_graph(tmp_path / "m.onnx")
        model.opset_import[1].version = 4
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        assert load_graph(tmp_path / "m.onnx").opsets == {"": 17}

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
    start = time.process_time()
    graph = load_graph(path)
    assert time.process_time() - start < 2
    assert len(graph.nodes) == 1900
    assert len(graph.weights) == 950


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
    for mine, theirs in zip(runs(graph, **feeds), wanted, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.tolist() == theirs.tolist()


def test_custom_operators_are_listed() -> None:
    graph = case("113")
    assert ops(graph) == ["Foo"]
    assert graph.opsets == {"": 17, "my.domain": 1}


def test_in_place_accumulator_is_listed() -> None:
    assert case("115").nodes[0].op_type == "InPlaceAccumulatorV2"
