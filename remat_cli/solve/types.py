"""What a solver is asked, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from remat_cli.problem import Problem, Solution
from remat_cli.reporter import Reporter

Effort = Literal["quick", "normal", "thorough"]


@dataclass(frozen=True)
class Request:
    """Find the cheapest schedule of `problem` with at most `capacity_bytes` live at any step.

    `effort` is deterministic work, not time: the same request gives the same answer on any machine.
    `time_limit_s`: the explicit, non-reproducible override. `warm_start`: a legal sequence of computes to begin from,
    whatever its peak.
    """

    problem: Problem
    capacity_bytes: int
    seed: int = 0
    effort: Effort = "normal"
    time_limit_s: float | None = None
    warm_start: tuple[int, ...] | None = None
    reporter: Reporter = field(default_factory=Reporter)


Method = Callable[[Request], Solution]
