"""The published schema is that of the types, and every plan that we write obeys it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from plan_cases import PER_STEP, lower, random_problem, random_sequence, replace_fields, training_plan

from remat_cli.plan.files import dump_plan
from remat_cli.plan.schema import SCHEMA_FILE, schema_bytes
from remat_cli.plan.types import Plan


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(SCHEMA_FILE.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def plans() -> list[Plan]:
    found = [training_plan(), training_plan(range(10)), replace_fields(training_plan(), costs=PER_STEP)]
    for seed in range(10):
        builder, outputs = random_problem(seed, 5 + 3 * seed)
        found.append(lower(builder, outputs, random_sequence(builder.build(outputs), seed)))
    return found


def test_the_published_schema_is_up_to_date() -> None:
    assert SCHEMA_FILE.read_bytes() == schema_bytes(), "run: python -m remat_cli.plan.schema"


def test_plans_obey_the_schema(validator: Any) -> None:
    for plan in plans():
        validator.validate(json.loads(dump_plan(plan)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), "remat-profile"),
        (("format_version",), "2.0"),
        (("model", "graph_sha256"), "xyz"),
        (("costs", "workspace"), "guessed"),
        (("tensors", 0, 1), -1),
        (("tensors", 0, 1), 1.5),
        (("tensors", 0, 2), "activity"),
        (("nodes", 0, 4), "900"),
        (("nodes", 1, 6, 0), "twice"),
        (("steps", 0, 0), "delete"),
        (("steps", 1, 2), "over conv"),
        (("steps", 0), ["compute"]),
        (("predicted", "recomputed"), None),
    ],
)
def test_the_schema_refuses(validator: Any, path: tuple[Any, ...], value: object) -> None:
    document = json.loads(dump_plan(training_plan()))
    target = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    assert not validator.is_valid(document)
