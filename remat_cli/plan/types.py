"""The plan file (`remat-plan/1`): a self-contained, diffable schedule. DESIGN: docs/plan-format.md.

Field order here is key order in the file. All sizes are bytes, all times nanoseconds, all numbers integers.
Rows of tables are JSON arrays; trailing fields that are empty are left out of the file.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from remat_cli.units import MAX_BYTES

FORMAT = "remat-plan"
VERSION = "1.0"

# Largest integer in our files: readers in other languages have 64 bits.
MAX_INT = 2**63 - 1

# A single storage above an exbibyte is a damaged file; sums may be larger.
Bytes = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]
Sum = Annotated[int, msgspec.Meta(ge=0)]
Ns = Annotated[int, msgspec.Meta(ge=0)]
Id = Annotated[str, msgspec.Meta(min_length=1)]


class PlanModel(msgspec.Struct, frozen=True):
    """The model that the plan is for. For problem files `file` is the problem's and the hashes are of it."""

    file: str
    graph_sha256: str
    weights_sha256: str
    dims: dict[str, Annotated[int, msgspec.Meta(ge=0)]]
    optimize: str = "none"


class PlanDevice(msgspec.Struct, frozen=True):
    """What the sizes were rounded for, and what the costs were measured on."""

    name: str
    alignment: Annotated[int, msgspec.Meta(ge=1, le=2**30)]
    threads: Annotated[int, msgspec.Meta(ge=1)]


class PlanCosts(msgspec.Struct, frozen=True):
    """Where the costs come from.

    `source`: "profile", "cost-model" or "problem". `file`: bare name of the profile, cost model or problem file.
    `workspace`: "measured" or "estimated" (the largest is committed beside the arena and part of `fixed_bytes`), or
    "per step" (problem files: each counts during its own step alone).
    """

    source: Literal["profile", "cost-model", "problem"]
    file: str
    sha256: str
    workspace: Literal["measured", "estimated", "per step"]


class PlanSolver(msgspec.Struct, frozen=True):
    """Who made the schedule and what is proved. `method` made it; `asked` is what the user asked for."""

    method: str
    asked: str
    status: Literal["optimal", "feasible"]
    scope: str
    cost_ns: Ns
    lower_bound_ns: Ns | None
    seed: int
    ortools: str


class PlanPredicted(msgspec.Struct, frozen=True):
    """What a replay must find; readers recompute it and refuse a plan that says otherwise.

    `peak_bytes` = fixed_bytes + arena_bytes; where the workspace counts per step (problem files, which nothing
    executes) it is fixed_bytes + live_peak_bytes, and `arena_bytes` tells what a static placement would take.
    `live_peak_bytes`: the replay's peak, without fixed bytes. `fixed_bytes`: all residents, and workspace_bytes
    unless that counts per step. `workspace_bytes`: the largest of any node, rounded up to the alignment.
    `store_all_ns`, `store_all_peak_bytes`: the same replay of every node once in table order, fixed bytes included.
    `recomputed`: how many compute steps are not a node's first.
    """

    peak_bytes: Sum
    live_peak_bytes: Sum
    arena_bytes: Sum
    fixed_bytes: Sum
    workspace_bytes: Bytes
    compute_ns: Ns
    store_all_ns: Ns
    store_all_peak_bytes: Sum
    recomputed: Sum


class PlanTensor(msgspec.Struct, frozen=True, array_like=True):
    """id, storage bytes (0 for views and states), kind; ``view of X`` and ``state of X`` name the storage's owner.

    Residents (input, weight, constant) have their aligned size: their sum is part of `fixed_bytes`. Problem files
    know only that sum: one more row, a weight called "(fixed)", carries it.
    """

    id: Id
    size_bytes: Bytes
    kind: str


class PlanNode(msgspec.Struct, frozen=True, array_like=True):
    """id, operator, input tensors, output tensors, cost, workspace, and notes for readers.

    `flags`: "once" when the node may run only once; one "in place of TENSOR" for each input that its first output
    may overwrite, best first.
    """

    id: Id
    op_type: str
    inputs: tuple[Id, ...]
    outputs: tuple[Id, ...]
    cost_ns: Ns
    workspace_bytes: Bytes
    flags: tuple[str, ...] = ()


class PlanStep(msgspec.Struct, frozen=True, array_like=True):
    """("compute", node), ("compute", node, "in place of TENSOR") or ("free", tensor)."""

    action: str
    target: Id
    note: str = ""


class Plan(msgspec.Struct, frozen=True):
    """A whole plan; `remat_cli.plan.files` reads and writes it, `remat_cli.plan.check` replays it."""

    format: str
    format_version: str
    model: PlanModel
    device: PlanDevice
    costs: PlanCosts
    budget_bytes: Sum
    solver: PlanSolver
    predicted: PlanPredicted
    tensors: tuple[PlanTensor, ...]
    outputs: tuple[Id, ...]
    nodes: tuple[PlanNode, ...]
    steps: tuple[PlanStep, ...]
