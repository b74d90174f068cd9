"""The roofline: launch, arithmetic or traffic, in exact integers."""

from __future__ import annotations

from pathlib import Path

from profile_models import case, load_text

from remat_cli.problem import NodeCost
from remat_cli.profile.devices import DeviceModel, load_device_model, parse_device_model
from remat_cli.profile.roofline import estimate_costs

# 1 operation and 1 byte a nanosecond; launches take 10 ns; products reach half the peak.
TOY = b"""name: toy
kind: cpu
source: ""
memory_bytes: 1e9
memory_bandwidth_bytes_per_s: 1e9
peak_flops_per_s: {fp32: 1e9, fp16: 4e9}
efficiency_percent: {matmul: 50, conv: 100, other: 100}
launch_overhead_ns: 10
"""


def toy(text: bytes = TOY) -> DeviceModel:
    return parse_device_model(text, "toy.yaml")


def times(graph_text: str, folder: Path, model: DeviceModel) -> dict[str, int]:
    return {name: cost.cost_ns for name, cost in estimate_costs(load_text(folder, graph_text), model).items()}


def test_arithmetic_or_traffic_whichever_is_longer(tmp_path: Path) -> None:
    text = """g (float[10,20] a, float[20,30] b, float16[10,20] c, float16[20,30] d) => (float[10,30] p, float[10,30] q)
        { p = MatMul(a, b)  r = MatMul(c, d)  q = Cast<to=1>(r) }"""
    # p: 2*10*20*30 operations at half of 1 a ns; r: at half of 4 a ns; q: 600 + 1200 bytes.
    assert times(text, tmp_path, toy()) == {"p": 10 + 24_000, "r": 10 + 6_000, "q": 10 + 1_800}


def test_fractions_of_a_nanosecond_are_rounded_up(tmp_path: Path) -> None:
    text = "g (float[1] a) => (float[1] y) { y = Neg(a) }"
    fast = toy(TOY.replace(b"bandwidth_bytes_per_s: 1e9", b"bandwidth_bytes_per_s: 3e9"))
    assert times(text, tmp_path, fast) == {"y": 10 + 3}  # 8 bytes at 3 a ns


def test_views_have_no_cost_and_every_step_has_one(tmp_path: Path) -> None:
    text = """g (float[2,3] a) => (float[6] y)
        { b = Relu(a)  s = Constant<value=int64[1] {6}>()  c = Reshape(b, s)  y = Neg(c) }"""
    assert list(times(text, tmp_path, toy())) == ["b", "y"]


def test_unit_costs(tmp_path: Path) -> None:
    text = "g (float[2] a) => (float[2] y) { c = Greater(a, a)  b = Where(c, a, a)  y = Neg(b) }"
    costs = estimate_costs(load_text(tmp_path, text), load_device_model("unit"))
    assert set(costs.values()) == {NodeCost(1, 0)}


def test_empty_tensors_cost_a_launch(tmp_path: Path) -> None:
    text = "g (float[0,4] a, float[4,5] b) => (float[0,5] y) { y = MatMul(a, b) }"
    cost = times(text, tmp_path, toy())["y"]
    assert cost == 10 + 80  # the weight is read all the same


def test_control_flow_counts_the_nodes_of_its_bodies() -> None:
    cost = estimate_costs(case("154"), toy())
    graph = case("154")
    branch = next(node for node in graph.nodes if node.op_type == "If")
    inner = sum(len(attribute.g.node) for attribute in branch.proto.attribute)
    assert inner >= 2
    assert cost[branch.id].cost_ns >= 10 * (1 + inner)


def test_faster_devices_are_faster(tmp_path: Path) -> None:
    text = "g (float[512,512] a, float[512,512] b) => (float[512,512] y) { y = MatMul(a, b) }"
    devices = ("cpu", "v100-16gb", "a100-80gb", "h200", "rtx4090")
    in_order = [times(text, tmp_path, load_device_model(name))["y"] for name in devices]
    assert in_order == sorted(set(in_order), reverse=True)
