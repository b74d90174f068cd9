"""What the operating system says about this process' memory."""

from __future__ import annotations

import ctypes
import gc
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MeasuredBy = Literal["VmHWM", "ru_maxrss", "nothing"]
_STATUS = Path("/proc/self/status")
_ROLLUP = Path("/proc/self/smaps_rollup")
_CLEAR_REFS = Path("/proc/self/clear_refs")
# Linux: writing this makes the high-water mark of resident memory start again from now (man 5 proc).
_RESET_HIGH_WATER = "5"


class PeakMeter:
    """The most memory that this process took above what it had when the meter was made.

    On Linux: the kernel's high-water mark (VmHWM), less mapped files. The code of a library is paged in by the first
    step that runs it: it belongs to no budget, and would blur the peaks of small graphs. Elsewhere: getrusage, whose
    mark cannot be reset, so that memory which was taken and returned before the start hides as much of the peak.
    `measured_by` says which.
    """

    def __init__(self) -> None:
        settle()
        self.measured_by: MeasuredBy = _method()
        self.peak_bytes = 0
        if self.measured_by == "VmHWM":
            self._baseline = _resident().own
            self.reset()
        else:
            self._baseline = _max_rss()

    def reset(self) -> None:
        """Forget the high-water mark: call it after work that must not count."""
        if self.measured_by == "VmHWM":
            _CLEAR_REFS.write_text(_RESET_HIGH_WATER)

    def sample(self) -> int:
        """Take the mark since the last reset into `peak_bytes`, and return that."""
        if self.measured_by == "VmHWM":
            now = _resident()
            peak = max(now.high - now.others, now.own) - self._baseline
        else:
            peak = _max_rss() - self._baseline
        self.peak_bytes = max(self.peak_bytes, peak)
        return self.peak_bytes


def settle() -> None:
    """Give memory that is free inside this process back to the system: used again, it would not be counted."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


@dataclass(frozen=True)
class _Resident:
    """Resident bytes: `high`: the most since the last reset. `own`: memory of this process alone, counted page by page.
    `others`: mapped files and shared memory."""

    high: int
    own: int
    others: int


def _method() -> MeasuredBy:
    try:
        _CLEAR_REFS.write_text(_RESET_HIGH_WATER)
        _resident()
    except (OSError, KeyError, ValueError):
        return "nothing" if sys.platform == "win32" else "ru_maxrss"
    return "VmHWM"


def _resident() -> _Resident:
    status, rollup = _kibibytes(_STATUS), _kibibytes(_ROLLUP)
    return _Resident(status["VmHWM"], rollup["Anonymous"], status["RssFile"] + status["RssShmem"])


def _kibibytes(path: Path) -> dict[str, int]:
    """The lines ``Name: 123 kB`` of a file, in bytes."""
    found = {}
    for line in path.read_text().splitlines():
        words = line.split()
        if len(words) == 3 and words[2] == "kB":
            found[words[0].removesuffix(":")] = int(words[1]) * 1024
    return found


def _max_rss() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
