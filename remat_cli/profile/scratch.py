"""How much scratch memory a kernel takes while it runs, to the page.

All memory of the process comes from one heap that never gives pages back by itself (`HEAP_ENVIRONMENT`, which the
C library reads when the process starts). Free pages are handed back first; then the resident pages that one run adds
are those that its kernel took, even though it has freed them again. Kernel counters such as VmHWM would be
simpler, but they are kept in batches of pages a processor and are wrong by hundreds of KiB.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

from remat_cli.profile.entries import Entry
from remat_cli.profile.workspace import GRANULARITY_BYTES
from remat_cli.units import align

HEAP_ENVIRONMENT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**46),
    "MALLOC_TOP_PAD_": "0",
    "MALLOC_ARENA_MAX": "1",
}
# A run without any scratch still touches a page or two of the heap, and one beside any block it takes.
NOISE_BYTES = 8 * 1024
HEAP_PAGE_BYTES = 4 * 1024
_ROLLUP = Path("/proc/self/smaps_rollup")
_PR_SET_THP_DISABLE = 41


def missing_feature() -> str:
    """Why this system cannot measure scratch, or "" when it can."""
    if sys.platform != "linux":
        return f"{sys.platform} has no /proc/self/smaps_rollup"
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        return "the C library has no malloc_trim"
    try:
        resident_bytes()
    except OSError as error:
        return f"{_ROLLUP}: {error.strerror}"
    return ""


def resident_bytes() -> int:
    """Resident memory of this process, counted page by page. OSError where the kernel does not tell."""
    for line in _ROLLUP.read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise OSError(0, "no line Rss")


def rounded_scratch(added_bytes: int) -> int:
    """`added_bytes` without noise, rounded up so that repeated measurements agree."""
    if added_bytes <= NOISE_BYTES:
        return 0
    return align(added_bytes - HEAP_PAGE_BYTES, GRANULARITY_BYTES)


class ScratchMeter:
    """A `Meter` of scratch memory; works only in a process that was started with `HEAP_ENVIRONMENT`."""

    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send
        self._libc = ctypes.CDLL(None)
        # Huge pages would make every first touch count as 2 MiB.
        self._libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)

    def add(self, entry: Entry, run: Callable[[], None], wait: Callable[[], None]) -> None:
        self._measure(entry, run, 0)

    def add_with_values(self, entry: Entry, run: Callable[[], None]) -> None:
        """The outputs come from the heap as well: they are taken off."""
        self._measure(entry, run, sum(operand.tensor.size_bytes for operand in entry.outputs))

    def finish(self) -> None:
        """Everything has been sent already."""

    def _measure(self, entry: Entry, run: Callable[[], None], output_bytes: int) -> None:
        run()
        # A kernel takes the same each time; what else touches the heap comes and goes.
        added = sorted(self._added_by(run) for _ in range(3))[1]
        self._send("scratch", entry.node.id, rounded_scratch(added - output_bytes))
        self._send("progress")

    def _added_by(self, run: Callable[[], None]) -> int:
        self._libc.malloc_trim(0)
        before = resident_bytes()
        run()
        return resident_bytes() - before
