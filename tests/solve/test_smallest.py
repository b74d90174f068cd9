"""The smallest capacity with a schedule: between the proved bound and store-all, and the least where it is known."""

from __future__ import annotations

import pytest
from brute import cheapest_staged
from graphs import random_problem
from networks import built, network, store_all_peak

from remat_cli.solve.bounds import working_set_bound
from remat_cli.solve.smallest import smallest_feasible


@pytest.mark.parametrize("seed", range(10))
def test_close_to_the_least_of_small_graphs(seed: int) -> None:
    problem = random_problem(seed)
    found = smallest_feasible(problem)
    assert found.solution.live_peak_bytes == found.capacity_bytes <= store_all_peak(problem)
    assert found.lower_bound_bytes == working_set_bound(problem).bytes <= found.capacity_bytes
    assert cheapest_staged(problem, found.capacity_bytes, ordered=False) is not None
    assert (
        found.capacity_bytes == found.lower_bound_bytes
        or cheapest_staged(problem, found.capacity_bytes - 2, ordered=False) is None
    )


@pytest.mark.parametrize("name", ["linear16_skew", "unet", "vgg16"])
def test_networks_reach_the_working_set_bound(name: str) -> None:
    found = smallest_feasible(network(name))
    assert found.capacity_bytes * 100 <= found.lower_bound_bytes * 103


def test_a_forward_chain_has_no_budget_below_store_all() -> None:
    chain = built([8, 8, 8, 8], [(), (0,), (1,), (2,)], (3,))
    found = smallest_feasible(chain)
    assert (found.capacity_bytes, found.solution.method) == (16, "store-all")
    assert found.solution.status == "optimal"
    assert found.lower_bound_bytes == 16
