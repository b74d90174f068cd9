"""The published JSON schema of plan files. After a change of the types: ``python -m remat_cli.plan.schema``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.json_schema import name_positions, schema_of
from remat_cli.plan.types import FORMAT, VERSION, Plan, PlanNode, PlanStep, PlanTensor

SCHEMA_FILE = Path(__file__).with_name("plan.schema.json")
_SHA256 = {"type": "string", "pattern": "^([0-9a-f]{64})?$"}


def schema_bytes() -> bytes:
    """What `SCHEMA_FILE` must hold. JSON schema 2020-12; row fields are named by the titles of their positions."""
    schema = schema_of(Plan, FORMAT, VERSION)
    for row in (PlanTensor, PlanNode, PlanStep):
        name_positions(schema, row)
    _add_patterns(schema["$defs"])
    return (json.dumps(schema, indent=2) + "\n").encode()


def _add_patterns(definitions: dict[str, Any]) -> None:
    """What the types cannot say: forms of texts."""
    for name in ("graph_sha256", "weights_sha256"):
        definitions["PlanModel"]["properties"][name].update(_SHA256)
    definitions["PlanCosts"]["properties"]["sha256"].update(_SHA256)
    kinds = "input|weight|constant|activation|gradient|state|output|pinned"
    _field(definitions, PlanTensor, "kind")["pattern"] = rf"^({kinds})$|^(view|state) of [\s\S]+$"
    _field(definitions, PlanNode, "flags")["items"]["pattern"] = r"^once$|^in place of [\s\S]+$"
    _field(definitions, PlanStep, "action")["enum"] = ["compute", "free"]
    _field(definitions, PlanStep, "note")["pattern"] = r"^$|^in place of [\s\S]+$"


def _field(definitions: dict[str, Any], row: type[msgspec.Struct], name: str) -> dict[str, Any]:
    field: dict[str, Any] = definitions[row.__name__]["prefixItems"][row.__struct_fields__.index(name)]
    return field


if __name__ == "__main__":
    SCHEMA_FILE.write_bytes(schema_bytes())
