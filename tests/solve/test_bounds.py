"""The working-set bound: hand-computed cases of each thing it counts."""

from __future__ import annotations

import pytest
from brute import least_peak
from networks import built, network, store_all_peak

from remat_cli.problem import Node, Problem, Tensor
from remat_cli.solve.bounds import infeasible_reason, working_set_bound


def test_inputs_outputs_and_workspace_of_one_step() -> None:
    nodes = (Node("a", "Op", (), (0,), 1, workspace_bytes=90), Node("b", "Conv", (0,), (1,), 1, workspace_bytes=5))
    problem = Problem("p", nodes, (Tensor("a", 10, "activation", 0), Tensor("b", 100, "activation", 1)), ())
    assert working_set_bound(problem) == (115, 1)


def test_an_input_that_dies_saves_the_output() -> None:
    reads = [(), (0,), (0,)]
    assert working_set_bound(built([8, 8, 1], reads, (2,), in_place=True)).bytes == 9
    # n0 must outlive n1 when it can be made only once, but n2, whichever comes first, is not forced after n1.
    assert working_set_bound(built([8, 8, 1], reads, (2,), in_place=True, once=(0,))).bytes == 9
    chain = [(), (0,), (0, 1)]
    assert working_set_bound(built([8, 8, 1], chain, (2,), in_place=True, once=(0,))).bytes == 17
    assert working_set_bound(built([8, 8, 1], [(), (0,)], (0, 1), in_place=True, once=(0,))).bytes == 16


def test_tensors_that_exist_once_are_live_across_steps_between() -> None:
    reads = [(), (0,), (1,), (0, 2)]
    assert working_set_bound(built([50, 4, 6, 1], reads, (3,))).bytes == 57
    forced = built([50, 40, 6, 1], reads, (3,), once=(0,))
    # n2 reads n1 and writes 6 while n0 waits for n3.
    assert working_set_bound(forced) == (96, 2)
    assert least_peak(forced) == 96


def test_all_graph_outputs_are_live_in_the_last_step() -> None:
    problem = built([30, 30, 30, 1], [(), (), (), (0,)], (0, 1, 2, 3))
    bound = working_set_bound(problem)
    assert bound.bytes == 91
    assert least_peak(problem) == 91
    reason = infeasible_reason(problem, 90)
    assert reason is not None
    assert "beside all graph outputs, needs 91 live bytes" in reason


def test_the_reason_names_node_operator_and_numbers() -> None:
    problem = network("vgg16")
    bound = working_set_bound(problem)
    assert infeasible_reason(problem, bound.bytes) is None
    reason = infeasible_reason(problem, bound.bytes - 1)
    assert reason is not None
    for part in (problem.nodes[bound.node].id, str(bound.bytes), str(bound.bytes - 1)):
        assert part in reason


@pytest.mark.parametrize(("name", "share"), [("vgg16", 0.831), ("unet", 0.395), ("linear16_unit", 3 / 18)])
def test_share_of_the_store_all_peak(name: str, share: float) -> None:
    problem = network(name)
    assert working_set_bound(problem).bytes / store_all_peak(problem) == pytest.approx(share, abs=1e-3)


def test_a_problem_without_nodes_needs_nothing() -> None:
    assert working_set_bound(Problem("empty", (), (), ())) == (0, -1)
    assert infeasible_reason(Problem("empty", (), (), ()), 0) is None
