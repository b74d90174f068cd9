"""The plan file (`remat-plan/1`): a self-contained, diffable schedule. DESIGN: docs/plan-format.md.

Field order here is key order in the file. All sizes are bytes, all times nanoseconds, all numbers integers.
"""

from __future__ import annotations

import msgspec

FORMAT = "remat-plan"
VERSION = "1.0"


class PlanModel(msgspec.Struct, frozen=True):
    """The model that the plan is for. For problem files `file` is the problem's and the hashes are of it."""

    file: str
    graph_sha256: str
    weights_sha256: str
    dims: dict[str, int]
    optimize: str = "none"


class PlanDevice(msgspec.Struct, frozen=True):
    """What the sizes were rounded for, and what the costs were measured on."""

    name: str
    alignment: int
    threads: int


class PlanCosts(msgspec.Struct, frozen=True):
    """Where the costs come from.

    `source`: "profile", "cost-model" or "problem". `file`: bare name of the profile, cost model or problem file.
    `workspace`: "measured" or "estimated" (the largest is committed beside the arena and part of `fixed_bytes`), or
    "per step" (problem files: each counts during its own step alone).
    """

    source: str
    file: str
    sha256: str
    workspace: str


class PlanSolver(msgspec.Struct, frozen=True):
    """Who made the schedule and what is proved. `method` made it; `asked` is what the user asked for."""

    method: str
    asked: str
    status: str
    scope: str
    cost_ns: int
    lower_bound_ns: int | None
    seed: int
    ortools: str


class PlanPredicted(msgspec.Struct, frozen=True):
    """What a replay must find; readers recompute it and refuse a plan that says otherwise.

    peak_bytes = fixed_bytes + arena_bytes; fixed_bytes includes workspace_bytes unless the workspace counts per step.
    """

    peak_bytes: int
    live_peak_bytes: int
    arena_bytes: int
    fixed_bytes: int
    workspace_bytes: int
    compute_ns: int
    store_all_ns: int
    store_all_peak_bytes: int
    recomputed: int


class PlanTensor(msgspec.Struct, frozen=True, array_like=True):
    """id, storage bytes (0 for views and states), kind; ``view of X`` and ``state of X`` name the storage's owner.

    Residents (input, weight, constant) have their aligned size: their sum is part of `fixed_bytes`.
    """

    id: str
    size_bytes: int
    kind: str


class PlanNode(msgspec.Struct, frozen=True, array_like=True):
    """id, operator, input tensors, output tensors, cost, workspace, and notes for readers.

    `flags`: "once" when the node may run only once; "in place: a, b" names inputs that its first output may overwrite.
    """

    id: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    cost_ns: int
    workspace_bytes: int
    flags: tuple[str, ...] = ()


class PlanStep(msgspec.Struct, frozen=True, array_like=True):
    """("compute", node), ("compute", node, "in place of TENSOR") or ("free", tensor)."""

    action: str
    target: str
    note: str = ""


class Plan(msgspec.Struct, frozen=True):
    """A whole plan; `remat_cli.plan.files` reads and writes it, `remat_cli.plan.check` replays it."""

    format: str
    format_version: str
    model: PlanModel
    device: PlanDevice
    costs: PlanCosts
    budget_bytes: int
    solver: PlanSolver
    predicted: PlanPredicted
    tensors: tuple[PlanTensor, ...]
    outputs: tuple[str, ...]
    nodes: tuple[PlanNode, ...]
    steps: tuple[PlanStep, ...]
