"""Medians, rounds, and what the machine says of its caches."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_models import load_text

from remat_cli.ort_session import Device
from remat_cli.profile.entries import distinct_entries
from remat_cli.profile.hardware import private_cache_bytes, processor_name, shared_cache_bytes
from remat_cli.profile.stopwatch import MOST_RUNS, ROUNDS, Stopwatch, clock_for, median_and_spread


@pytest.mark.parametrize(
    ("samples", "median", "spread"),
    [([5], 5, 0), ([1, 9], 9, 8), ([3, 1, 2], 2, 2), ([1, 2, 3, 4, 5, 6, 7, 8], 5, 4), ([7] * 10 + [10**9], 7, 0)],
)
def test_median_and_spread(samples: list[int], median: int, spread: int) -> None:
    assert median_and_spread(samples) == (median, spread)


@given(st.lists(st.integers(0, 10**12), min_size=1))
def test_half_of_the_samples_lie_on_either_side(samples: list[int]) -> None:
    median, spread = median_and_spread(samples)
    assert sum(s <= median for s in samples) * 2 >= len(samples)
    assert sum(s >= median for s in samples) * 2 >= len(samples)
    assert 0 <= spread <= max(samples) - min(samples)


def test_no_samples() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_and_spread([])


def test_rounds_warm_up_and_messages(tmp_path: Path) -> None:
    entries, _ = distinct_entries(load_text(tmp_path, "g (float[2] x) => (float[2] y) { a = Relu(x)  y = Neg(a) }"))
    sent: list[tuple[Any, ...]] = []
    runs = {"a": 0, "y": 0}

    def count(name: str) -> None:
        runs[name] += 1

    stopwatch = Stopwatch(Device(), 1, lambda *message: sent.append(message))
    for entry in entries:
        stopwatch.add(entry, lambda name=entry.node.id: count(name), lambda: None)  # type: ignore[misc]
    assert sent == [("progress",)] * 2
    stopwatch.finish()
    assert [message[0] for message in sent] == ["progress"] * 2 * ROUNDS + ["time"] * 2
    assert runs == {"a": 1 + ROUNDS * MOST_RUNS, "y": 1 + ROUNDS * MOST_RUNS}


def test_slow_nodes_run_seldom(tmp_path: Path) -> None:
    entries, _ = distinct_entries(load_text(tmp_path, "g (float[2] x) => (float[2] y) { y = Neg(x) }"))
    runs = []
    stopwatch = Stopwatch(Device(), 2, lambda *message: None)  # two threads: real time
    stopwatch.add(entries[0], lambda: (runs.append(1), time.sleep(0.12))[0], lambda: None)
    assert len(runs) == 2
    stopwatch.finish()
    assert len(runs) == 1 + ROUNDS


def test_one_thread_is_timed_by_what_it_ran() -> None:
    clock = clock_for(Device(), 1)
    if clock is not time.thread_time_ns:
        pytest.skip("the thread's clock is too coarse here")
    begin = clock()
    time.sleep(0.05)
    assert clock() - begin < 20_000_000
    assert clock_for(Device(), 2) is time.perf_counter_ns
    assert clock_for(Device("cuda"), 1) is time.perf_counter_ns


def test_cache_sizes(tmp_path: Path) -> None:
    for index, (level, size) in enumerate([("1", "32K"), ("2", "512K"), ("3", "16M")]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "level").write_text(f"{level}\n")
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert private_cache_bytes(tmp_path) == 512 * 2**10
    assert shared_cache_bytes(tmp_path) == 16 * 2**20
    (tmp_path / "index2" / "size").write_text("2048M\n")
    assert shared_cache_bytes(tmp_path) == 128 * 2**20
    (tmp_path / "index1" / "size").write_text("big\n")
    assert private_cache_bytes(tmp_path) == 2**20
    assert private_cache_bytes(tmp_path / "missing") == 2**20


def test_processors_have_names() -> None:
    assert isinstance(processor_name(Device()), str)
