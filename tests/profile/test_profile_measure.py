"""Measured profiles: what they hold, values that matter, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from profile_models import HEAD, case, load_text, view

from remat_cli.errors import DeviceError, InputError, ModelError
from remat_cli.model.hashing import graph_sha256
from remat_cli.model.load import load_graph
from remat_cli.ort_session import Device
from remat_cli.profile import measure
from remat_cli.profile.entries import distinct_entries, index_bounds
from remat_cli.profile.files import dumps, read_profile, write_profile
from remat_cli.profile.measure import profile_graph
from remat_cli.profile.supervise import Outcome
from remat_cli.reporter import Reporter, Task

NET = """g (float[4,8] x, float[8,8] w, float[8,8] v) => (float[32] y)
{
    a = MatMul(x, w)  b = Relu(a)  c = MatMul(b, v)  d = Relu(c)
    s = Constant<value=int64[1] {32}>()  y = Reshape(d, s)
}"""


class Recorder(Reporter):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.advanced = 0
        self.totals: list[int | None] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def task(self, title: str, total: int | None = None) -> Task:
        self.totals.append(total)
        recorder = self

        class Counted(Task):
            def advance(self, amount: int = 1, detail: str = "") -> None:
                recorder.advanced += amount

        return Counted()


def test_a_profile_lists_steps_and_shares_equal_nodes(tmp_path: Path) -> None:
    graph = load_text(tmp_path, NET)
    recorder = Recorder()
    profile = profile_graph(graph, Device(), reporter=recorder)
    assert [node.id for node in profile.nodes] == ["a", "b", "c", "d"]  # the view y takes no step
    assert [node.op_type for node in profile.nodes] == ["MatMul", "Relu", "MatMul", "Relu"]
    assert [node.output_bytes for node in profile.nodes] == [(128,)] * 4
    a, b, c, d = profile.nodes
    assert (a.median_ns, a.spread_ns, b.median_ns) == (c.median_ns, c.spread_ns, d.median_ns)
    assert all(0 < node.median_ns < 10**9 for node in profile.nodes)
    assert profile.model.graph_sha256 == graph_sha256(graph)
    assert (profile.model.file, profile.device.name, profile.device.threads) == ("m.onnx", "cpu", 1)
    assert set(profile.versions) == {"onnxruntime", "remat"}
    assert recorder.advanced == sum(total or 0 for total in recorder.totals)
    write_profile(profile, tmp_path / "p.json")
    assert read_profile(tmp_path / "p.json") == profile
    assert str(tmp_path) not in dumps(profile).decode()


@pytest.mark.parametrize("number", ["040", "041", "046", "110", "111", "130", "134", "154", "025"])
def test_graphs_that_synthetic_values_do_not_run(number: str) -> None:
    graph = case(number)
    profile = profile_graph(graph, Device())
    assert [node.id for node in profile.nodes] == [node.id for node in graph.nodes if node.view_of is None]
    assert all(node.median_ns > 0 for node in profile.nodes)


def test_shapes_that_hang_on_fed_values(tmp_path: Path) -> None:
    text = "g (float[24] x, int64[2] s) => (float[a,b] y) { t = Add(s, s)  y = Reshape(x, t) }"
    (tmp_path / "m.onnx").write_bytes(onnx.parser.parse_model(HEAD + text).SerializeToString())
    feeds = {"s": np.array([2, 3], np.int64)}
    graph = load_graph(tmp_path / "m.onnx", feeds=feeds)
    profile = profile_graph(graph, Device(), feeds=feeds)
    assert [node.output_bytes for node in profile.nodes] == [(16,), (96,)]


def test_values_computed_on_the_way_are_used_where_synthetic_ones_are_refused(tmp_path: Path) -> None:
    # The axis is 0 in fact; a synthetic 1 is no axis of a vector.
    text = "g (float[4] x, int64 k) => (float[4] y) { axis = Sub(k, k)  y = CumSum(x, axis) }"
    assert {node.id for node in profile_graph(load_text(tmp_path, text), Device()).nodes} == {"axis", "y"}


def test_synthetic_divisors_are_not_zero(tmp_path: Path) -> None:
    # An integer division by 0 ends the process.
    text = """g (int64[4] x) => (int64[4] y)
        { one = Constant<value=int64[1] {1}>()  d = Add(x, one)  y = Div(x, d) }"""
    profile = profile_graph(load_text(tmp_path, text), Device())
    assert {node.id for node in profile.nodes} == {"d", "y"}


def test_values_that_no_kernel_takes_are_refused_by_node(tmp_path: Path) -> None:
    graph = load_text(tmp_path, "g (float[3,2] t, int64[2] i) => (float[2,2] y) { r = Relu(t)  y = Gather(r, i) }")
    with pytest.raises(ModelError, match="Gather") as caught:
        profile_graph(graph, Device(), feeds={"i": np.array([0, 99], np.int64)})
    assert "99" in caught.value.message
    assert "--inputs" in (caught.value.hint or "")
    profile_graph(graph, Device(), feeds={"i": np.array([0, 2], np.int64)})


def test_feeds_of_another_shape_are_refused(tmp_path: Path) -> None:
    graph = load_text(tmp_path, "g (float[3,2] t, int64[2] i) => (float[2,2] y) { y = Gather(t, i) }")
    with pytest.raises(InputError, match="shape"):
        profile_graph(graph, Device(), feeds={"i": np.array([0], np.int64)})


def test_nodes_without_a_kernel_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"'add'.*no kernel"):
        profile_graph(case("005"), Device())


def test_a_node_larger_than_the_memory_is_refused_before_anything_runs() -> None:
    with pytest.raises(DeviceError, match="8796093022208 bytes") as caught:
        profile_graph(case("028"), Device())
    assert "--cost-model" in (caught.value.hint or "")


def test_scratch_is_estimated_and_says_so_where_it_cannot_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = measure.run_job

    def without_scratch(job, task):  # type: ignore[no-untyped-def]
        return real(job, task) if job.phase == "time" else Outcome(unavailable="no such counter")

    monkeypatch.setattr(measure, "run_job", without_scratch)
    recorder = Recorder()
    graph = load_text(tmp_path, "g (bool[64,1024] c, float[64,1024] a) => (float[64,1024] y) { y = Where(c, a, a) }")
    profile = profile_graph(graph, Device(), reporter=recorder)
    assert (profile.workspace, profile.nodes[0].workspace_bytes) == ("estimated", 2 * 64 * 1024 * 4)
    assert any("no such counter" in note for note in recorder.notes)


def test_entries_say_which_nodes_need_real_values(tmp_path: Path) -> None:
    graph = load_text(tmp_path, NET)
    entries, of_node = distinct_entries(graph)
    assert [entry.node.id for entry in entries] == ["a", "b"]
    assert of_node == {"a": 0, "b": 1, "c": 0, "d": 1}
    assert entries[0].operand_bytes == 128 + 256 + 128
    branch = case("154")
    special = {entry.node.op_type: entry.needs_values for entry in distinct_entries(branch)[0]}
    assert special["If"] is True


@pytest.mark.parametrize(
    ("inputs", "output", "call", "bounds"),
    [
        ("float[5,7] t, int64[2] i", "float[5,2]", "Gather<axis=-1>(t, i)", {1: 7}),
        ("float[5,7] t, int64[2,7] i, float[2,7] u", "float[5,7]", "ScatterElements(t, i, u)", {1: 5}),
        ("float[5,7,2] t, int64[3,2] i", "float[3,2]", "GatherND(t, i)", {1: 5}),
        ("float[5,7,2] t, int64[3,2] i, float[3,2] u", "float[5,7,2]", "ScatterND(t, i, u)", {1: 5}),
        ("float[4,9] s, int64[4] l", "float", "SoftmaxCrossEntropyLoss(s, l)", {1: 9}),
        ("float[4] a, int64[4] b", "float[4]", "Pow(a, b)", {}),
    ],
)
def test_bounds_of_indices(tmp_path: Path, inputs: str, output: str, call: str, bounds: dict[int, int]) -> None:
    op = view(load_text(tmp_path, f"g ({inputs}) => ({output} y) {{ y = {call} }}"), "y")
    assert index_bounds(op) == bounds


@pytest.mark.gpu
def test_profile_on_a_cuda_device(tmp_path: Path) -> None:
    graph, device = load_text(tmp_path, NET), Device("cuda")
    try:
        profile = profile_graph(graph, device)
    except DeviceError as error:
        pytest.skip(f"no CUDA device here: {error.message}")
    assert (profile.device.name, profile.workspace) == ("cuda:0", "estimated")
    assert all(node.median_ns > 0 for node in profile.nodes)
