"""Deterministic work instead of time: the same request does the same work on any machine."""

from __future__ import annotations

import time
from dataclasses import dataclass

from remat_cli.solve.types import Effort, Request

# One unit is about one microsecond of the heuristics on a 2020s desktop core.
UNITS = {"quick": 2_000_000, "normal": 12_000_000, "thorough": 100_000_000}


@dataclass(slots=True)
class Work:
    """Work done so far, in units, and where it ends. `deadline_s` is a `time.monotonic` instant, or None."""

    limit: int
    done: int = 0
    deadline_s: float | None = None

    def spent(self) -> bool:
        """True when the work limit or the deadline has passed."""
        if self.done >= self.limit:
            return True
        return self.deadline_s is not None and time.monotonic() >= self.deadline_s

    def part(self, units: int) -> Work:
        """A smaller allowance that starts now; the caller adds what it used with `charge`."""
        return Work(min(units, max(self.limit - self.done, 0)), 0, self.deadline_s)

    def charge(self, part: Work) -> None:
        """Add the work of `part`."""
        self.done += part.done


def allowance(request: Request) -> Work:
    """The work that `request.effort` allows. A time limit replaces it: only the clock counts then."""
    if request.time_limit_s is not None:
        return Work(1 << 62, 0, time.monotonic() + request.time_limit_s)
    return Work(UNITS[request.effort])


def effort_units(effort: Effort) -> int:
    """Work units of an effort."""
    return UNITS[effort]
