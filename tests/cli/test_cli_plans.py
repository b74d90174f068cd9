"""`check`, `diff`, `show`, `run`: what they say of good plans, and of plans that are wrong in every way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

CASES = Path(__file__).parent.parent / "data" / "cases"


def alter(change: Callable[[dict], None], path: str = "model.plan.json") -> None:
    """Change a plan file."""
    plan = json.loads(Path(path).read_text("utf-8"))
    change(plan)
    Path(path).write_text(json.dumps(plan), "utf-8")


def lower_peak(plan: dict) -> None:
    plan["predicted"]["peak_bytes"] -= 64


def drop_a_recompute(plan: dict) -> None:
    seen = set()
    for k, step in enumerate(plan["steps"]):
        if step[0] == "compute" and step[1] in seen:
            del plan["steps"][k]
            return
        seen.add(step[1])
    raise AssertionError("this plan recomputes nothing")


def free_too_early(plan: dict) -> None:
    node = plan["nodes"][1]
    first = next(k for k, step in enumerate(plan["steps"]) if step[:2] == ["compute", plan["nodes"][0][0]])
    plan["steps"].insert(first + 1, ["free", node[2][0]])


def shrink_a_tensor(plan: dict) -> None:
    row = next(row for row in plan["tensors"] if row[2] == "activation")
    row[1] -= 64


ALTERED = [
    (lower_peak, "$.predicted.peak_bytes: predicted.peak_bytes says"),
    (drop_a_recompute, "$.steps"),
    (free_too_early, "$.steps["),
    (shrink_a_tensor, "$."),
]


# check


def test_check_of_a_good_plan(remat) -> None:
    done = remat("check", "model.plan.json")
    assert done.code == 0, done.err
    assert "legal steps, all figures true" in done.out
    assert "model.onnx" in done.out
    facts = remat("check", "model.plan.json", "--format", "json").json
    assert (facts["ok"], facts["faults"], facts["model"]) == (True, [], "model.onnx")
    assert facts["predicted"] == json.loads(Path("model.plan.json").read_text())["predicted"]


def test_check_without_the_model_says_so(remat, folder: Path) -> None:
    (folder / "model.onnx").unlink()
    done = remat("check", "model.plan.json")
    assert done.code == 0
    assert "model.onnx is not here" in done.err


def test_check_of_a_problem_files_plan(remat, folder: Path) -> None:
    assert remat("check", "problem.plan.json").code == 0
    (folder / "problem.json").write_text((folder / "problem.json").read_text() + "\n")
    done = remat("check", "problem.plan.json")
    assert done.code == 1
    assert "another model" in done.error


@pytest.mark.parametrize(("change", "text"), ALTERED)
def test_check_of_altered_plans(remat, change: Callable[[dict], None], text: str) -> None:
    alter(change)
    done = remat("check", "model.plan.json")
    assert done.code == 1
    assert done.error.startswith(f"model.plan.json: {text}")
    assert text in done.out
    facts = remat("check", "model.plan.json", "--format", "json")
    assert facts.code == 1
    assert facts.json["ok"] is False
    quiet = remat("check", "model.plan.json", "--quiet")
    assert (quiet.code, quiet.out) == (1, "")


def test_check_against_another_budget(remat) -> None:
    assert remat("check", "model.plan.json", "--budget", "1GB").code == 0
    assert remat("check", "model.plan.json", "--budget", "60%").code == 0
    done = remat("check", "model.plan.json", "--budget", "1KB")
    assert done.code == 1
    assert "more than the budget of 1000" in done.error
    assert remat("check", "model.plan.json", "--budget", "8G").code == 2


def test_check_against_the_wrong_model(remat) -> None:
    done = remat("check", "model.plan.json", "--model", "other.onnx")
    assert done.code == 1
    assert "the plan was made for another model" in done.error
    assert remat("check", "model.plan.json", "--model", "gone.onnx").code == 2


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("gone.json", "gone.json: cannot be read: No such file or directory"),
        ("problem.json", "problem.json: $.format: not a plan"),
        ("model.profile.json", "model.profile.json: $.format: not a plan"),
        ("model.onnx", "model.onnx: "),
        (CASES / "260_plan_a.json", "$.format: not a plan"),
        (CASES / "270_plan_duplicate_key.json", '$.steps: the key "steps" is given twice'),
        (CASES / "273_plan_not_object.json", "273_plan_not_object.json: "),
    ],
)
@pytest.mark.parametrize("command", ["check", "show", "run", "diff"])
def test_files_that_are_no_plans(remat, command: str, file: str | Path, text: str) -> None:
    done = remat(command, file, *(["model.plan.json"] if command == "diff" else []))
    assert done.code == 2
    assert text in done.error


def test_a_plan_of_a_future_format(remat) -> None:
    alter(lambda plan: plan.update(format_version="2.0"))
    done = remat("check", "model.plan.json")
    assert done.code == 2
    assert "this is plan format 2, and this remat reads format 1" in done.error


# diff


def test_diff_of_equal_plans(remat) -> None:
    done = remat("diff", "model.plan.json", "model.plan.json")
    assert (done.code, done.out) == (0, "no difference\n")


def test_diff_ignores_key_order_and_unknown_fields(remat, folder: Path) -> None:
    plan = json.loads((folder / "model.plan.json").read_text())
    plan["made_by"] = "somebody"
    (folder / "b.json").write_text(json.dumps(dict(reversed(plan.items()))))
    assert remat("diff", "model.plan.json", "b.json").code == 0


def test_diff_of_different_plans(remat) -> None:
    done = remat("diff", "model.plan.json", "full.plan.json")
    assert done.code == 1
    assert done.err == ""
    assert done.out.startswith("model.plan.json and full.plan.json differ\n")
    facts = remat("diff", "model.plan.json", "full.plan.json", "--format", "json")
    assert facts.code == 1
    assert facts.json["differs"] is True
    assert "peak_bytes" in facts.json["predicted"]
    assert "| peak\\_bytes |" in remat("diff", "model.plan.json", "full.plan.json", "--format", "markdown").out
    quiet = remat("diff", "model.plan.json", "full.plan.json", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (1, "", "")


def test_diff_tolerance(remat, folder: Path) -> None:
    (folder / "b.json").write_bytes((folder / "model.plan.json").read_bytes())

    def slower(plan: dict) -> None:
        plan["predicted"]["compute_ns"] += plan["predicted"]["compute_ns"] // 100

    alter(slower, "b.json")
    assert remat("diff", "model.plan.json", "b.json").code == 1
    assert remat("diff", "model.plan.json", "b.json", "--tolerance", "2").code == 0
    assert remat("diff", "model.plan.json", "b.json", "--tolerance", "-1").code == 2


# show


def test_show(remat) -> None:
    done = remat("show", "model.plan.json")
    assert done.code == 0
    assert "recomputed" in done.out
    assert "live at the peak" in done.out
    plan = json.loads(Path("model.plan.json").read_text())
    facts = remat("show", "model.plan.json", "--format", "json").json
    assert facts["predicted"] == plan["predicted"]
    assert max(facts["step_bytes"]) == plan["predicted"]["live_peak_bytes"]


def test_show_of_an_illegal_plan(remat) -> None:
    alter(drop_a_recompute)
    done = remat("show", "model.plan.json")
    assert done.code == 1
    assert "illegal" in done.error


# run


def test_run_compares_with_a_plain_session(remat, folder: Path) -> None:
    done = remat(
        "run", "loose.plan.json", "--inputs", "feeds.npz", "--outputs", "out.npz", "--compare", "--iterations", "2",
        "--format", "json",
    )  # fmt: skip
    assert done.code == 0, done.err
    facts = done.json
    assert list(facts)[:6] == ["engine", "device", "iterations", "step_ns", "peak_bytes", "recomputed"]
    assert (facts["engine"], facts["device"], facts["iterations"]) == ("arena", "cpu", 2)
    plan = json.loads((folder / "loose.plan.json").read_text())
    assert facts["recomputed"] == plan["predicted"]["recomputed"] > 0
    assert facts["peak_bytes"]["predicted"] == plan["predicted"]["peak_bytes"]
    assert facts["compare"]["identical"] is True
    with np.load(folder / "out.npz") as out:
        assert "g0" in out.files
    text = remat("run", "loose.plan.json", "--compare").out
    assert "yes, bit for bit" in text
    assert "predicted peak" in text


@pytest.mark.parametrize(("change", "text"), ALTERED)
def test_run_refuses_altered_plans(remat, change: Callable[[dict], None], text: str) -> None:
    alter(change)
    done = remat("run", "model.plan.json")
    assert done.code == 1
    assert done.error.startswith(f"model.plan.json: {text}")
    assert done.out == ""


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["gone.json"], 2, "gone.json: cannot be read"),
        (["problem.plan.json"], 2, "problem.plan.json is the plan of a problem file"),
        (["model.plan.json", "--model", "other.onnx"], 1, "the plan was made for another model"),
        (["model.plan.json", "--model", "gone.onnx"], 2, "gone.onnx: no such file"),
        (["model.plan.json", "--device", "tpu"], 2, "--device: 'tpu' is not a device"),
        (["model.plan.json", "--engine", "steam"], 2, "'steam' is not 'arena'"),
        (["model.plan.json", "--iterations", "0"], 2, "--iterations: 0 is not in the range"),
        (["model.plan.json", "--threads", "0"], 2, "--threads: 0 is not in the range"),
        (["model.plan.json", "--inputs", "gone.npz"], 2, "gone.npz does not exist"),
        (["model.plan.json", "--inputs", "wrong_name.npz"], 2, "no input 'z'"),
        (["model.plan.json", "--inputs", "wrong_shape.npz"], 2, "shape"),
        (["model.plan.json", "--inputs", "wrong_type.npz"], 2, "float64"),
        (["model.plan.json", "--outputs", "feeds.npz"], 2, "feeds.npz: exists and was not written by remat"),
        (["model.plan.json", "--outputs", "no/out.npz"], 2, "no/out.npz"),
    ],
)
def test_run_refusals(remat, folder: Path, args: list[str], code: int, text: str) -> None:
    np.savez(folder / "wrong_name.npz", z=np.ones(3, np.float32))
    np.savez(folder / "wrong_shape.npz", x=np.ones(3, np.float32))
    np.savez(folder / "wrong_type.npz", x=np.ones((512, 64), np.float64))
    done = remat("run", *args)
    assert done.code == code, done.err
    assert text in done.error


def test_run_without_the_model(remat, folder: Path) -> None:
    (folder / "model.onnx").unlink()
    done = remat("run", "model.plan.json")
    assert done.code == 2
    assert "neither beside the plan nor in the current folder" in done.error
    assert done.hint == "remat run model.plan.json --model PATH/model.onnx"


def test_run_finds_the_model_beside_the_plan(remat, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert remat("run", "../loose.plan.json", "--quiet").code == 0
