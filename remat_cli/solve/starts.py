"""Schedules to begin from: quick ones that fit the capacity, for solvers that want a hint or a second opinion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from remat_cli.memory import IllegalStepError, replay_sequence
from remat_cli.problem import Problem
from remat_cli.solve import greedy
from remat_cli.solve.baselines import chen_sequences
from remat_cli.solve.repair import fit
from remat_cli.solve.stages import holds_from_stages, runs_from_holds, stages_of, store_all_holds
from remat_cli.solve.types import Request


@dataclass(frozen=True)
class Start:
    """A schedule that fits. `stages` in the normal form: ascending within a stage, the fewest runs for its holds."""

    name: str
    stages: tuple[tuple[int, ...], ...]
    cost_ns: int

    @property
    def sequence(self) -> tuple[int, ...]:
        """The order of computes."""
        return tuple(v for stage in self.stages for v in stage)


def best_start(request: Request) -> Start | None:
    """The cheapest that fits of store-all, the warm start, repaired store-all, greedy, Chen's; ties go to the first."""
    best: Start | None = None
    for name, sequence in _sequences(request):
        start = as_start(request.problem, request.capacity_bytes, name, sequence)
        if start is not None and (best is None or start.cost_ns < best.cost_ns):
            best = start
    return best


def as_start(problem: Problem, capacity_bytes: int, name: str, sequence: tuple[int, ...]) -> Start | None:
    """`sequence` in stages, useless runs left out; None when it does not fit or first computes nodes out of order."""
    stages = stages_of(problem, sequence)
    if stages is None:
        return None
    runs = runs_from_holds(problem, holds_from_stages(problem, stages))
    if runs.blocked:
        return None
    try:
        timeline = replay_sequence(problem, runs.sequence)
    except IllegalStepError:
        return None
    return Start(name, runs.stages, timeline.compute_ns) if timeline.peak_bytes <= capacity_bytes else None


def _sequences(request: Request) -> Iterator[tuple[str, tuple[int, ...]]]:
    problem = request.problem
    yield "store-all", tuple(range(len(problem.nodes)))
    if request.warm_start is not None:
        yield "the warm start", request.warm_start
    repaired = fit(problem, store_all_holds(problem), request.capacity_bytes)
    if repaired is not None:
        yield "repaired store-all", repaired
    found = greedy.solve(request)
    if found.sequence is not None:
        yield "greedy", found.sequence
    for sequence in chen_sequences(problem):
        yield "Chen's schedule", sequence
