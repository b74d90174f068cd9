"""Stages and holds: the fewest runs for given holds, and the way back from a sequence."""

from __future__ import annotations

import pytest
from graphs import random_problem
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import built, tanh_training_chain

from remat_cli.memory import replay_sequence
from remat_cli.problem import Node, Problem, Tensor
from remat_cli.solve.stages import (
    bit_set,
    bits,
    holds_from_stages,
    in_place_candidates,
    pin_blocked,
    runs_from_holds,
    sequence_from_holds,
    stages_of,
    store_all_holds,
)


@given(st.sets(st.integers(0, 300)))
@settings(deadline=None)
def test_bit_sets(members: set[int]) -> None:
    assert list(bits(bit_set(members))) == sorted(members)


def test_holding_everything_runs_every_node_once() -> None:
    problem = tanh_training_chain()
    assert sequence_from_holds(problem, store_all_holds(problem)) == tuple(range(8))


def test_holding_nothing_recomputes_all_ancestors() -> None:
    problem = built([1, 1, 1], [(), (0,), (0, 1)], (2,))
    assert sequence_from_holds(problem, [0, 0, 0, 0b100]) == (0, 0, 1, 0, 1, 2)
    # Nothing holds the output past its stage, so the final stage makes it again.
    assert sequence_from_holds(problem, [0, 0, 0, 0]) == (0, 0, 1, 0, 1, 2, 0, 1, 2)


def test_what_the_next_stage_holds_is_made_in_this_one() -> None:
    problem = built([1, 1, 1, 1], [(), (0,), (1,), (0, 2)], (3,))
    dropped = [0, 0b1, 0b10, 0b101, 0b1000]
    assert runs_from_holds(problem, dropped).stages == ((0,), (1,), (0, 2), (3,), ())


def test_tensors_that_were_never_made_are_not_held() -> None:
    problem = built([1, 1], [(), (0,)], (1,))
    assert sequence_from_holds(problem, [0b11, 0b11, 0b11]) == (0, 1)


def test_wrong_number_of_stages() -> None:
    with pytest.raises(ValueError, match="holds for 2 stages, but 2 nodes make 3"):
        runs_from_holds(built([1, 1], [(), (0,)], (1,)), [0, 0])


def test_nodes_that_may_not_rerun_block_and_are_then_pinned() -> None:
    problem = built([1, 1, 1], [(), (0,), (0, 1)], (2,), once=(0,))
    holds = [0, 0b1, 0b10, 0b100]
    assert runs_from_holds(problem, holds).blocked == (0,)
    assert sequence_from_holds(problem, holds) is None
    pinned, runs = pin_blocked(problem, holds)
    assert runs.sequence == (0, 1, 2)
    assert all(hold & 1 for hold in pinned[1:])


def test_last_stage() -> None:
    tensors = (Tensor("W", 0, "weight"), *(Tensor(f"t{v}", 1, "activation", v) for v in range(3)))
    state = Tensor("W/new", 0, "state", producer=3, state_of=0)
    tail = Tensor("t4", 1, "activation", 4)
    nodes = (
        Node("t0", "Op", (0,), (1,), 1),
        Node("t1", "Op", (1,), (2,), 1),
        Node("t2", "Dropout", (2,), (3,), 1, recomputable=False),
        Node("W/new", "SGD", (0, 3), (4,), 1),
        Node("t4", "Op", (3,), (5,), 1),
    )
    problem = Problem("p", nodes, (*tensors, state, tail), (4, 5))
    # A reader of W may run in the update's stage, before it; ordinary nodes even after the last node.
    assert problem.last_stage == (3, 5, 2, 3, 5)
    replay_sequence(problem, (0, 1, 2, 0, 3, 4))


def test_in_place_candidates_are_read_once_and_of_one_size() -> None:
    tensors = (
        Tensor("a", 8, "activation", 0),
        Tensor("view", 0, "view", view_of=0),
        Tensor("b", 8, "activation", 1),
        Tensor("c", 8, "activation", 2),
        Tensor("d", 4, "activation", 3),
    )
    nodes = (
        Node("a", "Op", (), (0,), 1),
        Node("b", "Relu", (1,), (2,), 1, in_place_inputs=(1,)),
        Node("c", "Add", (0, 1), (3,), 1, in_place_inputs=(0,)),
        Node("d", "Cast", (2,), (4,), 1, in_place_inputs=(2,)),
    )
    assert in_place_candidates(Problem("p", nodes, tensors, (4,))) == ((), (0,), (), ())


def test_stages_of_a_sequence() -> None:
    problem = tanh_training_chain()
    sequence = (0, 1, 2, 3, 4, 5, 0, 6, 7)
    stages = stages_of(problem, sequence)
    assert stages == ((0,), (1,), (2,), (3,), (4,), (5,), (0, 6), (7,), ())
    assert sequence_from_holds(problem, holds_from_stages(problem, stages)) == sequence


@pytest.mark.parametrize("sequence", [(0, 2, 1), (0, 1), (1, 0)])
def test_sequences_without_stages(sequence: tuple[int, ...]) -> None:
    assert stages_of(built([1, 1, 1], [(), (), (0, 1)], (2,)), sequence) is None


@given(st.integers(0, 2**32 - 1), st.data())
@settings(max_examples=80, deadline=None)
def test_any_holds_give_a_legal_schedule_once_pinned(seed: int, data: st.DataObject) -> None:
    problem = random_problem(seed)
    made = bit_set(t for outputs in problem.writes for t in outputs)
    holds = [data.draw(st.integers(0, made)) & made for _ in range(len(problem.nodes) + 1)]
    sequence = pin_blocked(problem, holds)[1].sequence
    timeline = replay_sequence(problem, sequence)
    # Holds by use are enough for the same runs, and fewer runs never need more.
    stages = stages_of(problem, sequence)
    assert stages is not None
    lean = runs_from_holds(problem, holds_from_stages(problem, stages))
    assert not lean.blocked
    assert len(lean.sequence) <= len(sequence)
    assert replay_sequence(problem, lean.sequence).peak_bytes <= timeline.peak_bytes
