"""What differs between two plans: meaning, not text. Key order, order of table rows and unknown fields do not count.

Formats for people and machines are in `remat_cli.report.plan_diff`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from fractions import Fraction

import msgspec

from remat_cli.errors import InputError
from remat_cli.plan.types import Plan, PlanNode, PlanStep, PlanTensor

# Figures that a change of costs moves: a tolerance applies to these and to the nodes' own costs.
_COST_FIELDS = ("cost_ns", "workspace_bytes")
_SOLVER_FIGURES = ("cost_ns", "lower_bound_ns")
# Where costs come from: with a tolerance, the costs themselves are compared instead.
_COST_ORIGIN = ("costs.file", "costs.sha256")
# A fine-tuned model replays the same plan.
_NOTES_ONLY = ("model.weights_sha256",)

Value = int | str | tuple[str, ...] | None


@dataclass(frozen=True)
class Change:
    """One field with two values. `counts`: False where the difference lies within the tolerance, or never matters.

    `field`: dotted name as in the file, such as ``predicted.peak_bytes``.
    """

    field: str
    a: Value
    b: Value
    counts: bool = True

    @property
    def change_pct(self) -> float | None:
        """Change from a to b in percent of a, for numbers; None from zero."""
        if not isinstance(self.a, int) or not isinstance(self.b, int) or self.a == 0:
            return None
        return float(Fraction(100 * (self.b - self.a), self.a))


@dataclass(frozen=True)
class RowChange:
    """A table row that differs. `field` is "" when only one plan has the row: then `a` or `b` is None and the other
    value tells what the row is."""

    id: str
    field: str
    a: Value
    b: Value
    counts: bool = True


@dataclass(frozen=True)
class Recompute:
    """A node that the two plans compute `a` and `b` times; 0 where a plan does not have it."""

    node: str
    a: int
    b: int


@dataclass(frozen=True)
class StepEdit:
    """Steps a_start... of the first plan that became b_start... of the second: one of the two may be empty."""

    a_start: int
    a: tuple[PlanStep, ...]
    b_start: int
    b: tuple[PlanStep, ...]


@dataclass(frozen=True)
class PlanDiff:
    """All differences. `differs`: whether any of them counts, which decides the exit status."""

    tolerance_pct: float
    header: tuple[Change, ...]
    predicted: tuple[Change, ...]
    tensors: tuple[RowChange, ...]
    nodes: tuple[RowChange, ...]
    recomputes: tuple[Recompute, ...]
    steps: tuple[StepEdit, ...]

    @property
    def differs(self) -> bool:
        fields, rows = (*self.header, *self.predicted), (*self.tensors, *self.nodes)
        return bool(self.steps) or any(field.counts for field in fields) or any(row.counts for row in rows)

    @property
    def empty(self) -> bool:
        """No difference at all, within the tolerance or not."""
        return not (self.header or self.predicted or self.tensors or self.nodes or self.steps)


def diff_plans(a: Plan, b: Plan, tolerance_pct: float = 0.0) -> PlanDiff:
    """What changes from plan `a` to plan `b`.

    `tolerance_pct`: figures of `predicted`, the solver's cost and bound, and nodes' costs and workspaces may move by so
    many percent of `a`'s without counting. Sizes, names, budgets and steps have no tolerance.
    Raises InputError for a tolerance that is negative or no number.
    """
    if not 0 <= tolerance_pct < math.inf:
        raise InputError(f"a tolerance of {tolerance_pct} percent has no meaning", "give a number from 0 up")
    tolerance = Fraction(tolerance_pct)
    return PlanDiff(
        tolerance_pct=tolerance_pct,
        header=tuple(_header(a, b, tolerance)),
        predicted=tuple(_fields("predicted", a.predicted, b.predicted, tolerance)),
        tensors=tuple(_rows(a.tensors, b.tensors, tolerance)),
        nodes=tuple(_rows(a.nodes, b.nodes, tolerance)),
        recomputes=tuple(_recomputes(a, b)),
        steps=tuple(_steps(a.steps, b.steps)),
    )


def _header(a: Plan, b: Plan, tolerance: Fraction) -> Iterator[Change]:
    if a.format_version != b.format_version:
        yield Change("format_version", a.format_version, b.format_version)
    yield from _fields("model", a.model, b.model)
    yield from _fields("device", a.device, b.device)
    for change in _fields("costs", a.costs, b.costs):
        yield Change(change.field, change.a, change.b, not (tolerance and change.field in _COST_ORIGIN))
    if a.budget_bytes != b.budget_bytes:
        yield Change("budget_bytes", a.budget_bytes, b.budget_bytes)
    yield from _fields("solver", a.solver, b.solver, tolerance, _SOLVER_FIGURES)
    if a.outputs != b.outputs:
        yield Change("outputs", a.outputs, b.outputs)


def _fields(
    prefix: str, a: msgspec.Struct, b: msgspec.Struct, tolerance: Fraction = Fraction(0), figures: Sequence[str] = ()
) -> Iterator[Change]:
    """Fields of one header object that differ. `figures`: those with a tolerance; all of them in `predicted`."""
    for name in a.__struct_fields__:
        mine, other = getattr(a, name), getattr(b, name)
        field = f"{prefix}.{name}"
        if isinstance(mine, dict):
            yield from _mapping(field, mine, other)
        elif mine != other:
            tolerated = (prefix == "predicted" or name in figures) and _close(mine, other, tolerance)
            yield Change(field, mine, other, not tolerated and field not in _NOTES_ONLY)


def _mapping(prefix: str, a: Mapping[str, int], b: Mapping[str, int]) -> Iterator[Change]:
    for key in sorted(a.keys() | b.keys()):
        if a.get(key) != b.get(key):
            yield Change(f"{prefix}.{key}", a.get(key), b.get(key))


def _close(a: Value, b: Value, tolerance: Fraction) -> bool:
    return isinstance(a, int) and isinstance(b, int) and 100 * abs(b - a) <= tolerance * a


def _rows(
    a: Sequence[PlanTensor] | Sequence[PlanNode], b: Sequence[PlanTensor] | Sequence[PlanNode], tolerance: Fraction
) -> Iterator[RowChange]:
    """Rows that differ, by id: in the order of `a`, then those that only `b` has."""
    old, new = {row.id: row for row in a}, {row.id: row for row in b}
    for name, row in old.items():
        if name not in new:
            yield RowChange(name, "", _summary(row), None)
            continue
        for field in row.__struct_fields__:
            mine, other = getattr(row, field), getattr(new[name], field)
            if mine != other:
                tolerated = field in _COST_FIELDS and _close(mine, other, tolerance)
                yield RowChange(name, field, mine, other, not tolerated)
    yield from (RowChange(name, "", None, _summary(row)) for name, row in new.items() if name not in old)


def _summary(row: PlanTensor | PlanNode) -> str:
    return f"{row.kind}, {row.size_bytes} bytes" if isinstance(row, PlanTensor) else row.op_type


def _recomputes(a: Plan, b: Plan) -> Iterator[Recompute]:
    """Nodes that are computed more or less often, in the order of the tables."""
    old, new = (Counter(step.target for step in plan.steps if step.action == "compute") for plan in (a, b))
    for node in dict.fromkeys([row.id for row in a.nodes] + [row.id for row in b.nodes]):
        if old[node] != new[node]:
            yield Recompute(node, old[node], new[node])


def _steps(a: Sequence[PlanStep], b: Sequence[PlanStep]) -> Iterator[StepEdit]:
    # Common ends are most of two similar plans, and difflib is quadratic at worst.
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    middle_a, middle_b = a[start : len(a) - end], b[start : len(b) - end]
    for tag, i, i_end, j, j_end in SequenceMatcher(None, middle_a, middle_b, autojunk=False).get_opcodes():
        if tag != "equal":
            yield StepEdit(start + i, tuple(middle_a[i:i_end]), start + j, tuple(middle_b[j:j_end]))
