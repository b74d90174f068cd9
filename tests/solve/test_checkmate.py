"""The Checkmate MILP: published and proved optima, rounding of large sizes, doubted answers, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from brute import cheapest_staged
from networks import at_percent, built, network, store_all_peak, tanh_training_chain

from remat_cli.memory import replay_sequence
from remat_cli.problem import Node, Problem, Tensor
from remat_cli.solve import checkmate, cpsat
from remat_cli.solve.checkmate import solve
from remat_cli.solve.cpsat import Answer
from remat_cli.solve.formulation import assignment_of, build, count_booleans, without_live
from remat_cli.solve.stages import runs_from_holds, store_all_holds
from remat_cli.solve.types import Request


@pytest.mark.parametrize(
    ("name", "percent", "ratio"),
    [
        ("linear8_unit", 50, 22 / 17),
        ("linear16_unit", 50, 42 / 33),
        ("linear16_skew", 70, 1.04197),
        ("vgg19", 80, 1.00147),
        ("linear32_skew", 50, 1.08020),
    ],
)
def test_proved_optima(name: str, percent: int, ratio: float) -> None:
    problem = network(name)
    solution = solve(at_percent(problem, percent))
    assert solution.status == "optimal"
    assert solution.scope == "live bytes, recomputes in node order"
    assert solution.cost_ns is not None
    assert solution.lower_bound_ns is not None
    assert solution.cost_ns / problem.total_cost_ns == pytest.approx(ratio, abs=1e-5)
    assert solution.lower_bound_ns == pytest.approx(solution.cost_ns, rel=1e-6)


# Least cost over all schedules, by exhaustive search over sets of resident tensors.
@pytest.mark.parametrize(("capacity", "least"), [(2048, None), (3072, 11), (4096, 9), (5120, 8), (6144, 8), (8192, 8)])
def test_chain_of_tanh_and_its_gradients(capacity: int, least: int | None) -> None:
    problem = tanh_training_chain()
    solution = solve(Request(problem, capacity))
    assert solution.cost_ns == least
    assert solution.status == ("infeasible" if least is None else "optimal")


def test_the_same_request_gives_the_same_schedule() -> None:
    request = at_percent(network("linear16_skew"), 60)
    assert solve(request) == solve(request)


def test_outputs_may_be_recomputed_after_the_last_node() -> None:
    # Keeping a (10) beside b (20) and c takes 31 bytes. Dropped and recomputed after c, a costs one run more.
    problem = built([10, 20, 1], [(), (), (1,)], (0, 2))
    assert solve(Request(problem, 31)).sequence == (0, 1, 2)
    solution = solve(Request(problem, 30))
    assert (solution.sequence, solution.cost_ns, solution.live_peak_bytes) == ((0, 1, 2, 0), 4, 21)
    assert solve(Request(problem, 20)).status == "infeasible"


def test_in_place_is_part_of_the_proof() -> None:
    chain = built([8, 8, 8], [(), (0,), (1,)], (2,), in_place=True)
    solution = solve(Request(chain, 8))
    assert (solution.status, solution.live_peak_bytes) == ("optimal", 8)
    assert solve(Request(built([8, 8, 8], [(), (0,), (1,)], (2,)), 8)).status == "infeasible"


def test_nodes_that_run_once_are_held() -> None:
    reads = [(), (0,), (1,), (0, 2)]
    free = solve(Request(built([4, 4, 4, 1], reads, (3,)), 9))
    assert free.sequence == (0, 1, 2, 0, 3)
    assert solve(Request(built([4, 4, 4, 1], reads, (3,), once=(0,)), 9)).status == "infeasible"


def test_infeasible_though_every_step_fits() -> None:
    # No single step needs more than 21 bytes, but n3 reads two tensors that cannot be made beside each other.
    problem = built([10, 10, 1, 1, 1, 1], [(), (), (0,), (1,), (0, 1), (4,)], (5,), once=(0, 1))
    assert solve(Request(problem, 22)).status == "optimal"
    tight = built([5, 9, 1, 9, 1, 1], [(), (0,), (1,), (0,), (2, 3), (0, 4)], (5,))
    for capacity in range(15, 26):
        truth = cheapest_staged(tight, capacity)
        solution = solve(Request(tight, capacity))
        assert (solution.cost_ns, solution.status == "infeasible") == (truth, truth is None)


def large(byte_unit: int, cost_unit: int) -> Problem:
    """Sizes up to 1.5 * 2^34 and costs of a second, divided by the units."""
    sizes = [8589934592, 12884901888, 8589934593, 5368709120, 15032385536, 8589934589]
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5), (1, 4)]
    nodes = tuple(
        Node(f"n{v}", "Op", tuple(a for a, b in edges if b == v), (v,), (1_000_000_000 + 7 * v) // cost_unit)
        for v in range(6)
    )
    tensors = tuple(Tensor(f"n{v}", size // byte_unit, "activation", producer=v) for v, size in enumerate(sizes))
    return Problem("large", nodes, tensors, ())


def test_large_coefficients_give_the_answer_of_small_ones() -> None:
    problem, small = large(1, 1), large(2**20, 1_000_000)
    peak = store_all_peak(problem)
    for capacity in (25769803776, 33285996544, 34359738368, peak - 2**20, peak):
        solution, scaled = solve(Request(problem, capacity)), solve(Request(small, capacity // 2**20))
        assert (solution.status, solution.sequence) == (scaled.status, scaled.sequence)


def test_a_schedule_that_misses_by_less_than_the_rounding_is_not_taken() -> None:
    problem = large(1, 1)
    solution = solve(Request(problem, store_all_peak(problem) - 1))
    assert (solution.status, solution.cost_ns) == ("optimal", 7_000_000_105)


def test_sizes_near_the_limit_do_not_overflow() -> None:
    problem = built([2**58, 2**58 - 1, 2**58, 1], [(), (0,), (1,), (0, 2)], (3,))
    solution = solve(Request(problem, 2**59 + 10))
    assert (solution.status, solution.sequence) == ("optimal", (0, 1, 2, 0, 3))
    knife = solve(Request(problem, 3 * 2**58 - 2))
    assert knife.sequence == (0, 1, 2, 0, 3)


def test_a_graph_that_is_too_large_is_refused_at_once() -> None:
    chain = built([4] * 3000, [() if v == 0 else (v - 1,) for v in range(3000)], (0, 2999))
    solution = solve(Request(chain, 12))
    assert solution.status == "unknown"
    assert f"3000 nodes has {count_booleans(chain)} Booleans" in solution.message
    assert "use auto or greedy" in solution.message
    assert count_booleans(chain) > 10_000_000


def test_the_count_is_that_of_the_model() -> None:
    for name in ("linear16_unit", "unet"):
        problem = network(name)
        model = build(problem, store_all_peak(problem))
        # Frees that can never be legal are left out of the model, not of the count.
        assert 0.85 * count_booleans(problem) < model.n_booleans <= count_booleans(problem)


def test_hints_satisfy_every_row() -> None:
    problem = network("linear16_skew")
    model = build(problem, store_all_peak(problem))
    values = assignment_of(model, runs_from_holds(problem, store_all_holds(problem)).stages)
    assert all(values[variable] == 1 for variable in model.fixed)
    for row in [*model.rows, *without_live(model)]:
        total = sum(coefficient * values[variable] for variable, coefficient in row.terms)
        assert row.low is None or row.low <= total
        assert row.high is None or total <= row.high


@pytest.mark.parametrize("wrong", ["infeasible", "bound"])
def test_answers_that_a_known_schedule_contradicts_prove_nothing(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    asked: list[bool] = []

    def lie(*arguments: object, presolve: bool = True, **rest: object) -> Answer:
        asked.append(presolve)
        if wrong == "infeasible":
            return Answer("infeasible", None, 0)
        truth = cpsat.minimise(*arguments, presolve=presolve, **rest)  # type: ignore[arg-type]
        return replace(truth, bound=truth.bound * 2)

    monkeypatch.setattr(checkmate, "minimise", lie)
    problem = tanh_training_chain()
    solution = solve(Request(problem, 4096))
    assert asked == [True, False]
    assert solution.status == ("unknown" if wrong == "infeasible" else "feasible")
    assert solution.lower_bound_ns == problem.total_cost_ns


def test_infeasible_needs_two_runs_that_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        checkmate,
        "minimise",
        lambda *_, presolve, **__: Answer("infeasible" if presolve else "unknown", None, 0),
    )
    monkeypatch.setattr(checkmate, "best_start", lambda _: None)
    assert solve(Request(tanh_training_chain(), 4096)).status == "unknown"


def test_an_interrupted_search_is_not_passed_off_as_a_finished_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # CP-SAT takes the signal itself and then returns what it has; a solver that stops at once looks the same.
    real = cpsat._solver

    def stopped(request: Request, n_booleans: int, presolve: bool) -> object:
        solver = real(request, n_booleans, presolve)
        solver.parameters.stop_after_first_solution = True
        return solver

    monkeypatch.setattr(cpsat, "_solver", stopped)
    with pytest.raises(KeyboardInterrupt):
        solve(at_percent(network("linear16_unit"), 50))


def test_time_limit_returns_what_there_is() -> None:
    problem = network("linear16_unit")
    request = replace(at_percent(problem, 30), time_limit_s=2.0)
    solution = solve(request)
    assert solution.status == "feasible"
    assert solution.sequence is not None
    assert replay_sequence(problem, solution.sequence).peak_bytes <= request.capacity_bytes
    assert solution.message.startswith("started from ")
