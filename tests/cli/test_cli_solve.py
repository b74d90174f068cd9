"""`remat solve`: where costs come from, what is written where, and every refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CASES = Path(__file__).parent.parent / "data" / "cases"
FAST = ("--method", "chen-greedy")


def plan_of(path: str = "model.plan.json") -> dict:
    return json.loads(Path(path).read_text("utf-8"))


def test_the_plan_goes_to_the_current_folder(remat, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "model.onnx").rename(folder / "sub" / "net.v1.onnx")
    done = remat("solve", "sub/net.v1.onnx", "--budget", "80%", *FAST)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1].split() == ["plan", "net.v1.plan.json"]
    assert plan_of("net.v1.plan.json")["model"]["file"] == "net.v1.onnx"


def test_summary_in_json_and_text(remat) -> None:
    done = remat("solve", "model.onnx", "--budget", "60%", "--format", "json")
    plan = plan_of()
    assert done.json["budget_bytes"] == plan["budget_bytes"]
    assert done.json["predicted"] == plan["predicted"]
    assert done.json["solver"] == plan["solver"]
    assert done.json["plan"] == "model.plan.json"
    predicted = plan["predicted"]
    assert done.json["overhead"] == pytest.approx(predicted["compute_ns"] / predicted["store_all_ns"] - 1)
    text = remat("solve", "model.onnx", "--budget", "60%").out
    for name in ("budget", "fixed", "store-all peak", "peak", "method", "cost", "recomputed", "plan"):
        assert any(line.startswith(name + "  ") for line in text.splitlines()), name
    assert f"{predicted['peak_bytes']} bytes" in text


def test_quiet_prints_nothing(remat, folder: Path) -> None:
    (folder / "model.plan.json").unlink()
    done = remat("solve", "model.onnx", "--budget", "80%", *FAST, "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert plan_of()["format"] == "remat-plan"


def test_costs_come_from_the_cost_model_by_default(remat) -> None:
    done = remat("solve", "model.onnx", "--budget", "80%", *FAST)
    assert plan_of()["costs"]["source"] == "cost-model"
    assert "costs: cost-model" in done.err


def test_costs_of_a_named_model(remat) -> None:
    assert remat("solve", "model.onnx", "--budget", "80%", *FAST, "--cost-model", "unit").code == 0
    plan = plan_of()
    assert plan["costs"]["file"] == "unit"
    assert {node[4] for node in plan["nodes"]} == {1}


def test_costs_of_a_profile(remat) -> None:
    assert remat("solve", "model.onnx", "--budget", "80%", *FAST, "--profile", "model.profile.json").code == 0
    assert plan_of()["costs"]["file"] == "model.profile.json"


def test_costs_measured_on_a_device_are_written_beside_the_plan(remat, folder: Path) -> None:
    (folder / "sub").mkdir()
    done = remat("solve", "model.onnx", "--budget", "80%", *FAST, "--device", "cpu", "-o", "sub/p.json")
    assert done.code == 0, done.err
    assert plan_of("sub/p.json")["costs"]["file"] == "model.profile.json"
    assert (folder / "sub" / "model.profile.json").exists()


def test_a_flag_beats_the_settings_file_in_the_choice_of_costs(remat, folder: Path) -> None:
    (folder / "s.yaml").write_text("cost_model: unit\n")
    call = ("solve", "model.onnx", "--budget", "80%", *FAST, "--config", "s.yaml")
    assert remat(*call).code == 0
    assert plan_of()["costs"]["file"] == "unit"
    assert remat(*call, "--profile", "model.profile.json").code == 0
    assert plan_of()["costs"]["source"] == "profile"


def test_dry_run_writes_nothing(remat, folder: Path) -> None:
    (folder / "model.plan.json").unlink()
    (folder / "model.profile.json").unlink()
    before = sorted(folder.iterdir())
    done = remat("solve", "model.onnx", "--budget", "80%", *FAST, "--device", "cpu", "--dry-run")
    assert done.code == 0, done.err
    assert sorted(folder.iterdir()) == before
    assert done.out.splitlines()[-1].split() == ["plan", "not", "written"]


def test_stdout(remat, folder: Path) -> None:
    done = remat("solve", "problem.json", "--budget", "5", "-o", "-")
    assert done.json["format"] == "remat-plan"
    assert "store-all peak" in done.err
    assert done.out == remat("solve", "problem.json", "--budget", "5", "-o", "-", "--quiet").out


def test_the_same_call_gives_the_same_bytes(remat, folder: Path) -> None:
    plans = []
    for _ in range(2):
        assert remat("solve", "model.onnx", "--budget", "60%", "--seed", "3").code == 0
        plans.append((folder / "model.plan.json").read_bytes())
    assert plans[0] == plans[1]


def test_check_compares_and_writes_nothing(remat, folder: Path) -> None:
    call = ("solve", "model.onnx", "--profile", "model.profile.json")
    before = (folder / "model.plan.json").read_bytes()
    done = remat(*call, "--budget", "60%", "--check", "model.plan.json")
    assert done.code == 0, done.out
    assert "no difference" in done.out
    done = remat(*call, "--budget", "100%", "--check", "model.plan.json")
    assert done.code == 1
    assert "model.plan.json and solved now differ" in done.out
    assert "budget_bytes" in done.out
    assert (folder / "model.plan.json").read_bytes() == before


def test_budget_min_and_auto(remat) -> None:
    done = remat("solve", "problem.json", "--budget", "min", "--dry-run", "--format", "json")
    assert done.code == 0, done.err
    assert done.json["budget_bytes"] == done.json["predicted"]["peak_bytes"] == 3
    done = remat("solve", "model.onnx", "--budget", "auto", "--dry-run", "--format", "json")
    assert done.code == 0, done.err
    assert done.json["predicted"]["recomputed"] == 0
    assert done.json["budget_bytes"] > done.json["predicted"]["store_all_peak_bytes"]


def test_warm_start(remat) -> None:
    call = ("solve", "model.onnx", "--budget", "60%", "--profile", "model.profile.json", "--warm-start")
    assert remat(*call, "model.plan.json", "-o", "warm.json").code == 0
    assert plan_of("warm.json")["predicted"]["peak_bytes"] <= plan_of("warm.json")["budget_bytes"]
    done = remat(*call, "problem.plan.json", "-o", "warm.json")
    assert done.code == 2
    assert "the warm start computes f0, which this graph does not have" in done.error


def test_no_in_place(remat) -> None:
    assert remat("solve", "model.onnx", "--budget", "100%", "--method", "store-all").code == 0
    assert any(len(step) > 2 for step in plan_of()["steps"])
    assert remat("solve", "model.onnx", "--budget", "100%", "--method", "store-all", "--no-in-place").code == 0
    assert not any(len(step) > 2 for step in plan_of()["steps"])


def test_infeasible_names_the_node_and_the_smallest_budget(remat, folder: Path) -> None:
    done = remat("solve", "problem.json", "--budget", "2", "-o", "p.json")
    assert done.code == 3
    assert "b2" in done.error or "b1" in done.error
    assert "smallest feasible budget found: 3 bytes" in done.hint
    assert not (folder / "p.json").exists()
    assert remat("solve", "problem.json", "--budget", "3", "-o", "p.json").code == 0


def test_a_budget_below_the_fixed_bytes(remat) -> None:
    done = remat("solve", "model.onnx", "--budget", "100")
    assert done.code == 3
    assert "resident all the time" in done.error
    assert "smallest feasible budget found" in done.hint


def test_no_schedule_of_a_weak_method(remat) -> None:
    done = remat("solve", "problem.json", "--budget", "4", "--method", "store-all")
    assert done.code == 4
    assert done.error.startswith("store-all found no schedule")
    assert "try --budget 3" in done.hint


def test_four_tebibytes_are_refused_exactly(remat) -> None:
    done = remat("solve", CASES / "028_four_tebibytes.onnx", "--budget", "8GB")
    assert done.code == 3
    assert "8796093022208 bytes" in done.hint


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["gone.onnx"], 2, "gone.onnx: no such file"),
        (["gone.json"], 2, "gone.json: cannot be read: No such file or directory"),
        (["."], 2, ""),
        ([CASES / "008_not_protobuf.onnx"], 2, "008_not_protobuf.onnx: "),
        ([CASES / "010_truncated.onnx"], 2, "010_truncated.onnx: "),
        (["model.plan.json"], 2, "model.plan.json: "),
        (["dynamic.onnx"], 2, "dim 0 'batch'"),
        (["dynamic.onnx", "--dim", "batch=2", "--dim", "seq=3"], 2, "no symbolic dim 'seq'"),
        (["problem.json", "--dim", "batch=2"], 2, "problem.json is a problem file: it has no dims"),
        (["problem.json", "--profile", "model.profile.json"], 2, "carries its own costs: --profile"),
        (["problem.json", "--device", "cpu"], 2, "carries its own costs: --device"),
        (["problem.json", "--cost-model", "unit"], 2, "carries its own costs: --cost-model"),
        (["problem.json", "--inputs", "feeds.npz"], 2, "carries its own costs: --inputs"),
        (["problem.json", "--threads", "2"], 2, "carries its own costs: --threads"),
        (["model.onnx", "--profile", "model.profile.json", "--device", "cpu"], 2, "--profile and --device exclude"),
        (["model.onnx", "--profile", "model.profile.json", "--threads", "2"], 2, "--threads has no meaning"),
        (["other.onnx", "--profile", "model.profile.json"], 2, "model.profile.json was measured on another graph"),
        (["model.onnx", "--profile", "problem.json"], 2, "problem.json: $.format: not a profile"),
        (["model.onnx", "--profile", "gone.json"], 2, "gone.json: cannot be read"),
        (["model.onnx", "--cost-model", "abacus"], 2, "no device model named 'abacus'"),
        (["model.onnx", "--cost-model", "gone.yaml"], 2, "gone.yaml: cannot be read"),
        (["model.onnx", "--inputs", "model.onnx"], 2, "model.onnx is not an .npz file"),
        (["model.onnx", "--warm-start", "problem.json"], 2, "problem.json: $.format: not a plan"),
        (["model.onnx", "-o", "-", "--format", "json"], 2, "both want stdout"),
        (["model.onnx", "--check", "model.plan.json", "-o", "p.json"], 2, "--check writes no plan"),
        (["model.onnx", "--check", "gone.json"], 2, "gone.json: cannot be read"),
        (["model.onnx", "-o", "no/such/p.json"], 2, "no/such/p.json: cannot be written: No such file or directory"),
        (["model.onnx", "-o", "."], 2, "is a folder"),
        (["model.onnx", "-o", "problem.json"], 2, "problem.json: exists and was not written by remat"),
    ],
)
def test_refusals(remat, args: list, code: int, text: str) -> None:
    done = remat("solve", *args, "--budget", "80%", *([] if "--method" in args else FAST))
    assert done.code == code, done.err
    assert text in done.error
    assert done.out == ""


def test_force_overwrites(remat) -> None:
    call = ("solve", "model.onnx", "--budget", "80%", *FAST, "-o", "problem.json")
    assert remat(*call).hint == "choose another name, or replace it with --force"
    assert remat(*call, "--force").code == 0
    assert plan_of("problem.json")["format"] == "remat-plan"


def test_a_model_without_kernel_gives_no_plan(remat, folder: Path) -> None:
    done = remat("solve", CASES / "005_opset6_broadcast_add.onnx", "--budget", "100%", "-o", "p.json")
    assert done.code == 2
    assert "Add 'add'" in done.error
    assert not (folder / "p.json").exists()
