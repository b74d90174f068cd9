"""Deterministic work instead of time: the same request does the same work on any machine."""

from __future__ import annotations

import time
from dataclasses import dataclass

from remat_cli.solve.types import Request

# One unit is about a microsecond of the heuristics' inner loops on a desktop core of the 2020s.
UNITS = {"quick": 1_500_000, "normal": 12_000_000, "thorough": 100_000_000}
_UNITS_PER_S = 1_000_000
# Problems of fewer tensors get a share of the effort.
_LARGE = 100
_ENDLESS = 1 << 62


@dataclass(slots=True)
class Work:
    """Units of work done so far, and how many are allowed. `deadline_s`: a `time.monotonic` instant that ends it too.

    `begun_s` is when a clocked allowance began.
    """

    limit: int
    done: int = 0
    begun_s: float = 0.0
    deadline_s: float | None = None

    @staticmethod
    def endless() -> Work:
        """No limit."""
        return Work(_ENDLESS)

    @staticmethod
    def of(request: Request) -> Work:
        """What `request.effort` allows, less for small problems; a time limit replaces it by the clock."""
        if request.time_limit_s is None:
            size = min(len(request.problem.tensors), _LARGE)
            return Work(UNITS[request.effort] * size // _LARGE)
        now = time.monotonic()
        return Work(_ENDLESS, 0, now, now + request.time_limit_s)

    def spent(self) -> bool:
        """True when nothing is left."""
        if self.done >= self.limit:
            return True
        return self.deadline_s is not None and time.monotonic() >= self.deadline_s

    def left(self) -> int:
        """Units that are left; by the clock when there is a deadline."""
        if self.deadline_s is None:
            return max(self.limit - self.done, 0)
        return max(int((self.deadline_s - time.monotonic()) * _UNITS_PER_S), 0)

    def fraction(self) -> float:
        """How much of the allowance is used, 0 to 1; by the clock when there is a deadline."""
        if self.deadline_s is None:
            return min(self.done / self.limit, 1.0) if self.limit else 1.0
        span = self.deadline_s - self.begun_s
        return min((time.monotonic() - self.begun_s) / span, 1.0) if span > 0 else 1.0

    def share(self, part: float) -> Work:
        """An allowance of `part` of what is left, which begins now."""
        if self.deadline_s is None:
            return Work(int(self.left() * part))
        now = time.monotonic()
        return Work(_ENDLESS, 0, now, now + max(self.deadline_s - now, 0.0) * part)
