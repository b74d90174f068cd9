"""The oracle against hand-computed values: each rule of the memory rule has one."""

from __future__ import annotations

import pytest

from remat_cli.memory import Compute, Free, IllegalStepError, Step, replay, replay_sequence, steps_of
from remat_cli.problem import Node, Problem, Tensor


def chain(sizes: list[int], *, kept: tuple[int, ...], workspace: int = 0) -> Problem:
    """x -> n0 -> n1 -> ... ; tensor 0 is the input x, tensor i + 1 is made by node i."""
    tensors = [Tensor("x", 0, "input")]
    nodes = []
    for v, size in enumerate(sizes):
        tensors.append(Tensor(f"t{v}", size, "activation", producer=v))
        nodes.append(Node(f"t{v}", "Op", (v,), (v + 1,), cost_ns=10 + v, workspace_bytes=workspace))
    return Problem("chain", tuple(nodes), tuple(tensors), tuple(k + 1 for k in kept))


def training_chain() -> Problem:
    """f0 -> f1 -> f2 -> f3; g3(f2, f3), g2(f1, g3), g1(f0, g2): 1024 bytes each, unit costs, only g1 kept."""
    tensors = [Tensor("x", 0, "input")]
    tensors += [Tensor(name, 1024, "activation", producer=v) for v, name in enumerate("abcdefg")]
    reads = [(0,), (1,), (2,), (3,), (3, 4), (2, 5), (1, 6)]
    nodes = [Node("abcdefg"[v], "Op", r, (v + 1,), cost_ns=1) for v, r in enumerate(reads)]
    return Problem("train", tuple(nodes), tuple(tensors), (7,))


def test_inputs_and_outputs_of_a_step_are_both_live() -> None:
    timeline = replay_sequence(chain([100, 10, 1], kept=(2,)), [0, 1, 2])
    assert timeline.step_bytes == (100, 110, 10, 11, 1)
    assert (timeline.peak_bytes, timeline.peak_step) == (110, 1)
    assert timeline.compute_ns == 10 + 11 + 12


def test_workspace_counts_during_its_own_step_alone() -> None:
    timeline = replay_sequence(chain([100, 10], kept=(1,), workspace=7), [0, 1])
    assert timeline.step_bytes == (107, 117, 10)


def test_kept_tensors_are_live_to_the_end() -> None:
    problem = chain([100, 10], kept=(0, 1))
    assert steps_of(problem, [0, 1]) == [Compute(0), Compute(1)]
    with pytest.raises(IllegalStepError, match="graph output t0 is not live at the end"):
        replay(problem, [Compute(0), Compute(1), Free(1)])


def test_store_all_peak_of_a_training_chain() -> None:
    timeline = replay_sequence(training_chain(), range(7))
    # a, b, c, d live, then e allocated while c and d are read: 5 tensors.
    assert timeline.peak_bytes == 5 * 1024
    assert timeline.recomputed == 0


def test_recomputing_lowers_the_peak() -> None:
    # Drop a after b is made, recompute it for g; drop nothing else.
    timeline = replay_sequence(training_chain(), [0, 1, 2, 3, 4, 5, 0, 6])
    assert timeline.peak_bytes == 4 * 1024
    assert (timeline.recomputed, timeline.compute_ns) == (1, 8)


def test_a_copy_dies_after_its_last_use_before_the_recompute() -> None:
    steps = steps_of(training_chain(), [0, 1, 2, 3, 4, 5, 0, 6])
    assert steps.index(Free(1)) == 2  # right after b is computed
    assert steps.count(Free(1)) == 2


