"""The golden plans in plans/: compiled anew, they are the same bytes; and each of them is true."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from plans.regenerate import CASES, FOLDER, golden_name, golden_plan
from remat_cli.plan.check import check_plan
from remat_cli.plan.files import load_plan, parse_plan

# Methods whose schedules come out of OR-Tools: another release of it may choose another optimum.
FROM_ORTOOLS = ("checkmate", "rounding")
ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("case", CASES, ids=lambda case: golden_name(*case))
def test_golden_plans_are_reproduced(case: tuple[str, str, str]) -> None:
    golden = (FOLDER / golden_name(*case)).read_bytes()
    recorded = load_plan(FOLDER / golden_name(*case)).solver
    if recorded.ortools != version("ortools"):
        if recorded.method in FROM_ORTOOLS:
            pytest.skip(f"made by OR-Tools {recorded.ortools}; {version('ortools')} is installed")
        golden = golden.replace(
            f'"ortools": "{recorded.ortools}"'.encode(), f'"ortools": "{version("ortools")}"'.encode()
        )
    assert golden_plan(*case) == golden


@pytest.mark.parametrize("case", CASES, ids=lambda case: golden_name(*case))
def test_golden_plans_are_true(case: tuple[str, str, str]) -> None:
    plan = load_plan(FOLDER / golden_name(*case))
    report = check_plan(plan)
    assert report.faults == ()
    assert plan.predicted.peak_bytes <= plan.budget_bytes


def test_every_golden_plan_has_a_case() -> None:
    assert {path.name for path in FOLDER.glob("*.plan.json")} == {golden_name(*case) for case in CASES}


def test_golden_plans_hold_recomputes_views_states_and_in_place_steps() -> None:
    plans = {case: load_plan(FOLDER / golden_name(*case)) for case in CASES}
    assert any(plan.predicted.recomputed for plan in plans.values())
    kinds = {row.kind.split(" ")[0] for plan in plans.values() for row in plan.tensors}
    assert {"input", "weight", "constant", "activation", "output", "state", "view"} <= kinds
    assert any(step.note.startswith("in place of ") for plan in plans.values() for step in plan.steps)
    assert any("once" in node.flags for plan in plans.values() for node in plan.nodes)


@pytest.mark.parametrize("seed", ["0", "12345"])
def test_hash_seeds_do_not_show(seed: str) -> None:
    case = ("equal_branches", "auto", "60%")
    code = f"import sys; from plans.regenerate import golden_plan; sys.stdout.buffer.write(golden_plan(*{case!r}))"
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True)
    assert done.stdout == golden_plan(*case)
    assert parse_plan(done.stdout, "stdout").predicted.recomputed > 0
