"""`profile`, `info`, `doctor`, and devices that are not there."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

CASES = Path(__file__).parent.parent / "data" / "cases"


@cache
def has_cuda() -> bool:
    from remat_cli.cli.doctor import probe
    from remat_cli.ort_session import Device

    return probe(Device("cuda")).works


# profile


def test_profile_writes_a_profile(remat, folder: Path) -> None:
    done = remat("profile", "dynamic.onnx", "--dim", "batch=2", "--format", "json")
    assert done.code == 0, done.err
    profile = json.loads((folder / "dynamic.profile.json").read_text())
    assert profile["model"]["dims"] == {"batch": 2}
    assert len(profile["nodes"]) == done.json["nodes"]
    assert sum(node[2] for node in profile["nodes"]) == done.json["total_ns"] > 0


def test_profile_to_stdout(remat) -> None:
    done = remat("profile", "model.onnx", "-o", "-", "--quiet")
    assert done.json["format"] == "remat-profile"
    assert done.err == ""


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["gone.onnx"], "gone.onnx: no such file"),
        (["problem.json"], "problem.json is a problem file"),
        (["dynamic.onnx"], "dim 0 'batch'"),
        (["model.onnx", "-o", "problem.json"], "problem.json: exists and was not written by remat"),
        (["model.onnx", "-o", "-", "--format", "json"], "both want stdout"),
        (["model.onnx", "--device", "abacus"], "--device: 'abacus' is not a device"),
        ([CASES / "005_opset6_broadcast_add.onnx", "-o", "p.json"], "Add 'add'"),
        ([CASES / "113_custom_domain.onnx", "-o", "p.json"], "foo"),
        ([CASES / "001_ir14_opset28.onnx", "-o", "p.json"], "001_ir14_opset28.onnx"),
    ],
)
def test_profile_refusals(remat, folder: Path, args: list, text: str) -> None:
    done = remat("profile", *args)
    assert done.code == 2, done.err
    assert text in done.error
    assert not (folder / "p.json").exists()


# info


def test_info_of_a_model(remat) -> None:
    done = remat("info", "model.onnx")
    assert done.code == 0
    facts = remat("info", "model.onnx", "--format", "json").json
    assert facts["ops"] == {"MatMul": 12, "Tanh": 6, "Sub": 6}
    memory = facts["memory"]
    assert memory["weights_bytes"] == 64 * 64 * 4
    assert memory["inputs_bytes"] == 512 * 64 * 4
    assert memory["fixed_bytes"] == memory["weights_bytes"] + memory["inputs_bytes"] + memory["constants_bytes"]
    assert memory["fixed_bytes"] < facts["bound_bytes"] <= memory["store_all_peak_bytes"]
    assert str(facts["bound_bytes"]) in done.out


def test_info_of_a_problem(remat) -> None:
    facts = remat("info", "problem.json", "--format", "json").json
    assert facts["kind"] == "problem file"
    assert facts["nodes"] == 8
    assert facts["bound_bytes"] == 3
    assert facts["memory"]["store_all_peak_bytes"] == 5


def test_info_lists_graphs_that_cannot_run(remat) -> None:
    done = remat("info", CASES / "113_custom_domain.onnx")
    assert done.code == 0, done.err
    assert "my.domain:Foo" in done.out


def test_info_tells_what_runs_once(remat) -> None:
    done = remat("info", CASES / "150_dropout_training_noseed.onnx", "--format", "json")
    assert any("Dropout" in label for label in done.json["once"])


def test_long_names_are_cut_in_text_and_whole_in_json(remat) -> None:
    case = CASES / "063_long_names.onnx"
    assert all(len(line) < 200 for line in remat("info", case).out.splitlines())


@pytest.mark.parametrize("file", ["gone.onnx", CASES / "066_not_ssa.onnx", CASES / "067_undefined_input.onnx"])
def test_info_refusals(remat, file: str | Path) -> None:
    done = remat("info", file)
    assert done.code == 2
    assert str(file) in done.error


# doctor and devices


def test_doctor(remat) -> None:
    done = remat("doctor")
    assert done.code == 0
    assert any(line.split()[:2] == ["cpu", "works"] for line in done.out.splitlines())
    facts = remat("doctor", "--format", "json").json
    assert facts["versions"]["remat"]
    assert facts["devices"][0]["works"] is True


def test_devices_that_are_not_there(remat) -> None:
    if has_cuda():
        pytest.skip("this machine has a CUDA device")
    for call in (
        ("doctor", "--device", "cuda"),
        ("profile", "model.onnx", "--device", "cuda:0", "-o", "p.json"),
        ("solve", "model.onnx", "--budget", "60%", "--device", "cuda:0", "-o", "p.json"),
        ("run", "model.plan.json", "--device", "cuda:0"),
    ):
        done = remat(*call)
        assert done.code == 5, (call, done.err)
        assert "cuda:0" in done.error
        assert done.hint