def test_use_after_free_is_refused_at_the_step() -> None:
    steps: list[Step] = [Compute(0), Free(1), Compute(1)]
    with pytest.raises(IllegalStepError, match="node t1 needs t0, which is not live here") as error:
        replay(chain([1, 1], kept=(1,)), steps)
    assert error.value.step == 2


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([Compute(1)], "node t1 needs t0, which was never computed"),
        ([Compute(0), Free(1), Free(1)], "t0 is freed but is not live"),
        ([Free(0)], "x is resident"),
        ([Compute(0)], "node t1 is never computed"),
        ([Compute(5)], "there is no node number 5"),
        ([Compute(0), Free(9)], "there is no tensor number 9"),
        ([Compute(0), Compute(1, in_place_of=1)], "cannot run in place of t0"),
    ],
)
def test_illegal_steps(steps: list[Step], reason: str) -> None:
    with pytest.raises(IllegalStepError, match=reason):
        replay(chain([1, 1], kept=(1,)), steps)


def test_sequence_that_reads_before_computing_is_refused() -> None:
    with pytest.raises(IllegalStepError, match="t0 is read before it is computed"):
        steps_of(chain([1, 1], kept=(1,)), [1, 0])


def test_nodes_that_run_once() -> None:
    problem = training_chain()
    once = Problem(
        "once",
        (Node("a", "Dropout", (0,), (1,), 1, recomputable=False), *problem.nodes[1:]),
        problem.tensors,
        problem.outputs,
    )
    assert once.last_stage[0] == 0
    with pytest.raises(IllegalStepError, match=r"node a \(Dropout\) must run only once"):
        replay_sequence(once, [0, 1, 2, 3, 4, 5, 0, 6])


def test_multi_output_recompute_counts_duplicates_during_its_step() -> None:
    # n0 makes p (100) and q (10); n1 reads p; n2 reads p and q. p is freed and recomputed while q is still live.
    tensors = (
        Tensor("p", 100, "activation", 0),
        Tensor("q", 10, "activation", 0),
        Tensor("r", 1, "activation", 1),
        Tensor("s", 1, "output", 2),
    )
    nodes = (
        Node("p", "Split", (), (0, 1), 5),
        Node("r", "Op", (0,), (2,), 1),
        Node("s", "Op", (0, 1, 2), (3,), 1),
    )
    problem = Problem("multi", nodes, tensors, (3,))
    steps = [Compute(0), Compute(1), Free(0), Compute(0), Compute(2)]
    timeline = replay(problem, steps)
    # live before the recompute: q 10 + r 1; both outputs again: + 110; afterwards one q.
    assert timeline.step_bytes == (110, 111, 11, 121, 112)
    # The canonical steps free q as well, so nothing is duplicated.
    assert replay_sequence(problem, [0, 1, 0, 2]).step_bytes == (110, 100, 101, 1, 111, 112, 12, 2, 1)
    assert replay_sequence(problem, [0, 1, 0, 2]).peak_bytes == 112


def test_unread_outputs_exist_during_their_own_step() -> None:
    tensors = (Tensor("y", 10, "output", 0), Tensor("mask", 90, "activation", 0))
    problem = Problem("unread", (Node("y", "MaxPool", (), (0, 1), 1),), tensors, (0,))
    timeline = replay_sequence(problem, [0])
    assert timeline.step_bytes == (100, 10)


def view_problem() -> Problem:
    """a -> (view flat of a) -> b reads flat; output is `last`, a view of b."""
    tensors = (
        Tensor("a", 64, "activation", 0),
        Tensor("b", 64, "output", 1),
        Tensor("flat", 0, "view", view_of=0),
        Tensor("last", 0, "view", view_of=1),
    )
    nodes = (Node("a", "Op", (), (0,), 1), Node("b", "Op", (2,), (1,), 1))
    return Problem("views", nodes, tensors, (3,))


def test_views_alias_and_keep_their_storage_alive() -> None:
    problem = view_problem()
    assert problem.reads == ((), (0,))
    assert problem.kept == (1,)
    assert replay_sequence(problem, [0, 1]).step_bytes == (64, 128, 64)
    with pytest.raises(IllegalStepError, match="node b needs flat, which is not live here"):
        replay(problem, [Compute(0), Free(0), Compute(1)])
    with pytest.raises(IllegalStepError, match="flat is a view of a: only that can be freed"):
        replay(problem, [Compute(0), Free(2)])


