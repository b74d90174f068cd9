"""Store-all and Chen's checkpointing: hand-computed chains, general graphs, nodes that may not rerun."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evaluator import peak_and_cost
from networks import at_percent, built, network, store_all_peak, tanh_training_chain

from remat_cli.memory import replay_sequence
from remat_cli.problem import Node, Problem, Tensor
from remat_cli.solve.baselines import checkpointed, chen_greedy, chen_sqrt, store_all, turning_point
from remat_cli.solve.types import Request


def training_chain(depth: int) -> Problem:
    """f0 .. f(depth - 1), loss, and the gradient of each f, which reads it and the gradient before; unit sizes."""
    reads: list[tuple[int, ...]] = [() if v == 0 else (v - 1,) for v in range(depth + 1)]
    reads += [(forward, depth + step) for step, forward in enumerate(range(depth - 1, -1, -1))]
    return built([1] * len(reads), reads, (len(reads) - 1,))


def test_store_all_is_optimal_where_it_fits_and_nothing_where_it_does_not() -> None:
    problem = tanh_training_chain()
    fits = store_all(Request(problem, 5120))
    assert (fits.status, fits.sequence, fits.cost_ns, fits.live_peak_bytes) == ("optimal", tuple(range(8)), 8, 5120)
    assert fits.lower_bound_ns == 8
    misses = store_all(Request(problem, 5119))
    assert (misses.status, misses.sequence) == ("unknown", None)
    assert "needs 5120 live bytes (5.1 KB), and has 5119" in misses.message
    impossible = store_all(Request(problem, 2048))
    assert impossible.status == "infeasible"
    assert "n4 (Op)" in impossible.message


def test_the_turn_of_a_training_chain_is_its_loss() -> None:
    assert turning_point(training_chain(9)) == 9
    assert turning_point(built([1, 1], [(), (0,)], (0, 1))) == 0


def test_chen_sqrt_on_a_chain_by_hand() -> None:
    # 10 forward nodes: segments f0-f2, f3-f5, f6-f8, the loss. f2, f5 and f8 are checkpoints, the loss is kept.
    problem = training_chain(9)
    solution = chen_sqrt(Request(problem, 100))
    assert solution.sequence == (*range(11), 6, 7, 11, 12, 13, 3, 4, 14, 15, 16, 0, 1, 17, 18)
    assert solution.cost_ns == 19 + 6
    # When the gradient of f7 is computed: f2, f5, f6, f7, the gradient of f8, and itself.
    assert (solution.live_peak_bytes, store_all_peak(problem)) == (6, 11)
    assert chen_sqrt(Request(problem, 5)).status == "unknown"


def test_chen_without_segments_is_store_all() -> None:
    problem = training_chain(9)
    assert checkpointed(problem, ()) == tuple(range(19))
    assert chen_greedy(Request(problem, 11)).sequence == tuple(range(19))


def test_chen_greedy_takes_the_cheapest_segments_that_fit() -> None:
    problem = network("linear16_unit")
    costs = [chen_greedy(at_percent(problem, percent)).cost_ns for percent in (90, 70, 50)]
    assert costs == [41, 41, 43]
    assert chen_greedy(at_percent(problem, 30)).status == "unknown"


@pytest.mark.parametrize("name", ["unet", "segnet", "mobilenet", "gpt2_12"])
def test_chen_on_networks_with_branches(name: str) -> None:
    problem = network(name)
    for method in (chen_sqrt, chen_greedy):
        request = at_percent(problem, 75)
        solution = method(request)
        assert solution.status == "feasible"
        assert solution.sequence is not None
        assert peak_and_cost(problem, solution.sequence) == (solution.live_peak_bytes, solution.cost_ns)
        assert problem.total_cost_ns < (solution.cost_ns or 0) < 1.5 * problem.total_cost_ns


def test_nodes_that_run_once_are_checkpoints() -> None:
    problem = training_chain(9)
    nodes = tuple(replace(node, recomputable=v not in (1, 4)) for v, node in enumerate(problem.nodes))
    sequence = checkpointed(replace(problem, nodes=nodes), (2, 5))
    assert sequence.count(1) == sequence.count(4) == 1
    assert sequence.count(0) == sequence.count(3) == 2
    replay_sequence(replace(problem, nodes=nodes), sequence)


def test_readers_of_a_state_are_kept_once_it_is_updated() -> None:
    # The update of W, read by f1, comes between the gradients of f4 and f3: f1 cannot be recomputed after it.
    problem = training_chain(9)
    n = len(problem.tensors)
    tensors = (*problem.tensors, Tensor("W", 0, "weight"), Tensor("W/new", 0, "state", producer=15, state_of=n))
    nodes = [replace(node, inputs=(0, n)) if v == 1 else node for v, node in enumerate(problem.nodes)]
    shifted = [replace(node, outputs=(v,)) for v, node in enumerate(nodes[15:], start=15)]
    update = Node("W/new", "SGD", (n, 14), (n + 1,), cost_ns=1)
    moved = tuple(
        replace(t, producer=t.producer + 1)
        if t.producer is not None and 15 <= t.producer < n and t.id != "W/new"
        else t
        for t in tensors
    )
    state = Problem("state", (*nodes[:15], update, *shifted), moved, (*problem.outputs, n + 1))
    sequence = checkpointed(state, (2, 5))
    assert sequence.count(1) == 1
    assert sequence.count(0) == 2
    replay_sequence(state, sequence)


def test_a_large_graph_takes_no_time() -> None:
    problem = training_chain(2000)
    solution = chen_sqrt(Request(problem, 200))
    assert solution.status == "feasible"
    # 45 segments of 44 nodes: all but the last run twice, less their checkpoints.
    assert solution.cost_ns is not None
    assert 1900 < solution.cost_ns - problem.total_cost_ns < 1960
