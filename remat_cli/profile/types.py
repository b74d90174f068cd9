"""The profile file (`remat-profile/1`): what each node costs on one device, as measured.

One JSON object, UTF-8, fixed key order, integers only, one node a line, no host name, date or path.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from remat_cli.problem import NodeCost
from remat_cli.units import MAX_BYTES

FORMAT = "remat-profile"
VERSION = "1.0"

# Larger figures are damaged files, and would overflow the solvers' 64-bit sums: 11 days a node, an exbibyte.
Ns = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]


class ProfileModel(msgspec.Struct, frozen=True):
    """Which graph was measured. `file` is a bare file name."""

    file: str
    graph_sha256: str
    dims: dict[str, Annotated[int, msgspec.Meta(ge=0)]]


class ProfileDevice(msgspec.Struct, frozen=True):
    """Where it was measured. `model`: the processor's or card's own name."""

    name: str
    threads: Annotated[int, msgspec.Meta(ge=1)]
    model: str = ""


class ProfileNode(msgspec.Struct, frozen=True, array_like=True):
    """One node: id, operator, median time, spread (third quartile - first quartile), scratch, bytes of each output."""

    id: Annotated[str, msgspec.Meta(min_length=1)]
    op_type: str
    median_ns: Ns
    spread_ns: Ns
    workspace_bytes: Bytes
    output_bytes: tuple[Bytes, ...]


class Profile(msgspec.Struct, frozen=True):
    """A whole profile; `remat_cli.profile.files` reads and writes it. `workspace`: how the scratch was found."""

    format: str
    format_version: str
    model: ProfileModel
    device: ProfileDevice
    versions: dict[str, str]
    nodes: tuple[ProfileNode, ...]
    workspace: Literal["measured", "estimated"] = "measured"

    def costs(self) -> dict[str, NodeCost]:
        """Node id -> cost."""
        return {n.id: NodeCost(n.median_ns, n.workspace_bytes) for n in self.nodes}
