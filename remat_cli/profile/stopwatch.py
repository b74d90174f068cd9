"""Timing of nodes: medians over a few rounds, with the caches as a step of a real run finds them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from remat_cli.ort_session import Device
from remat_cli.profile.entries import Entry
from remat_cli.profile.hardware import private_cache_bytes

# Rounds lie seconds apart, so that a burst of other work on the machine spoils one of them and not the median.
ROUNDS = 3
ROUND_NS = 5_000_000
MOST_RUNS = 8
# Nodes slower than this get one run a round.
SLOW_NS = 100_000_000
# On CUDA, launches are queued until they fill this time; the launch itself then hides behind the kernels.
BATCH_NS = 200_000
MOST_BATCHED = 50


@dataclass
class _Timed:
    entry: Entry
    run: Callable[[], None]
    wait: Callable[[], None]
    batch: int
    samples: list[int] = field(default_factory=list)


class Stopwatch:
    """A `Meter` of time. Results are sent by `finish`: median and interquartile range of all runs, in ns.

    On the CPU the private caches are swept before each run: a node of a real step finds its inputs where an earlier
    node left them, and its kernel's code and tables gone.
    """

    def __init__(self, device: Device, threads: int, send: Callable[..., None]) -> None:
        self._device = device
        self._clock = clock_for(device, threads)
        self._send = send
        self._timed: list[_Timed] = []
        sweep_bytes = private_cache_bytes() if device.kind == "cpu" else 0
        self._sweep = np.zeros(2 * sweep_bytes // 8, np.float64)

    def add(self, entry: Entry, run: Callable[[], None], wait: Callable[[], None]) -> None:
        run()
        wait()
        timed = _Timed(entry, run, wait, self._batch(run, wait))
        self._round(timed)
        self._timed.append(timed)

    def add_with_values(self, entry: Entry, run: Callable[[], None]) -> None:
        """All rounds at once: the values will not be there later."""
        run()
        timed = _Timed(entry, run, _nothing, 1)
        for _ in range(ROUNDS):
            self._round(timed)
        self._report(timed)

    def finish(self) -> None:
        for _ in range(ROUNDS - 1):
            for timed in self._timed:
                self._round(timed)
        for timed in self._timed:
            self._report(timed)

    def _batch(self, run: Callable[[], None], wait: Callable[[], None]) -> int:
        if self._device.kind == "cpu":
            return 1
        return max(1, min(MOST_BATCHED, BATCH_NS // max(self._elapsed(run, wait, 1), 1)))

    def _round(self, timed: _Timed) -> None:
        total = 0
        for _ in range(MOST_RUNS):
            self._sweep += 1.0
            sample = self._elapsed(timed.run, timed.wait, timed.batch)
            timed.samples.append(sample)
            total += sample * timed.batch
            if total >= ROUND_NS and (total >= SLOW_NS or len(timed.samples) > 1):
                break
        self._send("progress")

    def _elapsed(self, run: Callable[[], None], wait: Callable[[], None], batch: int) -> int:
        """Nanoseconds a run, over `batch` runs queued together."""
        begin = self._clock()
        for _ in range(batch):
            run()
        wait()
        return (self._clock() - begin) // batch

    def _report(self, timed: _Timed) -> None:
        median, spread = median_and_spread(timed.samples)
        self._send("time", timed.entry.node.id, median, spread)


def clock_for(device: Device, threads: int) -> Callable[[], int]:
    """A clock in ns. One thread on the CPU is timed by what it ran, not by what passed: other work on the machine
    then only costs it cache. The thread's clock is not fine enough everywhere."""
    if device.kind == "cpu" and threads == 1 and time.get_clock_info("thread_time").resolution <= 1e-6:
        return time.thread_time_ns
    return time.perf_counter_ns


def _nothing() -> None:
    """The run is done when it returns."""


def median_and_spread(samples: Sequence[int]) -> tuple[int, int]:
    """Median and interquartile range (third quartile - first quartile), each an element of `samples` or their
    difference; ValueError without samples."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    count = len(ordered)
    return ordered[count // 2], ordered[min(3 * count // 4, count - 1)] - ordered[count // 4]
