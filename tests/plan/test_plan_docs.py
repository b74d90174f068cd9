"""The page on the plan format says what the code does."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import get_args

import pytest

from remat_cli.plan.check import check_plan
from remat_cli.plan.files import dump_plan, parse_plan
from remat_cli.plan.types import Plan, PlanCosts, PlanDevice, PlanModel, PlanPredicted, PlanSolver
from remat_cli.problem import Kind

PAGE = (Path(__file__).parents[2] / "docs" / "plan-format.md").read_text("utf-8")


def test_the_example_is_a_true_plan_in_the_writers_own_form() -> None:
    start = PAGE.index("    {\n")
    example = textwrap.dedent(PAGE[start : PAGE.index("    }\n\n", start) + len("    }\n")])
    plan = parse_plan(example.encode(), "plan-format.md")
    assert check_plan(plan).ok
    assert dump_plan(plan).decode() == example


@pytest.mark.parametrize("kind", [Plan, PlanModel, PlanDevice, PlanCosts, PlanSolver, PlanPredicted])
def test_every_field_is_on_the_page(kind: type[Plan]) -> None:
    assert [name for name in kind.__struct_fields__ if name not in PAGE] == []


def test_every_kind_of_tensor_is_on_the_page() -> None:
    assert [kind for kind in get_args(Kind) if f"`{kind}`" not in PAGE and f"`{kind} of X`" not in PAGE] == []
