"""From graph to problem: order, kinds, sizes, views, states and in-place inputs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_texts import case, load
from onnx import numpy_helper

from remat_cli.errors import ModelError
from remat_cli.memory import Compute, replay, replay_sequence, steps_of
from remat_cli.model.feeds import seeded_feeds
from remat_cli.model.graph import Graph
from remat_cli.model.lower import build_problem, resident_bytes, storage_roots
from remat_cli.problem import NodeCost, Problem
from remat_cli.units import align

INCREMENT = 100


def lower(graph: Graph, *, in_place: bool = True, alignment: int = 64) -> Problem:
    costs = {node.id: NodeCost(INCREMENT + k, 10 * k) for k, node in enumerate(graph.nodes)}
    problem = build_problem(graph, costs, alignment, in_place=in_place)
    for v, reads in enumerate(problem.reads):
        assert all((problem.tensors[t].producer or 0) < v for t in reads)
    return problem


def kinds(problem: Problem) -> dict[str, str]:
    return {tensor.id: tensor.kind for tensor in problem.tensors}


def order(problem: Problem) -> list[str]:
    return [node.id for node in problem.nodes]


def in_place(problem: Problem) -> dict[str, list[str]]:
    return {n.id: [problem.tensors[t].id for t in n.in_place_inputs] for n in problem.nodes if n.in_place_inputs}


def run_store_all(problem: Problem) -> int:
    return replay_sequence(problem, range(len(problem.nodes))).peak_bytes


# Tables --------------------------------------------------------------------------------------------------------------


def test_the_table_of_a_small_graph(tmp_path: Path) -> None:
    text = """g (float[30] x) => (float[6,5] y, float[30] k) <float[30] w = {ONES}, int64[2] s = {6, 5}> {
        a = Mul(x, w)\n v = Reshape(a, s)\n b = Exp(a)\n u = Reshape(b, s)\n y = Add(v, u)\n k = Identity(w) }"""
    graph = load(tmp_path, text.replace("ONES", ",".join("1" * 30)))
    problem = lower(graph)
    assert [(t.id, t.kind, t.size_bytes) for t in problem.tensors] == [
        ("x", "input", 0),
        ("w", "weight", 0),
        ("k", "view", 0),
        ("s", "constant", 0),
        ("a", "activation", 128),
        ("v", "view", 0),
        ("b", "activation", 128),
        ("u", "view", 0),
        ("y", "output", 128),
    ]
    assert [(n.id, n.op_type) for n in problem.nodes] == [("a", "Mul"), ("b", "Exp"), ("y", "Add")]
    assert [n.cost_ns for n in problem.nodes] == [100, 102, 104]
    assert problem.outputs == (8, 2)
    assert resident_bytes(graph, 64) == {"x": 128, "w": 128, "s": 64}
    # The largest workspace, 40 bytes of node y, is committed once and aligned.
    assert problem.fixed_bytes == 128 + 128 + 64 + 64
    assert all(n.workspace_bytes == 0 for n in problem.nodes)
    assert in_place(problem) == {"b": ["a"], "y": ["v", "u"]}
    # b cannot run in place of a, which y reads; y runs in place of it.
    assert run_store_all(problem) == 256


def test_alignment_of_cuda() -> None:
    problem = lower(case("090"), alignment=256)
    assert [t.size_bytes for t in problem.tensors] == [0, 256, 256]
    assert problem.fixed_bytes == 256 + 256


def test_no_in_place() -> None:
    graph = case("081")
    assert in_place(lower(graph))
    assert not in_place(lower(graph, in_place=False))
    assert run_store_all(lower(graph)) < run_store_all(lower(graph, in_place=False))


def test_a_node_without_cost_is_named() -> None:
    graph = case("090")
    with pytest.raises(ModelError, match=r"there is no cost for Mul 'm' \('y'\)") as caught:
        build_problem(graph, {"h": NodeCost(1)}, 64)
    assert caught.value.hint == "remat profile 090_same_input_twice.onnx"


def test_unknown_sizes_are_pinned_and_counted() -> None:
    problem = lower(case("046"))
    assert kinds(problem) == {"x": "input", "i": "constant", "s": "pinned", "y": "output"}
    assert [node.recomputable for node in problem.nodes] == [False, True]
    assert problem.tensors[2].size_bytes == 64
    strings = lower(case("134"))
    assert kinds(strings) == {"s": "input", "t": "pinned"}
    assert run_store_all(strings) == 0


@pytest.mark.parametrize("name", ["150", "151", "154"])
def test_random_nodes_run_once(name: str) -> None:
    assert not lower(case(name)).nodes[0].recomputable


def test_training_batch_norm_may_be_recomputed_and_its_statistics_are_kept() -> None:
    problem = lower(case("156"))
    assert [node.recomputable for node in problem.nodes] == [True, True, True]
    twice = replay(problem, [Compute(0), Compute(1), Compute(0), Compute(2)])
    assert twice.recomputed == 1


def test_captures_are_inputs() -> None:
    problem = lower(case("041"))
    loop = problem.nodes[-1]
    assert "big" in {problem.tensors[t].id for t in loop.inputs}


def test_outputs_that_are_inputs_or_views() -> None:
    assert [lower(case("085")).tensors[t].id for t in lower(case("085")).outputs] == ["y", "x"]
    identity = lower(case("025"))
    assert (identity.nodes, identity.kept) == ((), ())


def test_a_long_chain_is_lowered_fast() -> None:
    graph = case("081")
    begin = time.perf_counter()
    problem = lower(graph)
    assert len(problem.nodes) == 3000
    assert time.perf_counter() - begin < 3


# In place ------------------------------------------------------------------------------------------------------------


def test_in_place_is_not_offered_on_residents_kept_or_twice_read_storages(tmp_path: Path) -> None:
    graph = load(
        tmp_path,
        """g (float[4] x) => (float[4] h, float[4] y) <int64[1] s = {4}> {
        a = Relu(x)\n v = Reshape(a, s)\n b = Add(a, v)\n h = Neg(b)\n y = Mul(h, b) }""",
    )
    problem = lower(graph)
    # Relu reads an input; Add reads one storage under two names; h is kept, so the replay must not take it.
    assert in_place(problem) == {"h": ["b"], "y": ["h", "b"]}
    steps = steps_of(problem, range(4))
    taken = [step.in_place_of for step in steps if isinstance(step, Compute)]
    assert taken == [None, None, None, problem.nodes[3].in_place_inputs[1]]


# States --------------------------------------------------------------------------------------------------------------

SGD = """g (float[2,4] x, float[4,4] w, float[4,4] u) => (float[2,4] y, float[4,4] w_new, float[4,4] u_new)
    <float lr = {0.5}> {
    gw = MatMul(u, w)\n sw = Mul(gw, lr)\n w_new = Sub(w, sw)
    h = MatMul(x, w)\n y = MatMul(h, u)\n su = Mul(u, lr)\n u_new = Sub(u, su) }"""


def test_an_update_comes_after_every_reader_of_its_resident(tmp_path: Path) -> None:
    problem = lower(load(tmp_path, SGD, state={"w_new": "w", "u_new": "u"}))
    assert order(problem) == ["gw", "h", "sw", "w_new", "y", "su", "u_new"]
    state = {t.id: problem.tensors[t.state_of].id for t in problem.tensors if t.state_of is not None}
    assert state == {"w_new": "w", "u_new": "u"}
    assert {t.id: t.size_bytes for t in problem.tensors if t.kind == "state"} == {"w_new": 0, "u_new": 0}
    updates = {node.id: node for node in problem.nodes if not node.recomputable}
    assert set(updates) == {"w_new", "u_new"}
    assert all(node.in_place_inputs == () for node in updates.values())
    run_store_all(problem)


def test_updates_run_as_soon_as_their_gradient_is_there(tmp_path: Path) -> None:
    text = """g (float[64] a, float[64] b, float[64] mb, float[64] x)
        => (float[64] a_new, float[64] b_new, float[64] mb_new) <float lr = {0.5}, float mu = {0.9}, int64 ax = {0}> {
        ha = Mul(x, a)\n hb = Mul(ha, b)\n gb = CumSum(hb, ax)\n ga = CumSum(ha, ax)\n z = CumSum(ga, ax)
        sa = Mul(z, lr)\n a_new = Sub(a, sa)\n old = Mul(mb, mu)\n mb_new = Add(old, gb)\n sb = Mul(mb_new, lr)
        b_new = Sub(b, sb) }"""
    graph = load(tmp_path, text, state={"a_new": "a", "b_new": "b", "mb_new": "mb"})
    problem = lower(graph)
    # `old` reads nothing but a resident, and still waits for the gradient.
    assert order(problem) == ["ha", "hb", "gb", "old", "mb_new", "sb", "b_new", "ga", "z", "sa", "a_new"]
    assert run_store_all(problem) == 3 * 256


def test_without_state_the_new_weights_are_outputs(tmp_path: Path) -> None:
    problem = lower(load(tmp_path, SGD))
    assert kinds(problem)["w_new"] == "output"
    assert order(problem)[2] == "w_new"


def test_adam_moments_are_overwritten_although_their_update_reads_them_indirectly(tmp_path: Path) -> None:
    text = """g (float[4] w, float[4] m, float[4] grad) => (float[4] w_new, float[4] m_new) <float b = {0.9}> {
        old = Mul(m, b)\n m_new = Add(old, grad)\n s = Sqrt(m_new)\n w_new = Sub(w, s) }"""
    problem = lower(load(tmp_path, text, state={"w_new": "w", "m_new": "m"}))
    assert kinds(problem)["m_new"] == kinds(problem)["w_new"] == "state"
    # The moment's update does not read m itself, but running it twice would still be wrong.
    assert [n.id for n in problem.nodes if not n.recomputable] == ["m_new", "w_new"]
    assert run_store_all(problem) == 64


def test_states_that_swap_do_not_both_go_in_place(tmp_path: Path) -> None:
    text = """g (float[4] a, float[4] b) => (float[4] a_new, float[4] b_new) {
        a_new = Exp(b)\n b_new = Neg(a) }"""
    problem = lower(load(tmp_path, text, state={"a_new": "a", "b_new": "b"}))
    assert kinds(problem) == {"a": "input", "b": "input", "a_new": "state", "b_new": "output"}
    assert order(problem) == ["b_new", "a_new"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("s = Mul(w, g)\n w_new = MatMul(s, w)", "the update is no operator that runs in place"),
        ("w_new = Add(w, w)", "the update reads its resident twice"),
        ("v = Identity(w)\n w_new = Add(w, v)", "the update reads its resident twice, once as a view"),
        ("w_new = Sub(w, g)\n after = Mul(w_new, w)", "a reader needs both values"),
        ("after = Identity(w)\n w_new = Sub(w, g)", "the old value is a graph output, through a view"),
        ("w_new = Identity(g)\n after = Neg(w)", "the new value is a view"),
    ],
)
def test_states_that_keep_a_storage_of_their_own(tmp_path: Path, body: str, why: str) -> None:
    outputs = "float[4,4] w_new" + (", float[4,4] after" if "after" in body else "")
    text = f"g (float[4,4] w, float[4,4] g) => ({outputs}) {{ {body} }}"
    problem = lower(load(tmp_path, text, state={"w_new": "w"}))
    assert "state" not in kinds(problem).values(), why
    run_store_all(problem)


def test_readers_through_views_come_before_the_update(tmp_path: Path) -> None:
    text = """g (float[4,4] w, float[4,4] g) => (float[4,4] w_new, float[16] y) <int64[1] s = {16}> {
        w_new = Sub(w, g)\n v = Reshape(w, s)\n y = Exp(v) }"""
    problem = lower(load(tmp_path, text, state={"w_new": "w"}))
    assert order(problem) == ["y", "w_new"]
    assert kinds(problem)["w_new"] == "state"


# Random graphs -------------------------------------------------------------------------------------------------------

UNARY = {"Neg": np.negative, "Abs": np.abs, "Relu": lambda a: np.maximum(a, 0)}
BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}
INPUTS = ("x", "w", "m")


@st.composite
def graph_texts(draw: st.DrawFn) -> str:
    """Elementwise operators over views of different shapes, with new values of two states."""
    shapes = dict.fromkeys(INPUTS, 1)
    lines = []
    for k in range(draw(st.integers(1, 12))):
        source = draw(st.sampled_from(sorted(shapes)))
        action = draw(st.sampled_from(["view", *UNARY, *BINARY]))
        if action == "view":
            lines.append(f"t{k} = Reshape({source}, s{3 - shapes[source]})")
            shapes[f"t{k}"] = 3 - shapes[source]
            continue
        names = [source]
        if action in BINARY:
            names.append(draw(st.sampled_from(sorted(n for n in shapes if shapes[n] == shapes[source]))))
        lines.append(f"t{k} = {action}({', '.join(draw(st.permutations(names)))})")
        shapes[f"t{k}"] = shapes[source]
    flat = sorted(name for name in shapes if shapes[name] == 1)
    for state in ("w", "m"):
        reads = [draw(st.sampled_from(flat)), draw(st.sampled_from([state, *flat]))]
        lines.append(
            f"{state}_new = {draw(st.sampled_from(sorted(BINARY)))}({', '.join(draw(st.permutations(reads)))})"
        )
    made = draw(st.lists(st.sampled_from(sorted(set(shapes) - set(INPUTS))), max_size=3, unique=True))
    lines = draw(st.permutations(lines))
    outputs = [f"float[{'6' if shapes[name] == 1 else '2,3'}] {name}" for name in made]
    outputs += ["float[6] w_new", "float[6] m_new"]
    header = "g (float[6] x, float[6] w, float[6] m) => (OUTPUTS) <int64[1] s1 = {6}, int64[2] s2 = {2, 3}> {\n"
    return header.replace("OUTPUTS", ", ".join(outputs)) + "\n".join(lines) + " }"


def apply(graph: Graph, op_type: str, values: Sequence[np.ndarray], shape: Sequence[int]) -> np.ndarray:
    function = {**UNARY, **BINARY}[op_type]
    result: np.ndarray = np.asarray(function(*values), np.float32).reshape(shape)
    return result


def plain_values(graph: Graph) -> dict[str, np.ndarray]:
    values = dict(seeded_feeds(graph)) | {n: numpy_helper.to_array(c) for n, c in graph.constants.items()}
    for node in graph.nodes:
        shape = graph.tensors[node.id].shape
        assert shape is not None
        if node.op_type in ("Reshape", "Identity"):
            values[node.id] = values[node.inputs[0]].reshape(shape)
        else:
            values[node.id] = apply(graph, node.op_type, [values[name] for name in node.inputs], shape)
    return values


def interpreted(graph: Graph, problem: Problem, sequence: Sequence[int]) -> dict[str, np.ndarray]:
    """Run the steps on real buffers: in place means the same buffer, and what is freed is overwritten at once."""
    buffers: dict[int, np.ndarray] = {}
    index = {tensor.id: t for t, tensor in enumerate(problem.tensors)}
    for name, value in seeded_feeds(graph).items():
        buffers[index[name]] = value.reshape(-1).copy()

    def read(name: str) -> np.ndarray:
        shape = graph.tensors[name].shape
        assert shape is not None
        return buffers[problem.root[index[name]]].reshape(shape)

    nodes = {node.id: node for node in graph.nodes}
    for step in steps_of(problem, sequence):
        if not isinstance(step, Compute):
            buffers.pop(step.tensor)[:] = np.nan
            continue
        node = nodes[problem.nodes[step.node].id]
        shape = graph.tensors[node.id].shape
        assert shape is not None
        result = apply(graph, node.op_type, [read(name) for name in node.inputs], shape).reshape(-1)
        output = problem.nodes[step.node].outputs[0]
        resident = problem.tensors[output].state_of
        if resident is not None:
            buffers[output] = buffers[resident]
        elif step.in_place_of is not None:
            buffers[output] = buffers.pop(problem.root[step.in_place_of])
        else:
            buffers[output] = np.empty_like(result)
        buffers[output][:] = result
    return {name: read(name).copy() for name in graph.outputs}


def plain_peak(graph: Graph, problem: Problem) -> int:
    """The store-all peak without in-place steps, counted on the graph's own terms."""
    root = storage_roots(graph)
    states = {tensor.id for tensor in problem.tensors if tensor.kind == "state"}
    computed = {node.id: node for node in graph.nodes if node.view_of is None}
    sizes = {
        name: 0 if name in states else align(graph.tensors[name].size_bytes, 64)
        for node in computed.values()
        for name in node.outputs
    }
    last = {name: len(problem.nodes) for name in (root[output] for output in graph.outputs)}
    first = {}
    for position, node in enumerate(problem.nodes):
        for name in computed[node.id].outputs:
            first[name] = position
            last.setdefault(name, position)
        for name in computed[node.id].reads:
            last[root[name]] = max(last.get(root[name], 0), position)
    return max(
        sum(size for name, size in sizes.items() if first[name] <= position <= last[name])
        for position in range(len(problem.nodes))
    )


@settings(max_examples=80, deadline=None)
@given(graph_texts(), st.data())
def test_random_graphs_give_the_plain_values_on_shared_storages(text: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        graph = load(Path(folder), text, state={"w_new": "w", "m_new": "m"})
    expected = plain_values(graph)
    problem = lower(graph)
    sequence = list(range(len(problem.nodes)))
    # Repeat nodes where the problem says that they may run again.
    for v in data.draw(st.lists(st.sampled_from(sequence), max_size=3)):
        inputs_live = max([v, *(problem.tensors[t].producer or 0 for t in problem.reads[v])])
        latest = min(problem.last_stage[v], len(problem.nodes) - 1)
        if problem.nodes[v].recomputable and latest > inputs_live:
            stage = data.draw(st.integers(inputs_live + 1, latest))
            sequence.insert(sequence.index(stage), v)
    replay_sequence(problem, sequence)
    for name, value in interpreted(graph, problem, sequence).items():
        np.testing.assert_array_equal(value, expected[name].reshape(value.shape), err_msg=name)
    bare = lower(graph, in_place=False)
    assert run_store_all(bare) == plain_peak(graph, bare)
    assert run_store_all(problem) <= run_store_all(bare)
