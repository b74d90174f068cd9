"""What the in-process API refuses, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from execute_plans import Plain, load, plan_for, problem_for, same, save, training_model, value
from onnx import TensorProto, helper

import remat_cli
from remat_cli.errors import CheckFailed, DeviceError, InputError
from remat_cli.execute.executor import Executor
from remat_cli.execute.program import Call, InArena, build_program
from remat_cli.model.feeds import seeded_feeds
from remat_cli.ort_session import Device
from remat_cli.plan.types import Plan, PlanStep


def small(path: Path) -> Path:
    nodes = [helper.make_node("Exp", ["x"], ["h"]), helper.make_node("Mul", ["h", "W"], ["y"])]
    return save(path, nodes, [value("x", [2, 3])], [value("y", [2, 3])], {"W": np.full((2, 3), 2, np.float32)})


def test_the_package_exports_it_without_loading_onnx() -> None:
    assert remat_cli.Executor is Executor
    code = "import remat_cli, sys; print('onnx' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = remat_cli.Nonsense


def test_a_path_is_loaded_with_the_dims_of_the_plan(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], [value("x", ["batch", 3])],
        [value("y", ["batch", 3])],
    )  # fmt: skip
    plan = plan_for(load(path, dims={"batch": 5}))
    with Executor(plan, path) as executor:
        assert executor.step({"x": -np.ones((5, 3), np.float32)})["y"].shape == (5, 3)


def test_outputs_stay_valid_after_the_end(tmp_path: Path) -> None:
    graph = load(small(tmp_path / "m.onnx"))
    x = np.zeros((2, 3), np.float32)
    with Executor(plan_for(graph), graph) as executor:
        out = executor.step({"x": x})
        executor.step({"x": x + 1})
    executor.close()
    assert np.array_equal(out["y"], np.full((2, 3), 2, np.float32))
    with pytest.raises(DeviceError, match="closed"):
        executor.step({"x": x})


def test_inputs_keep_their_values(tmp_path: Path) -> None:
    graph = load(small(tmp_path / "m.onnx"))
    x = np.ones((2, 3), np.float32)
    with Executor(plan_for(graph), graph) as executor:
        first = executor.step({"x": x})
        x[:] = 0
        assert same(executor.step(), first)


def test_a_weight_that_is_an_input_can_be_fed(tmp_path: Path) -> None:
    path = small(tmp_path / "m.onnx")
    model = onnx.load(path)
    model.graph.input.append(value("W", [2, 3]))
    path.write_bytes(model.SerializeToString())
    graph = load(path)
    x = np.zeros((2, 3), np.float32)
    with Executor(plan_for(graph), graph) as executor:
        assert np.array_equal(executor.step({"x": x})["y"], x + 2)
        assert np.array_equal(executor.step({"x": x, "W": x + 5})["y"], x + 5)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "input 'x' has no value"),
        ({"x": np.zeros((3, 2), np.float32)}, "shape 3x2"),
        ({"x": np.zeros((2, 3))}, "float64"),
        ({"x": np.zeros((2, 3), np.float32), "nope": np.zeros(1)}, "no input 'nope'"),
        ({"x": np.zeros((2, 3), np.float32), "W": np.zeros((2, 3), np.float32)}, "no input 'W'"),
    ],
)
def test_wrong_feeds_are_refused_and_do_no_harm(tmp_path: Path, feeds: dict[str, np.ndarray], message: str) -> None:
    graph = load(small(tmp_path / "m.onnx"))
    with Executor(plan_for(graph), graph) as executor:
        with pytest.raises(InputError, match=message):
            executor.step(feeds)
        x = np.zeros((2, 3), np.float32)
        assert np.array_equal(executor.step({"x": x})["y"], x + 2)


def test_wrong_feeds_do_not_lose_a_state(tmp_path: Path) -> None:
    graph = load(training_model(tmp_path / "m.onnx"))
    feeds = seeded_feeds(graph)
    with Executor(plan_for(graph), graph, inputs=feeds) as executor:
        first = executor.step()
        with pytest.raises(InputError, match="shape"):
            executor.step({"x": np.zeros(3, np.float32)})
        second = executor.step()
    plain = Plain(graph)
    assert same(first, plain.step(feeds))
    assert same(second, plain.step(feeds | {source: first[name] for name, source in graph.state.items()}))


def test_a_node_that_fails_is_named_and_ends_the_executor(tmp_path: Path) -> None:
    gather = helper.make_node("Gather", ["x", "i"], ["y"], name="pick")
    path = save(tmp_path / "m.onnx", [gather], [value("x", [2]), value("i", [1], TensorProto.INT64)], [value("y", [1])])
    graph = load(path)
    with Executor(plan_for(graph), graph) as executor:
        with pytest.raises(DeviceError, match=r"Gather 'pick' \(step 0\) failed on cpu: .*out of (data )?bounds"):
            executor.step({"x": np.zeros(2, np.float32), "i": np.array([9])})
        with pytest.raises(DeviceError, match="closed"):
            executor.step()


def _steps(plan: Plan, steps: list[PlanStep]) -> Plan:
    return msgspec.structs.replace(plan, steps=tuple(steps))


def test_illegal_plans_are_refused_before_anything_runs(tmp_path: Path) -> None:
    graph = load(small(tmp_path / "m.onnx"))
    plan = plan_for(graph, in_place=False)
    compute_h, compute_y, free_h = plan.steps
    assert free_h.action == "free"
    with pytest.raises(CheckFailed, match=r"\$\.steps\[2\].* needs h, which is not live"):
        Executor(_steps(plan, [compute_h, free_h, compute_y]), graph)
    with pytest.raises(CheckFailed, match="never computed"):
        Executor(_steps(plan, [compute_h, free_h]), graph)
    with pytest.raises(CheckFailed, match="there is no node"):
        Executor(_steps(plan, [PlanStep("compute", "nonsense"), *plan.steps]), graph)
    with pytest.raises(CheckFailed, match="more than its budget of 100"):
        Executor(msgspec.structs.replace(plan, budget_bytes=100), graph)


def test_a_plan_that_understates_a_size_is_refused(tmp_path: Path) -> None:
    # Everything in it agrees with itself, but h would get half of the bytes that its node writes.
    path = save(
        tmp_path / "m.onnx",
        [helper.make_node("Exp", ["x"], ["h"]), helper.make_node("Exp", ["h"], ["y"])],
        [value("x", [32])], [value("y", [32])],
    )  # fmt: skip
    graph = load(path)
    plan = plan_for(graph, in_place=False)
    tensors = tuple(msgspec.structs.replace(row, size_bytes=64) if row.id == "h" else row for row in plan.tensors)
    smaller = {
        name: getattr(plan.predicted, name) - 64
        for name in ("peak_bytes", "live_peak_bytes", "arena_bytes", "store_all_peak_bytes")
    }
    predicted = msgspec.structs.replace(plan.predicted, **smaller)
    with pytest.raises(CheckFailed, match="size of 'h': the plan says 64, the model 128"):
        Executor(msgspec.structs.replace(plan, tensors=tensors, predicted=predicted), graph)


def test_plans_of_other_models_and_of_problem_files_are_refused(tmp_path: Path) -> None:
    graph = load(small(tmp_path / "m.onnx"))
    other = load(training_model(tmp_path / "other.onnx"))
    with pytest.raises(CheckFailed, match="made for another model"):
        Executor(plan_for(graph), other)
    plan = plan_for(graph)
    costs = msgspec.structs.replace(plan.costs, source="problem", workspace="per step")
    with pytest.raises(InputError, match="plan of a problem file"):
        Executor(msgspec.structs.replace(plan, costs=costs), graph)


def test_devices_that_are_not_there_are_refused(tmp_path: Path) -> None:
    graph = load(small(tmp_path / "m.onnx"))
    with pytest.raises(InputError, match="'tpu' is not a device"):
        Executor(plan_for(graph), graph, device="tpu")
    with pytest.raises(DeviceError, match=r"^cuda:0: "):
        Executor(plan_for(graph), graph, device="cuda")


def test_one_thread_count_in_a_process(tmp_path: Path) -> None:
    graph = load(small(tmp_path / "m.onnx"))
    with (
        Executor(plan_for(graph), graph, threads=1),
        pytest.raises(DeviceError, match="already executes with 1 threads"),
    ):
        Executor(plan_for(graph), graph, threads=2)


def test_more_memory_than_there_is(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], [value("x", [2**46])], [value("y", [2**46])]
    )
    graph = load(path)
    with pytest.raises(DeviceError, match=rf"refused {2**48} bytes \(281\.5 TB\) for inputs, weights and constants"):
        Executor(plan_for(graph), graph)


def test_another_alignment_places_everything_anew(tmp_path: Path) -> None:
    graph = load(training_model(tmp_path / "m.onnx", width=5))
    plan = plan_for(graph, in_place=False)
    program = build_program(plan, graph, Device("cuda").alignment)
    calls = [call for call in program.calls if isinstance(call, Call)]
    offsets = [where.offset for call in calls for where in call.where.values() if isinstance(where, InArena)]
    assert offsets
    assert all(offset % 256 == 0 for offset in offsets)
    assert program.arena_bytes > plan.predicted.arena_bytes
    assert program.fixed_bytes == 256 * len([row for row in plan.tensors if row.kind in ("input", "constant")])
    assert len(problem_for(graph, in_place=False).nodes) == len(program.calls)
