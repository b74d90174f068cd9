"""The state of the heuristics against the oracle: whatever is held, its sequences are legal and never need more than
the state says; undo is exact; a state is what its own schedule says."""

from __future__ import annotations

import random

import numpy as np
from graphs import random_problem
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.memory import replay_sequence
from remat_cli.problem import Problem
from remat_cli.solve.holds import Holds, spans_of
from remat_cli.solve.instance import flatten

seeds = st.integers(0, 2**32 - 1)


def snapshot(holds: Holds) -> tuple[object, ...]:
    return (
        [bytes(row) for row in holds.held],
        [sorted(run) for run in holds.runs],
        [list(touches) for touches in holds.touches],
        [sorted(starts) for starts in holds.starts],
        list(holds.order),
        holds.peak.tolist(),
        holds.base.tolist(),
        holds.total,
    )


def random_move(holds: Holds, rng: random.Random) -> None:
    """One of the changes that searches make, where it is legal."""
    instance = holds.instance
    t = rng.randrange(instance.count)
    touches = holds.touches[t]
    if len(touches) < 2:
        return
    k = rng.randrange(len(touches) - 1)
    a, b = touches[k], touches[k + 1]
    c = rng.randrange(a, b + 1)
    if c < instance.n and holds.held[t][b] and c > a and holds.recompute_cost(t, c) is not None:
        inputs = holds.missing_inputs(t, b) if c == b else []
        if inputs and rng.random() < 0.5:
            holds.swap(t, a, b, inputs)
        else:
            holds.release(t, a, c)
    elif not holds.held[t][b] and c < b and (c == a or holds.recompute_cost(t, c) is not None):
        holds.retain(t, c, b)
    elif rng.random() < 0.2:
        holds.retain_all([t])


def problem_of(seed: int) -> Problem:
    return random_problem(seed, n=4 + seed % 9)


@given(seeds)
@settings(max_examples=150, deadline=None)
def test_a_state_never_needs_less_than_the_oracle_says(seed: int) -> None:
    problem, rng = problem_of(seed), random.Random(seed)
    store_all = replay_sequence(problem, range(len(problem.nodes)))
    holds = Holds(flatten(problem), store_all.peak_bytes * rng.randrange(4) // 4)
    assert int(holds.peak.max(initial=0)) == store_all.peak_bytes
    for _ in range(30):
        random_move(holds, rng)
        timeline = replay_sequence(problem, holds.sequence())
        assert timeline.peak_bytes <= int(holds.peak.max(initial=0))
        assert sum(max(1, problem.nodes[v].cost_ns) for v in holds.sequence()) == holds.total


@given(seeds)
@settings(max_examples=100, deadline=None)
def test_rollback_restores_everything(seed: int) -> None:
    problem, rng = problem_of(seed), random.Random(seed)
    holds = Holds(flatten(problem), replay_sequence(problem, range(len(problem.nodes))).peak_bytes // 2)
    for _ in range(5):
        random_move(holds, rng)
    before, mark = snapshot(holds), holds.mark()
    for _ in range(10):
        random_move(holds, rng)
    holds.rollback(mark)
    assert snapshot(holds) == before


@given(seeds)
@settings(max_examples=100, deadline=None)
def test_bookkeeping_is_what_the_holds_say(seed: int) -> None:
    """Counted anew from `held` alone: live bytes into stages, touches, holds without gaps or loose ends."""
    problem, rng = problem_of(seed), random.Random(seed)
    instance = flatten(problem)
    holds = Holds(instance, 0)
    for _ in range(20):
        random_move(holds, rng)
    rows = np.array([list(row) for row in holds.held]).reshape(instance.count, instance.n + 1)
    assert holds.base.tolist() == (np.array(instance.size, dtype=np.int64) @ rows).tolist()
    for t, row in enumerate(holds.held):
        touched = [
            s for s, run in enumerate(holds.runs) if any(t in instance.reads[v] + instance.writes[v] for v in run)
        ]
        assert holds.touches[t] == touched
        for s in range(1, instance.n):
            if row[s] != row[s + 1]:
                assert s in touched


@given(seeds)
@settings(max_examples=100, deadline=None)
def test_a_schedule_gives_back_a_state_that_is_no_worse(seed: int) -> None:
    problem, rng = problem_of(seed), random.Random(seed)
    instance = flatten(problem)
    holds = Holds(instance, 0)
    for _ in range(15):
        random_move(holds, rng)
    spans = spans_of(instance, holds.sequence())
    assert spans is not None
    again = Holds(instance, 0, spans=spans)
    assert again.total <= holds.total
    assert (again.peak <= holds.peak).all()
    replay_sequence(problem, again.sequence())
