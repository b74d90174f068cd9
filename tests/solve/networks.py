"""Problems that the solver tests share: benchmark networks, and small ones made by hand."""

from __future__ import annotations

from pathlib import Path

from remat_cli.memory import replay_sequence
from remat_cli.problem import Node, Problem, Tensor
from remat_cli.problem_file import read_problem
from remat_cli.solve.types import Effort, Request

FOLDER = Path(__file__).parents[1] / "data" / "problems"


def network(name: str) -> Problem:
    return read_problem(FOLDER / f"{name}.json")


def store_all_peak(problem: Problem) -> int:
    return replay_sequence(problem, range(len(problem.nodes))).peak_bytes


def at_percent(problem: Problem, percent: int, effort: Effort = "normal") -> Request:
    """A request for that share of the store-all peak."""
    return Request(problem, store_all_peak(problem) * percent // 100, effort=effort)


def built(
    sizes: list[int],
    reads: list[tuple[int, ...]],
    kept: tuple[int, ...],
    *,
    once: tuple[int, ...] = (),
    in_place: bool = False,
    costs: list[int] | None = None,
) -> Problem:
    """One output a node; node v reads the outputs of the nodes in ``reads[v]``."""
    nodes = tuple(
        Node(
            f"n{v}",
            "Op",
            inputs,
            (v,),
            cost_ns=costs[v] if costs else 1,
            recomputable=v not in once,
            in_place_inputs=inputs[:1] if in_place else (),
        )
        for v, inputs in enumerate(reads)
    )
    tensors = tuple(Tensor(f"n{v}", size, "activation", producer=v) for v, size in enumerate(sizes))
    return Problem("built", nodes, tensors, kept)


def tanh_training_chain() -> Problem:
    """Four Tanh forward (f0 .. f3) and their gradients: g3(f2, f3), g2(f1, g3), g1(f0, g2), g0(x, g1); 1024 bytes and
    cost 1 each, g0 kept, the input x not counted."""
    return built([1024] * 8, [(), (0,), (1,), (2,), (2, 3), (1, 4), (0, 5), (6,)], (7,))
