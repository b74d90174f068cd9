"""The one way out for every method: a schedule becomes a `Solution` only after the oracle has replayed it."""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.errors import InternalError
from remat_cli.memory import IllegalStepError, Timeline, replay_sequence
from remat_cli.problem import Problem, Solution, Status
from remat_cli.solve.types import Request

LIVE_BYTES = "live bytes"


def measured(problem: Problem, sequence: Sequence[int], method: str) -> Timeline:
    """The oracle's replay of a method's schedule. Raises InternalError when the schedule is illegal."""
    try:
        return replay_sequence(problem, sequence)
    except IllegalStepError as fault:
        raise InternalError(f"{method} made an illegal schedule of {problem.name}: {fault}") from fault


def finish(
    request: Request,
    method: str,
    sequence: Sequence[int] | None,
    status: Status,
    scope: str = LIVE_BYTES,
    lower_bound_ns: int | None = None,
    message: str = "",
) -> Solution:
    """The `Solution` of `method`, with cost and peak as the oracle sees them.

    `sequence` is None exactly when `status` is "infeasible" or "unknown". Raises InternalError when the oracle rejects
    the sequence, when it needs more than the capacity, or when it costs less than its own lower bound: a wrong
    schedule or a wrong proof must never leave a solver.
    """
    if (sequence is None) != (status in ("infeasible", "unknown")):
        raise InternalError(f"{method} says {status} {'without' if sequence is None else 'with'} a schedule")
    if sequence is None:
        return Solution(method, status, lower_bound_ns=lower_bound_ns, scope=scope, message=message)
    timeline = measured(request.problem, sequence, method)
    if timeline.peak_bytes > request.capacity_bytes:
        raise InternalError(
            f"{method} made a schedule of {request.problem.name} that needs {timeline.peak_bytes} bytes"
            f" of {request.capacity_bytes}"
        )
    if lower_bound_ns is not None and timeline.compute_ns < lower_bound_ns:
        raise InternalError(
            f"{method} made a schedule of {request.problem.name} that costs {timeline.compute_ns} ns, less than"
            f" its lower bound of {lower_bound_ns} ns"
        )
    return Solution(
        method=method,
        status=status,
        sequence=tuple(sequence),
        cost_ns=timeline.compute_ns,
        live_peak_bytes=timeline.peak_bytes,
        lower_bound_ns=lower_bound_ns,
        scope=scope,
        message=message,
    )