def in_place_chain() -> Problem:
    tensors = (
        Tensor("a", 64, "activation", 0),
        Tensor("b", 64, "activation", 1),
        Tensor("c", 8, "output", 2),
    )
    nodes = (
        Node("a", "Conv", (), (0,), 1),
        Node("b", "Relu", (0,), (1,), 1, in_place_inputs=(0,)),
        Node("c", "Sum", (1,), (2,), 1),
    )
    return Problem("in place", nodes, tensors, (2,))


def test_in_place_takes_over_the_dying_input() -> None:
    problem = in_place_chain()
    steps = steps_of(problem, [0, 1, 2])
    assert steps == [Compute(0), Compute(1, in_place_of=0), Compute(2), Free(1)]
    assert replay(problem, steps).step_bytes == (64, 64, 72, 8)


def test_in_place_input_is_gone_afterwards() -> None:
    problem = in_place_chain()
    with pytest.raises(IllegalStepError, match="a is freed but is not live"):
        replay(problem, [Compute(0), Compute(1, in_place_of=0), Free(0)])


def test_in_place_needs_a_single_read_of_equal_size() -> None:
    tensors = (Tensor("a", 64, "activation", 0), Tensor("b", 64, "output", 1), Tensor("c", 32, "output", 2))
    nodes = (
        Node("a", "Conv", (), (0,), 1),
        Node("b", "Add", (0, 0), (1,), 1, in_place_inputs=(0,)),
        Node("c", "Relu", (1,), (2,), 1, in_place_inputs=(1,)),
    )
    problem = Problem("bad", nodes, tensors, (1, 2))
    assert steps_of(problem, [0, 1, 2])[1] == Compute(1)
    with pytest.raises(IllegalStepError, match="reads a more than once"):
        replay(problem, [Compute(0), Compute(1, in_place_of=0)])
    with pytest.raises(IllegalStepError, match="the sizes differ"):
        replay(problem, [Compute(0), Compute(1), Compute(2, in_place_of=1)])


def state_problem() -> Problem:
    """y = f(x, W); g = h(y); W/new = W - g on W."""
    tensors = (
        Tensor("W", 0, "weight"),
        Tensor("y", 64, "activation", 0),
        Tensor("g", 64, "activation", 1),
        Tensor("W/new", 0, "state", 2, state_of=0),
    )
    nodes = (
        Node("y", "Conv", (0,), (1,), 5),
        Node("g", "Op", (1,), (2,), 3),
        Node("W/new", "Sub", (0, 2), (3,), 1),
    )
    return Problem("state", nodes, tensors, (3,))


def test_a_state_update_costs_nothing_and_comes_last() -> None:
    problem = state_problem()
    assert problem.last_stage == (2, 3, 2)
    assert replay_sequence(problem, [0, 1, 2]).step_bytes == (64, 128, 64, 64, 0)
    with pytest.raises(IllegalStepError, match="node y reads W after W/new has overwritten it"):
        replay_sequence(problem, [0, 1, 2, 0])
    with pytest.raises(IllegalStepError, match="W/new updates a state, so it must run only once"):
        replay(problem, [Compute(0), Compute(1), Compute(2), Compute(2)])


def test_a_state_update_waits_for_readers() -> None:
    tensors = (
        Tensor("W", 0, "weight"),
        Tensor("W/new", 0, "state", 0, state_of=0),
        Tensor("y", 4, "output", 1),
    )
    nodes = (Node("W/new", "Neg", (0,), (1,), 1), Node("y", "Conv", (0,), (2,), 1))
    with pytest.raises(IllegalStepError, match="overwrites a state that node y has yet to read"):
        replay_sequence(Problem("early", nodes, tensors, (1, 2)), [0, 1])


def test_zero_size_and_empty_problems() -> None:
    assert replay_sequence(Problem("none", (), (), ()), []).peak_bytes == 0
    timeline = replay_sequence(chain([0, 0], kept=(1,)), [0, 1])
    assert timeline.peak_bytes == 0
