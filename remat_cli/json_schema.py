"""JSON schemas of our file formats, generated from the types that read them."""

from __future__ import annotations

from typing import Any

import msgspec


def schema_of(root: type[msgspec.Struct], name: str, version: str) -> dict[str, Any]:
    """JSON schema 2020-12 of the format `name` at `version`, whose file is one `root`. Any minor version is valid."""
    _, definitions = msgspec.json.schema_components([root], ref_template="#/$defs/{name}")
    top = definitions.pop(root.__name__)
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{name}/{version}",
        **{key: value for key, value in top.items() if key != "title"},
        "$defs": definitions,
    }
    schema["properties"]["format"] = {"const": name}
    schema["properties"]["format_version"] = {"type": "string", "pattern": rf"^{version.partition('.')[0]}\.[0-9]+$"}
    return schema


def name_positions(schema: dict[str, Any], row: type[msgspec.Struct]) -> None:
    """Title each position of the array type `row` with its field's name."""
    for name, field in zip(row.__struct_fields__, schema["$defs"][row.__name__]["prefixItems"], strict=True):
        field["title"] = name
