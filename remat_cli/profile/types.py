"""The profile file (`remat-profile/1`): what each node costs on one device, as measured.

One JSON object, UTF-8, fixed key order, integers only, one node a line, no host name, date or path.
"""

from __future__ import annotations

import msgspec

from remat_cli.problem import NodeCost

FORMAT = "remat-profile"
VERSION = "1.0"


class ProfileModel(msgspec.Struct, frozen=True):
    """Which graph was measured. `file` is a bare file name."""

    file: str
    graph_sha256: str
    dims: dict[str, int]


class ProfileDevice(msgspec.Struct, frozen=True):
    """Where it was measured. `model`: the processor's or card's own name."""

    name: str
    threads: int
    model: str = ""


class ProfileNode(msgspec.Struct, frozen=True, array_like=True):
    """One node: id, operator, median time, spread (third quartile - first quartile), scratch, bytes of each output."""

    id: str
    op_type: str
    median_ns: int
    spread_ns: int
    workspace_bytes: int
    output_bytes: tuple[int, ...]


class Profile(msgspec.Struct, frozen=True):
    """A whole profile; `remat_cli.profile.files` reads and writes it."""

    format: str
    format_version: str
    model: ProfileModel
    device: ProfileDevice
    versions: dict[str, str]
    nodes: tuple[ProfileNode, ...]

    def costs(self) -> dict[str, NodeCost]:
        """Node id -> cost."""
        return {n.id: NodeCost(n.median_ns, n.workspace_bytes) for n in self.nodes}
