"""The methods by name. Nothing here imports a solver: a method's module is loaded when the method runs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Literal, cast

from remat_cli.errors import InputError
from remat_cli.problem import Solution
from remat_cli.solve.types import Method, Request

MethodKind = Literal["exact", "heuristic"]


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """One method. `target` is ``module:function``; exact methods prove optimality when their effort suffices."""

    name: str
    target: str
    kind: MethodKind
    summary: str

    def load(self) -> Method:
        """The method's function; imports its module."""
        module, _, function = self.target.partition(":")
        return cast(Method, getattr(import_module(module), function))


_METHODS = (
    MethodInfo("auto", "remat_cli.solve.auto:solve", "exact", "picks and combines methods by size and effort"),
    MethodInfo("store-all", "remat_cli.solve.baselines:store_all", "heuristic", "keeps everything; no recompute"),
    MethodInfo(
        "chen-sqrt",
        "remat_cli.solve.baselines:chen_sqrt",
        "heuristic",
        "checkpoints about every sqrt(n)-th node (Chen et al. 2016)",
    ),
    MethodInfo(
        "chen-greedy",
        "remat_cli.solve.baselines:chen_greedy",
        "heuristic",
        "checkpoints by segment bytes, best segment size (Chen et al. 2016)",
    ),
    MethodInfo(
        "checkmate",
        "remat_cli.solve.checkmate:solve",
        "exact",
        "the Checkmate MILP (Jain et al. 2020) in CP-SAT; up to about 130 nodes",
    ),
    MethodInfo(
        "rounding",
        "remat_cli.solve.rounding:solve",
        "heuristic",
        "Checkmate's LP relaxation with two-phase rounding; up to about 200 nodes",
    ),
    MethodInfo(
        "greedy",
        "remat_cli.solve.greedy:solve",
        "heuristic",
        "evicts the best bytes per recompute cost until it fits; any size",
    ),
    MethodInfo(
        "local",
        "remat_cli.solve.local:solve",
        "heuristic",
        "greedy, then ruin and recreate and annealing for the whole effort; any size",
    ),
)


def methods() -> tuple[MethodInfo, ...]:
    """All methods, in the order that help and error messages list them."""
    return _METHODS


def find_method(name: str) -> MethodInfo:
    """The method called `name`. Raises InputError that lists all names."""
    for info in _METHODS:
        if info.name == name:
            return info
    known = ", ".join(info.name for info in _METHODS)
    raise InputError(f"there is no solve method {name!r}", f"use one of {known}")


def run_method(name: str, request: Request) -> Solution:
    """Solve `request` with the method called `name`. Raises InputError when there is no such method."""
    return find_method(name).load()(request)
