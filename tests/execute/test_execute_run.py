"""`remat run` end to end: children, measured peaks, comparisons, files, and what goes wrong on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from execute_plans import Plain, dropping, load, plan_for, problem_for, same, save, training_model, value
from onnx import TensorProto, helper

from remat_cli.errors import CheckFailed, DeviceError, InputError, InternalError
from remat_cli.execute.child import run_child
from remat_cli.execute.job import Job, Report
from remat_cli.execute.prepare import prepare
from remat_cli.execute.run import Comparison, PeakBytes, RunRequest, RunResult, StepTimes, run_plan
from remat_cli.model.feeds import seeded_feeds
from remat_cli.plan.files import write_plan
from remat_cli.plan.types import Plan

MIB = 2**20


@pytest.fixture
def training(tmp_path: Path) -> tuple[Path, Plan]:
    """A model of about 8 MiB and a plan of it that recomputes, written beside it."""
    graph = load(training_model(tmp_path / "train.onnx", layers=4, batch=512, width=512))
    plan = plan_for(graph, dropping(problem_for(graph), 3))
    assert plan.predicted.recomputed > 0
    write_plan(plan, tmp_path / "train.plan.json")
    return tmp_path / "train.plan.json", plan


def test_run_measures_and_compares(training: tuple[Path, Plan], tmp_path: Path) -> None:
    path, plan = training
    result = run_plan(RunRequest(path, iterations=3, compare=True, outputs=tmp_path / "out.npz"))
    assert (result.engine, result.device, result.iterations) == ("arena", "cpu", 3)
    assert result.recomputed == plan.predicted.recomputed
    assert result.peak_bytes.predicted == plan.predicted.peak_bytes
    assert 0 < result.step_ns.min <= result.step_ns.median <= result.step_ns.max
    compare = result.compare
    assert compare is not None
    assert (compare.identical, compare.max_abs_diff, compare.note) == (True, 0.0, "")
    assert compare.default_ort_step_ns is not None
    assert compare.time_ratio == round(result.step_ns.median / compare.plain_step_ns, 4)
    if sys.platform == "linux":
        assert result.peak_bytes.measured_by == "VmHWM"
        measured = result.peak_bytes.measured
        assert measured is not None
        assert 0.9 <= measured / plan.predicted.peak_bytes <= 1.1
        assert compare.plain_peak_bytes is not None
        result.raise_over_budget()
    graph = load(tmp_path / "train.onnx")
    feeds = seeded_feeds(graph)
    plain = Plain(graph)
    for _ in range(3):
        expected = plain.step(feeds)
        feeds |= {source: expected[name] for name, source in graph.state.items()}
    with np.load(tmp_path / "out.npz") as archive:
        assert same(dict(archive), expected)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is returned with madvise")
def test_scratch_of_both_kinds_stays_within_the_workspace(tmp_path: Path) -> None:
    # Where takes twice its output from the shared allocator, ScatterElements a copy of its indices from the C heap.
    count = 2 * MIB
    nodes = [
        helper.make_node("Where", ["c", "x", "x"], ["w"]),
        helper.make_node("ScatterElements", ["w", "i", "w"], ["s"], axis=0),
        helper.make_node("Where", ["c", "s", "w"], ["y"]),
    ]
    inputs = [value("c", [count], TensorProto.BOOL), value("x", [count]), value("i", [count], TensorProto.INT64)]
    graph = load(save(tmp_path / "m.onnx", nodes, inputs, [value("y", [count])]))
    plan = plan_for(graph, workspace={"w": 8 * count, "s": 8 * count, "y": 8 * count})
    write_plan(plan, tmp_path / "p.json")
    result = run_plan(RunRequest(tmp_path / "p.json", iterations=3))
    measured = result.peak_bytes.measured
    assert measured is not None
    assert 0.99 <= measured / plan.predicted.peak_bytes <= 1.01
    assert not result.over_budget


def test_the_json_has_the_documented_keys() -> None:
    peak = PeakBytes(10, 9, 12, "VmHWM")
    result = RunResult("arena", "cpu", 1, StepTimes(5, 4, 6), peak, 0, Comparison(True, 0.0, 5, 1.0, 20, None))
    document = json.loads(msgspec.json.encode(result))
    assert list(document) == ["engine", "device", "iterations", "step_ns", "peak_bytes", "recomputed", "compare"]
    assert document["step_ns"] == {"median": 5, "min": 4, "max": 6}
    assert document["peak_bytes"] == {"predicted": 10, "measured": 9, "budget": 12, "measured_by": "VmHWM"}
    keys = ("identical", "max_abs_diff", "plain_step_ns", "time_ratio", "plain_peak_bytes", "default_ort_step_ns")
    assert tuple(document["compare"])[:6] == keys


def test_a_peak_over_the_budget_is_an_error() -> None:
    def result(measured: int | None) -> RunResult:
        return RunResult("arena", "cpu", 1, StepTimes(5, 4, 6), PeakBytes(90, measured, 100 * MIB, "VmHWM"), 0)

    for fine in (None, 50, 100 * MIB, 101 * MIB):
        assert not result(fine).over_budget
        result(fine).raise_over_budget()
    assert result(102 * MIB).over_budget
    with pytest.raises(DeviceError, match=f"peak is {102 * MIB} bytes .* budget of {100 * MIB} by {2 * MIB}"):
        result(102 * MIB).raise_over_budget()


def small(path: Path) -> Path:
    nodes = [helper.make_node("Exp", ["x"], ["h"]), helper.make_node("Mul", ["h", "h"], ["y"])]
    return save(path, nodes, [value("x", [2, 3])], [value("y", [2, 3])])


def test_the_model_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans, here, away = (tmp_path / name for name in ("plans", "here", "away"))
    for folder in (plans, here, away):
        folder.mkdir()
    monkeypatch.chdir(here)
    plan = plans / "p.json"
    model = small(away / "m.onnx")
    write_plan(plan_for(load(model)), plan)
    np.savez(tmp_path / "feeds.npz", x=np.zeros((2, 3), np.float32))
    request = RunRequest(plan, inputs=tmp_path / "feeds.npz", outputs=tmp_path / "o.npz")
    with pytest.raises(InputError, match=r"^m\.onnx, the model of p\.json, is neither"):
        run_plan(request)
    run_plan(replace(request, model=model))
    with np.load(tmp_path / "o.npz") as archive:
        assert np.array_equal(archive["y"], np.ones((2, 3), np.float32))
    shutil.copy(model, here)
    run_plan(request)
    # Beside the plan goes first: this one is another model.
    training_model(plans / "m.onnx")
    with pytest.raises(CheckFailed, match="another model"):
        run_plan(request)


def test_a_difference_is_found_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plan(plan_for(load(small(tmp_path / "m.onnx"))), tmp_path / "p.json")

    def other_kernel(job: Job, folder: Path) -> Report:
        report = run_child(job, folder)
        if job.role != "plain":
            return report
        file = folder / report.last[0].file
        values = np.fromfile(file, np.float32)
        values[4] += 1.5
        values.tofile(file)
        return msgspec.structs.replace(report, digests=(report.digests[0], {"y": "another"}))

    monkeypatch.setattr("remat_cli.execute.run.run_child", other_kernel)
    np.savez(tmp_path / "f.npz", x=np.zeros((2, 3), np.float32))
    compare = run_plan(RunRequest(tmp_path / "p.json", inputs=tmp_path / "f.npz", iterations=2, compare=True)).compare
    assert compare is not None
    assert (compare.identical, compare.max_abs_diff) == (False, 1.5)
    assert compare.note == "y differs first, in iteration 2"


def test_a_default_session_that_crashes_is_told_and_does_no_harm(tmp_path: Path) -> None:
    # onnxruntime dies of outputs without a name; the loader gives them one, which the user's file lacks.
    split = helper.make_node("Split", ["x"], ["y", ""], num_outputs=2)
    model = save(tmp_path / "m.onnx", [split], [value("x", [4])], [value("y", [2])])
    write_plan(plan_for(load(model)), tmp_path / "p.json")
    compare = run_plan(RunRequest(tmp_path / "p.json", compare=True)).compare
    assert compare is not None
    assert compare.identical
    assert compare.default_ort_step_ns is None
    assert compare.note.startswith("default onnxruntime: ")


def test_unseeded_random_graphs_are_not_comparable(tmp_path: Path) -> None:
    weights = {"ratio": np.array(0.5, np.float32), "train": np.array(True)}
    drop = helper.make_node("Dropout", ["x", "ratio", "train"], ["y"], name="drop")
    model = save(tmp_path / "m.onnx", [drop], [value("x", [64])], [value("y", [64])], weights)
    write_plan(plan_for(load(model)), tmp_path / "p.json")
    compare = run_plan(RunRequest(tmp_path / "p.json", compare=True)).compare
    assert compare is not None
    assert (compare.identical, compare.max_abs_diff) == (None, None)
    assert compare.note == "not comparable: Dropout 'drop' draws random numbers and has no seed"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterations": 0}, "0 iterations"),
        ({"threads": 0}, "0 threads"),
        ({"plan": Path("nothing.json")}, "nothing.json"),
        ({"model": Path("nothing.onnx")}, "nothing.onnx"),
        ({"inputs": Path("nothing.npz")}, "nothing.npz"),
        ({"outputs": Path("nowhere/out.npz")}, "there is no folder nowhere"),
        ({"outputs": Path("/")}, "is a folder"),
        ({"outputs": Path(__file__)}, "not written by remat"),
    ],
)
def test_bad_requests_are_refused_before_a_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], message: str
) -> None:
    monkeypatch.setattr("remat_cli.execute.run.run_child", lambda job, folder: pytest.fail("a child was started"))
    write_plan(plan_for(load(small(tmp_path / "m.onnx"))), tmp_path / "p.json")
    with pytest.raises(InputError, match=message):
        run_plan(replace(RunRequest(tmp_path / "p.json"), **changes))  # type: ignore[arg-type]


def test_bad_feeds_are_refused_before_a_process_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plan(plan_for(load(small(tmp_path / "m.onnx"))), tmp_path / "p.json")
    monkeypatch.setattr("remat_cli.execute.run.run_child", lambda job, folder: pytest.fail("a child was started"))
    for feeds, message in (({"nope": np.zeros(1)}, "no input 'nope'"), ({"x": np.zeros((2, 3))}, "float64")):
        np.savez(tmp_path / "f.npz", **feeds)
        with pytest.raises(InputError, match=message):
            run_plan(RunRequest(tmp_path / "p.json", inputs=tmp_path / "f.npz"))


def test_a_node_that_fails_in_the_child_is_named(tmp_path: Path) -> None:
    gather = helper.make_node("Gather", ["x", "i"], ["y"], name="pick")
    inputs = [value("x", [2]), value("i", [1], TensorProto.INT64)]
    write_plan(plan_for(load(save(tmp_path / "m.onnx", [gather], inputs, [value("y", [1])]))), tmp_path / "p.json")
    np.savez(tmp_path / "f.npz", i=np.array([9]))
    with pytest.raises(DeviceError, match=r"Gather 'pick' \(step 0\) failed on cpu"):
        run_plan(RunRequest(tmp_path / "p.json", inputs=tmp_path / "f.npz"))


class _Deadly:
    """Does something to the process that unpickles it."""

    def __init__(self, deed: Callable[..., object], *arguments: object) -> None:
        self.deed = deed
        self.arguments = arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.deed, self.arguments


def _job(tmp_path: Path, graph: object) -> tuple[Job, Path]:
    ready = prepare(plan_for(load(small(tmp_path / "m.onnx"))), tmp_path / "m.onnx")
    folder = tmp_path / "job"
    folder.mkdir()
    job = Job("arena", ready.graph, ready.program, ready.device, 1, tmp_path / "feeds", (), 0, 1, False, False)
    return replace(job, graph=graph), folder  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGSEGV, r"onnxruntime crashed \(SIGSEGV\) while starting"),
        (signal.SIGKILL, r"killed the arena run \(SIGKILL.* It needs 192 bytes\. Free now: "),
    ],
)
def test_a_child_that_dies_is_an_error(tmp_path: Path, number: int, message: str) -> None:
    job, folder = _job(tmp_path, _Deadly(signal.raise_signal, number))
    with pytest.raises(DeviceError, match=message):
        run_child(job, folder)


def test_a_fault_of_ours_in_the_child_is_said_to_be_one(tmp_path: Path) -> None:
    job, folder = _job(tmp_path, _Deadly(int, "seven"))
    with pytest.raises(InternalError, match="ValueError: invalid literal"):
        run_child(job, folder)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_ends_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, folder = _job(tmp_path, _Deadly(__import__("time").sleep, 60))
    started: list[int] = []
    import subprocess

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def wait(self, timeout: float | None = None) -> int:
            if not started:
                started.append(self.pid)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_child(job, folder)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
