"""The published JSON schema of profile files. After a change of the types: ``python -m remat_cli.profile.schema``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.profile.types import FORMAT, VERSION, Profile, ProfileNode

SCHEMA_FILE = Path(__file__).with_name("profile.schema.json")


def schema_bytes() -> bytes:
    """What `SCHEMA_FILE` must hold. JSON schema 2020-12; row fields are named by the titles of their positions."""
    (_, definitions) = msgspec.json.schema_components([Profile], ref_template="#/$defs/{name}")
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{FORMAT}/{VERSION}",
        **{key: value for key, value in definitions.pop("Profile").items() if key != "title"},
        "$defs": definitions,
    }
    schema["properties"]["format"] = {"const": FORMAT}
    major = VERSION.partition(".")[0]
    schema["properties"]["format_version"] = {"type": "string", "pattern": rf"^{major}\.[0-9]+$"}
    row = definitions["ProfileNode"]
    for name, field in zip(ProfileNode.__struct_fields__, row["prefixItems"], strict=True):
        field["title"] = name
    return (json.dumps(schema, indent=2) + "\n").encode()


if __name__ == "__main__":
    SCHEMA_FILE.write_bytes(schema_bytes())
