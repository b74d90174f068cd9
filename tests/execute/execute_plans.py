"""Small models and plans for the tests of executors."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper

from remat_cli.memory import replay_sequence
from remat_cli.model.graph import Graph
from remat_cli.model.hashing import graph_sha256, weights_sha256
from remat_cli.model.load import load_graph
from remat_cli.model.lower import build_problem, resident_bytes
from remat_cli.model.whole_model import whole_model
from remat_cli.ort_session import Device, make_session
from remat_cli.plan.convert import lower_solution
from remat_cli.plan.types import Plan, PlanCosts, PlanDevice, PlanModel
from remat_cli.problem import NodeCost, Problem, Solution

FLOAT = TensorProto.FLOAT
Feeds = dict[str, np.ndarray]


def value(name: str, shape: Sequence[int | str] | None, elem_type: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, shape)


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, np.ndarray] | None = None,
    state: Mapping[str, str] | None = None,
    opset: int = 18,
) -> Path:
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    if state:
        model.metadata_props.add(key="remat.state", value=json.dumps(state))
    path.write_bytes(model.SerializeToString())
    return path


def training_model(path: Path, layers: int = 3, batch: int = 8, width: int = 24) -> Path:
    """A perceptron with mean squared error and SGD: weights are inputs, ``W/new`` their next values; two of the
    activations pass through views."""
    node = helper.make_node
    nodes, gradient, inputs, outputs, state = [], [], [value("x", [batch, width])], [], {}
    last = "x"
    for k in range(layers):
        inputs.append(value(f"W{k}", [width, width]))
        nodes += [
            node("MatMul", [last, f"W{k}"], [f"z{k}"]),
            node("Unsqueeze", [f"z{k}", "axis"], [f"u{k}"]),
            node("Tanh", [f"u{k}"], [f"t{k}"]),
            node("Squeeze", [f"t{k}", "axis"], [f"a{k}"]),
        ]
        last = f"a{k}"
    nodes += [node("Mul", [last, last], ["squares"]), node("ReduceMean", ["squares"], ["loss"], keepdims=0)]
    gradient.append(node("Mul", [last, "scale"], [f"g{layers - 1}"]))
    for k in range(layers - 1, -1, -1):
        below = f"a{k - 1}" if k else "x"
        gradient += [
            node("Mul", [f"a{k}", f"a{k}"], [f"sq{k}"]),
            node("Sub", ["one", f"sq{k}"], [f"d{k}"]),
            node("Mul", [f"g{k}", f"d{k}"], [f"gz{k}"]),
            node("Transpose", [below], [f"bt{k}"], perm=[1, 0]),
            node("MatMul", [f"bt{k}", f"gz{k}"], [f"gW{k}"]),
        ]
        if k:
            gradient += [
                node("Transpose", [f"W{k}"], [f"wt{k}"], perm=[1, 0]),
                node("MatMul", [f"gz{k}", f"wt{k}"], [f"g{k - 1}"]),
            ]
    for k in range(layers):
        gradient += [node("Mul", [f"gW{k}", "rate"], [f"s{k}"]), node("Sub", [f"W{k}", f"s{k}"], [f"W{k}/new"])]
        outputs.append(value(f"W{k}/new", [width, width]))
        state[f"W{k}/new"] = f"W{k}"
    constants = {
        "axis": np.array([0]),
        "one": np.array(1, np.float32),
        "scale": np.array(2.0 / (batch * width), np.float32),
        "rate": np.array(0.5, np.float32),
    }
    return save(path, nodes + gradient, inputs, [value("loss", []), *outputs], constants, state)


def problem_for(graph: Graph, *, in_place: bool = True, workspace: int | Mapping[str, int] = 0) -> Problem:
    return build_problem(graph, _costs(graph, workspace), 64, in_place=in_place)


def plan_for(
    graph: Graph,
    sequence: Sequence[int] | None = None,
    *,
    in_place: bool = True,
    workspace: int | Mapping[str, int] = 0,
    budget: int | None = None,
) -> Plan:
    """The plan of a sequence of computes (default: every node once), with its own peak as the budget."""
    problem = problem_for(graph, in_place=in_place, workspace=workspace)
    sequence = tuple(range(len(problem.nodes)) if sequence is None else sequence)
    timeline = replay_sequence(problem, sequence)
    plan = lower_solution(
        problem,
        Solution("test", "feasible", sequence, timeline.compute_ns, timeline.peak_bytes),
        model=PlanModel(graph.path.name, graph_sha256(graph), weights_sha256(graph), dict(graph.dims)),
        device=PlanDevice("cpu", 64, 1),
        costs=PlanCosts("cost-model", "cpu", "", "estimated"),
        budget_bytes=0,
        asked="test",
        seed=0,
        ortools="none",
        node_costs=_costs(graph, workspace),
        resident_bytes=resident_bytes(graph, 64),
    )
    return msgspec.structs.replace(plan, budget_bytes=plan.predicted.peak_bytes if budget is None else budget)


def _costs(graph: Graph, workspace: int | Mapping[str, int]) -> dict[str, NodeCost]:
    """`workspace`: of every node, or by node id (others have none)."""
    ids = [node.id for node in graph.nodes if node.view_of is None]
    sizes = dict.fromkeys(ids, workspace) if isinstance(workspace, int) else workspace
    return {name: NodeCost(1000, sizes.get(name, 0)) for name in ids}


def dropping(problem: Problem, seed: int, share: float = 0.3) -> list[int]:
    """A legal sequence that forgets tensors at random and computes them again when they are read."""
    chance = random.Random(seed)
    live: set[int] = set()
    sequence: list[int] = []

    def run(v: int) -> None:
        for t in problem.reads[v]:
            producer = problem.tensors[t].producer
            if t not in live and producer is not None:
                run(producer)
        sequence.append(v)
        live.update(problem.writes[v])

    for v in range(len(problem.nodes)):
        for t in sorted(live):
            producer = problem.tensors[t].producer
            assert producer is not None
            if problem.last_stage[producer] == len(problem.nodes) and t not in problem.kept and chance.random() < share:
                live.discard(t)
        run(v)
    return sequence


class Plain:
    """The same graph in one session with optimisation off, fed with numpy arrays: the reference of all tests."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.session = make_session(whole_model(graph).SerializeToString(), Device(), prepack=False)

    def step(self, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        from remat_cli.model.weights import weight_array

        weights = {name: weight_array(weight) for name, weight in self.graph.weights.items()}
        names = list(self.graph.outputs)
        return dict(zip(names, self.session.run(names, {**weights, **feeds}), strict=True))


def load(path: Path, **kwargs: Any) -> Graph:
    return load_graph(path, **kwargs)


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Bit for bit, NaNs included."""
    return one.keys() == other.keys() and all(_bits(one[name]) == _bits(other[name]) for name in one)


def _bits(item: Any) -> Any:
    if isinstance(item, list):
        return [_bits(part) for part in item]
    array = np.asarray(item)
    if array.dtype.kind in "OU":
        return array.shape, array.tolist()
    return array.dtype, array.shape, array.tobytes()
