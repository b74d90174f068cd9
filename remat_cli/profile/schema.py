"""The published JSON schema of profile files. After a change of the types: ``python -m remat_cli.profile.schema``."""

from __future__ import annotations

import json
from pathlib import Path

from remat_cli.json_schema import name_positions, schema_of
from remat_cli.profile.types import FORMAT, VERSION, Profile, ProfileNode

SCHEMA_FILE = Path(__file__).with_name("profile.schema.json")


def schema_bytes() -> bytes:
    """What `SCHEMA_FILE` must hold. JSON schema 2020-12; row fields are named by the titles of their positions."""
    schema = schema_of(Profile, FORMAT, VERSION)
    name_positions(schema, ProfileNode)
    return (json.dumps(schema, indent=2) + "\n").encode()


if __name__ == "__main__":
    SCHEMA_FILE.write_bytes(schema_bytes())
