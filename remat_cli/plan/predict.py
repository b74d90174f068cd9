"""What a plan promises: the figures of `predicted`, found by replay and placement. `check` finds them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.memory import Step, Timeline, replay, replay_sequence
from remat_cli.plan.placement import Placement, place
from remat_cli.plan.types import PlanPredicted
from remat_cli.problem import Problem


@dataclass(frozen=True)
class Prediction:
    """The figures, and the replay and placement that they come from."""

    predicted: PlanPredicted
    timeline: Timeline
    placement: Placement


def predict(
    problem: Problem,
    steps: Sequence[Step],
    *,
    workspace_bytes: int,
    per_step: bool,
    placement: Placement | None = None,
) -> Prediction:
    """Replay and place `steps`. Raises IllegalStepError at the first illegal step.

    `workspace_bytes`: the largest of any node, rounded up. `per_step`: it counts during each node's own step, in the
    replay, and is no part of `problem.fixed_bytes`. `placement` of these very steps spares finding it again.
    """
    timeline = replay(problem, steps)
    store_all = replay_sequence(problem, range(len(problem.nodes)))
    placement = placement or place(problem, steps)
    needed = timeline.peak_bytes if per_step else placement.arena_bytes
    predicted = PlanPredicted(
        peak_bytes=problem.fixed_bytes + needed,
        live_peak_bytes=timeline.peak_bytes,
        arena_bytes=placement.arena_bytes,
        fixed_bytes=problem.fixed_bytes,
        workspace_bytes=workspace_bytes,
        compute_ns=timeline.compute_ns,
        store_all_ns=store_all.compute_ns,
        store_all_peak_bytes=problem.fixed_bytes + store_all.peak_bytes,
        recomputed=timeline.recomputed,
    )
    return Prediction(predicted, timeline, placement)
