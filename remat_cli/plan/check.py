"""Is a plan true? Everything that it says is found again from its tables and steps, and compared.

`check_plan` needs the plan alone. `check_model` compares the hashes of a model, and `check_tables` the plan's tables
with the problem that the model gives now. Reports can be added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from remat_cli.errors import CheckFailed, FileFormatError, InputError
from remat_cli.memory import Compute, IllegalStepError, Step, replay
from remat_cli.plan.convert import (
    IN_PLACE_OF,
    ONCE,
    PER_STEP,
    flags_of,
    kind_text,
    problem_of,
    steps_of_plan,
    workspace_bytes_of,
)
from remat_cli.plan.predict import Prediction, predict
from remat_cli.plan.types import Plan, PlanNode, PlanPredicted
from remat_cli.problem import RESIDENT_KINDS, NodeCost, Problem
from remat_cli.units import format_bytes

_BY_PLACEMENT = ("arena_bytes", "peak_bytes")


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong. `where`: JSON path in the plan, such as ``$.steps[3]``, or what was compared."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True)
class CheckReport:
    """What a check found. `predicted`: the figures as replay and placement find them, None when the steps are illegal.
    `notes`: differences that do not matter, which users should know of."""

    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()
    predicted: PlanPredicted | None = None

    @property
    def ok(self) -> bool:
        return not self.faults

    def __add__(self, other: CheckReport) -> CheckReport:
        return CheckReport(self.faults + other.faults, self.notes + other.notes, self.predicted or other.predicted)

    def raise_faults(self, file: str, hint: str | None = None) -> None:
        """CheckFailed with the first fault of the plan `file`, and the number of others; nothing when there is none."""
        if self.faults:
            others = len(self.faults) - 1
            more = f" (and {others} more fault{'s' if others > 1 else ''})" if others else ""
            raise CheckFailed(f"{file}: {self.faults[0]}{more}", hint or f"remat check {file} lists all faults")


def check_plan(plan: Plan, *, budget_bytes: int | None = None) -> CheckReport:
    """Replay and place the plan anew: legal steps, every field of `predicted`, the cost, the peak within the budget.

    `budget_bytes`: another budget to hold the peak against, beside the plan's own. Never raises for a wrong plan: also
    tables that make no sense are faults.
    """
    try:
        problem = problem_of(plan)
        steps = steps_of_plan(plan, problem)
    except FileFormatError as error:
        return CheckReport((Fault(error.where, error.message.removeprefix(f"{error.file}: {error.where}: ")),))
    found = _predict(plan, problem, steps)
    if isinstance(found, Fault):
        return CheckReport((found,))
    faults = [*_compare_figures(plan, found.predicted), *_compare_budgets(plan, found.predicted, budget_bytes)]
    return CheckReport(tuple(faults), (), found.predicted)


def check_model(plan: Plan, graph_sha256: str, weights_sha256: str) -> CheckReport:
    """Whether the plan is for the graph with these hashes. Other weights are a note: the same plan replays them."""
    faults, notes = [], []
    if plan.model.graph_sha256 != graph_sha256:
        dims = "".join(f" {name}={size}" for name, size in sorted(plan.model.dims.items()))
        faults.append(
            Fault(
                "$.model.graph_sha256",
                f"the plan was made for another model: for {plan.model.file}{dims and ' with' + dims}, graph"
                f" {plan.model.graph_sha256[:12]}, not graph {graph_sha256[:12]}",
            )
        )
    if plan.model.weights_sha256 != weights_sha256:
        notes.append(f"weights differ from those that the plan was made with ({plan.model.file}): it holds for both")
    return CheckReport(tuple(faults), tuple(notes))


def check_tables(
    plan: Plan,
    problem: Problem,
    *,
    node_costs: Mapping[str, NodeCost] | None = None,
    resident_bytes: Mapping[str, int] | None = None,
) -> CheckReport:
    """Compare the plan's tables with the problem of its model, row by row, in any order of rows.

    Costs are compared with `problem`'s. `node_costs` (id -> cost) compares workspaces too; `resident_bytes` (id ->
    aligned bytes) the size of each resident, where otherwise only their sum is compared. Nodes of the plan may allow
    fewer in-place inputs than the problem's, as in plans of ``--no-in-place``, but no others.
    """
    faults = [
        *_compare_tensors(plan, problem, resident_bytes),
        *_compare_nodes(plan, problem, node_costs),
        *_compare_totals(plan, problem),
    ]
    return CheckReport(tuple(faults))


def _predict(plan: Plan, problem: Problem, steps: Sequence[Step]) -> Prediction | Fault:
    try:
        replay(problem, steps)
    except IllegalStepError as error:
        at_end = error.step == len(steps)
        where = "$.steps" if at_end else f"$.steps[{error.step}]"
        return Fault(where, error.reason if at_end else error.reason + _last_seen(problem, steps, error.step))
    try:
        return predict(
            problem,
            steps,
            workspace_bytes=workspace_bytes_of(plan),
            per_step=plan.costs.workspace == PER_STEP,
        )
    except IllegalStepError as error:
        return Fault("$.nodes", f"the nodes in the order of the table are no schedule: {error.reason}")
    except InputError as error:
        return Fault("$.tensors", error.message)


def _last_seen(problem: Problem, steps: Sequence[Step], k: int) -> str:
    """Where an input that compute step k lacks was released, for messages."""
    step = steps[k]
    if not isinstance(step, Compute):
        return ""
    needed = set(problem.reads[step.node])
    released: dict[int, str] = {}
    for j, earlier in enumerate(steps[:k]):
        if isinstance(earlier, Compute):
            for t in problem.nodes[earlier.node].outputs:
                released.pop(t, None)
            if earlier.in_place_of is not None:
                released[problem.root[earlier.in_place_of]] = f": $.steps[{j}] overwrote it"
        else:
            released[earlier.tensor] = f": $.steps[{j}] freed it"
    return next((released[t] for t in problem.reads[step.node] if t in released and t in needed), "")


def _compare_figures(plan: Plan, found: PlanPredicted) -> Iterator[Fault]:
    for name in found.__struct_fields__:
        said, seen = getattr(plan.predicted, name), getattr(found, name)
        if said != seen:
            by = "placement" if name in _BY_PLACEMENT and plan.costs.workspace != PER_STEP else "the replay"
            yield Fault(f"$.predicted.{name}", f"predicted.{name} says {said} but {by} finds {seen}")
    solver = plan.solver
    if solver.cost_ns != found.compute_ns:
        yield Fault("$.solver.cost_ns", f"solver.cost_ns says {solver.cost_ns} but the replay finds {found.compute_ns}")
    if solver.lower_bound_ns is not None and solver.lower_bound_ns > found.compute_ns:
        yield Fault(
            "$.solver.lower_bound_ns",
            f"the steps cost {found.compute_ns} ns, less than the lower bound of {solver.lower_bound_ns} ns",
        )


def _compare_budgets(plan: Plan, found: PlanPredicted, asked: int | None) -> Iterator[Fault]:
    for where, name, budget in (("$.budget_bytes", "its budget", plan.budget_bytes), ("budget", "the budget", asked)):
        if budget is not None and found.peak_bytes > budget:
            over = found.peak_bytes - budget
            yield Fault(
                where,
                f"the plan needs {found.peak_bytes} bytes ({format_bytes(found.peak_bytes)}), {over} more than {name}"
                f" of {budget} ({format_bytes(budget)})",
            )


def _compare_tensors(plan: Plan, problem: Problem, resident_bytes: Mapping[str, int] | None) -> Iterator[Fault]:
    rows = {row.id: k for k, row in enumerate(plan.tensors)}
    index = {tensor.id: t for t, tensor in enumerate(problem.tensors)}
    yield from _missing(rows, index, "tensor", "$.tensors")
    for k, row in enumerate(plan.tensors):
        where = f"$.tensors[{k}]"
        if row.id not in index:
            # Problem files know the sum of their residents only; it is compared with the other totals.
            if not (plan.costs.workspace == PER_STEP and row.kind in RESIDENT_KINDS):
                yield Fault(where, f"the model has no tensor {_name(row.id)}")
            continue
        tensor = problem.tensors[index[row.id]]
        yield from _differ(f"{where}[2]", row.id, "kind", row.kind, kind_text(problem, index[row.id]))
        size: int | None = tensor.size_bytes
        if tensor.kind in RESIDENT_KINDS:
            size = None if resident_bytes is None else resident_bytes.get(row.id, 0)
        yield from _differ(f"{where}[1]", row.id, "size", row.size_bytes, row.size_bytes if size is None else size)


def _compare_nodes(plan: Plan, problem: Problem, node_costs: Mapping[str, NodeCost] | None) -> Iterator[Fault]:
    rows = {row.id: k for k, row in enumerate(plan.nodes)}
    index = {node.id: v for v, node in enumerate(problem.nodes)}
    yield from _missing(rows, index, "node", "$.nodes")
    for k, row in enumerate(plan.nodes):
        if row.id in index:
            yield from _compare_node(plan, problem, k, index[row.id], node_costs)
        else:
            yield Fault(f"$.nodes[{k}]", f"the model has no node {_name(row.id)}")


def _compare_node(
    plan: Plan, problem: Problem, k: int, v: int, node_costs: Mapping[str, NodeCost] | None
) -> Iterator[Fault]:
    row, node, where = plan.nodes[k], problem.nodes[v], f"$.nodes[{k}]"
    yield from _differ(f"{where}[1]", row.id, "operator", row.op_type, node.op_type)
    yield from _differ(f"{where}[2]", row.id, "inputs", row.inputs, _ids(problem, node.inputs))
    yield from _differ(f"{where}[3]", row.id, "outputs", row.outputs, _ids(problem, node.outputs))
    yield from _differ(f"{where}[4]", row.id, "cost", row.cost_ns, node.cost_ns)
    workspace: int | None = node.workspace_bytes if plan.costs.workspace == PER_STEP else None
    if node_costs is not None and row.id in node_costs:
        workspace = node_costs[row.id].workspace_bytes
    if workspace is not None:
        yield from _differ(f"{where}[5]", row.id, "workspace", row.workspace_bytes, workspace)
    yield from _compare_flags(f"{where}[6]", row, flags_of(problem, v))


def _compare_flags(where: str, row: PlanNode, flags: Sequence[str]) -> Iterator[Fault]:
    yield from _differ(where, row.id, "running only once", ONCE in row.flags, ONCE in flags)
    for flag in row.flags:
        if flag.startswith(IN_PLACE_OF) and flag not in flags:
            yield Fault(where, f"{_name(row.id)} cannot run {flag[:100]}")


def _compare_totals(plan: Plan, problem: Problem) -> Iterator[Fault]:
    outputs = _ids(problem, problem.outputs)
    if plan.outputs != outputs:
        yield Fault("$.outputs", f"the model's outputs are {_names(outputs)}, the plan says {_names(plan.outputs)}")
    if plan.device.alignment != problem.alignment:
        yield Fault("$.device.alignment", f"sizes are for {problem.alignment}, the plan says {plan.device.alignment}")
    fixed = sum(row.size_bytes for row in plan.tensors if row.kind in RESIDENT_KINDS)
    if plan.costs.workspace != PER_STEP:
        fixed += workspace_bytes_of(plan)
    if fixed != problem.fixed_bytes:
        yield Fault("$.tensors", f"the model's fixed bytes are {problem.fixed_bytes}, the plan's rows say {fixed}")


def _missing(rows: Mapping[str, int], index: Mapping[str, int], what: str, where: str) -> Iterator[Fault]:
    if missing := [name for name in index if name not in rows]:
        yield Fault(where, f"the model's {what} {_names(missing)} {'is' if len(missing) == 1 else 'are'} missing")


def _differ(where: str, row: str, what: str, said: object, true: object) -> Iterator[Fault]:
    if said != true:
        yield Fault(where, f"{what} of {_name(row)}: the plan says {_value(said)}, the model {_value(true)}")


def _ids(problem: Problem, tensors: Iterable[int]) -> tuple[str, ...]:
    return tuple(problem.tensors[t].id for t in tensors)


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return _names(value)
    return _name(value) if isinstance(value, str) else str(value)


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(_name(name) for name in names[:3]) or "none"
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _name(name: str) -> str:
    return repr(name) if len(name) <= 60 else f"{name[:57]!r}..."
