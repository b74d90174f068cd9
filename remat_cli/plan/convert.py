"""Between plans and problems: the tables of a plan as a `Problem`, its steps, and a `Solution` as a plan.

`problem_of(lower_solution(problem, ...))` is `problem` again, but for what a plan does not hold: a view names the
storage that it shares rather than another view, and residents of problem files become one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar, get_args

from remat_cli.errors import FileFormatError, InputError, InternalError
from remat_cli.memory import Compute, Free, Step, steps_of
from remat_cli.plan.placement import Placement
from remat_cli.plan.predict import predict
from remat_cli.plan.types import (
    FORMAT,
    MAX_INT,
    VERSION,
    Plan,
    PlanCosts,
    PlanDevice,
    PlanModel,
    PlanNode,
    PlanPredicted,
    PlanSolver,
    PlanStep,
    PlanTensor,
)
from remat_cli.problem import RESIDENT_KINDS, Kind, Node, NodeCost, Problem, Solution, Tensor, committed_workspace
from remat_cli.units import align

PER_STEP = "per step"
IN_PLACE_OF = "in place of "
ONCE = "once"
VIEW_OF = "view of "
STATE_OF = "state of "
FIXED_ROW = "(fixed)"
_KINDS: frozenset[str] = frozenset(get_args(Kind)) - {"view"}

_Row = TypeVar("_Row", PlanTensor, PlanNode)


def problem_of(plan: Plan, file: str = "plan") -> Problem:
    """The problem that the plan's tables describe; its name is the model's file.

    Residents have size 0, as their bytes are in `fixed_bytes`, with the largest workspace unless that counts per step.
    Raises FileFormatError, with `file` and the JSON path, for names that are given twice or that nothing has, tensors
    that no node or two nodes make, nodes that read what a later node makes, and kinds and flags that do not exist.
    """
    return _Tables(plan, file).problem()


def steps_of_plan(plan: Plan, problem: Problem, file: str = "plan") -> list[Step]:
    """The plan's steps over the indices of `problem`, which has its nodes and tensors. Legal or not: see `replay`.

    Raises FileFormatError, with `file` and the JSON path, for unknown actions, names and notes.
    """
    tensors = {tensor.id: t for t, tensor in enumerate(problem.tensors)}
    nodes = {node.id: v for v, node in enumerate(problem.nodes)}

    def index(table: Mapping[str, int], name: str, what: str, k: int, field: int) -> int:
        if name not in table:
            raise FileFormatError(file, f"$.steps[{k}][{field}]", f"there is no {what} {_quote(name)}")
        return table[name]

    steps: list[Step] = []
    for k, step in enumerate(plan.steps):
        if step.action == "compute":
            if step.note and not step.note.startswith(IN_PLACE_OF):
                raise FileFormatError(
                    file, f"$.steps[{k}][2]", f"expected 'in place of TENSOR', got {_quote(step.note)}"
                )
            node = index(nodes, step.target, "node", k, 1)
            taken = index(tensors, step.note[len(IN_PLACE_OF) :], "tensor", k, 2) if step.note else None
            steps.append(Compute(node, taken))
        elif step.action == "free":
            if step.note:
                raise FileFormatError(file, f"$.steps[{k}][2]", f"a free has no note, got {_quote(step.note)}")
            steps.append(Free(index(tensors, step.target, "tensor", k, 1)))
        else:
            raise FileFormatError(file, f"$.steps[{k}][0]", f"expected compute or free, got {_quote(step.action)}")
    return steps


def costs_of_plan(plan: Plan) -> dict[str, NodeCost]:
    """Node id -> cost, as the plan's table has it."""
    return {node.id: NodeCost(node.cost_ns, node.workspace_bytes) for node in plan.nodes}


class _Tables:
    """The tables of one plan on their way to a `Problem`."""

    def __init__(self, plan: Plan, file: str) -> None:
        self.plan = plan
        self.file = file
        self.index = self._index("tensors", plan.tensors)
        self._index("nodes", plan.nodes)
        self.producer = self._producers()

    def problem(self) -> Problem:
        plan = self.plan
        tensors = tuple(self._tensor(k, row) for k, row in enumerate(plan.tensors))
        self._check_states(tensors)
        per_step = plan.costs.workspace == PER_STEP
        nodes = tuple(self._node(v, row, tensors, per_step) for v, row in enumerate(plan.nodes))
        outputs = tuple(self._tensor_index(name, f"$.outputs[{k}]") for k, name in enumerate(plan.outputs))
        workspace = 0 if per_step else workspace_bytes_of(plan)
        return Problem(
            name=plan.model.file,
            nodes=nodes,
            tensors=tensors,
            outputs=outputs,
            fixed_bytes=sum(row.size_bytes for row in plan.tensors if row.kind in RESIDENT_KINDS) + workspace,
            alignment=plan.device.alignment,
            batch=plan.model.dims.get("batch"),
        )

    def _fault(self, where: str, message: str) -> FileFormatError:
        return FileFormatError(self.file, where, message)

    def _index(self, table: str, rows: Sequence[_Row]) -> dict[str, int]:
        index: dict[str, int] = {}
        for k, row in enumerate(rows):
            if (first := index.setdefault(row.id, k)) != k:
                raise self._fault(f"$.{table}[{k}][0]", f"{_quote(row.id)} is given twice, first at $.{table}[{first}]")
        return index

    def _tensor_index(self, name: str, where: str) -> int:
        if name not in self.index:
            raise self._fault(where, f"there is no tensor {_quote(name)}")
        return self.index[name]

    def _producers(self) -> dict[int, int]:
        producer: dict[int, int] = {}
        for v, node in enumerate(self.plan.nodes):
            for j, name in enumerate(node.outputs):
                where = f"$.nodes[{v}][3][{j}]"
                t = self._tensor_index(name, where)
                if t in producer:
                    raise self._fault(where, f"{_quote(name)} is made twice, first at $.nodes[{producer[t]}]")
                kind = self.plan.tensors[t].kind
                if kind in RESIDENT_KINDS or kind.startswith(VIEW_OF):
                    raise self._fault(where, f"{_quote(name)} is of kind {_quote(kind)}, which no node makes")
                producer[t] = v
        return producer

    def _tensor(self, k: int, row: PlanTensor) -> Tensor:
        if row.kind.startswith(VIEW_OF):
            return Tensor(row.id, self._no_bytes(k, row), "view", view_of=self._owner(k, row, VIEW_OF))
        if row.kind in RESIDENT_KINDS:
            if self.plan.costs.workspace != PER_STEP:
                self._check_aligned(k, row)
            return Tensor(row.id, 0, _kind(row.kind))
        state_of = self._owner(k, row, STATE_OF) if row.kind.startswith(STATE_OF) else None
        if state_of is None and row.kind not in _KINDS:
            raise self._fault(f"$.tensors[{k}][2]", f"there is no kind {_quote(row.kind)}")
        if k not in self.producer:
            raise self._fault(f"$.tensors[{k}]", f"{_quote(row.id)} is made by no node")
        if state_of is not None:
            return Tensor(row.id, self._no_bytes(k, row), "state", self.producer[k], state_of=state_of)
        self._check_aligned(k, row)
        return Tensor(row.id, row.size_bytes, _kind(row.kind), self.producer[k])

    def _owner(self, k: int, row: PlanTensor, prefix: str) -> int:
        """The tensor whose storage the row's kind names: a resident for states, any storage for views."""
        where = f"$.tensors[{k}][2]"
        owner = self._tensor_index(row.kind[len(prefix) :], where)
        kind = self.plan.tensors[owner].kind
        if prefix == STATE_OF and kind not in RESIDENT_KINDS:
            raise self._fault(where, f"{_quote(self.plan.tensors[owner].id)} is not resident, but {kind}")
        if kind.startswith(VIEW_OF):
            raise self._fault(where, f"{_quote(self.plan.tensors[owner].id)} is a view itself: name its storage")
        return owner

    def _no_bytes(self, k: int, row: PlanTensor) -> int:
        if row.size_bytes:
            raise self._fault(f"$.tensors[{k}][1]", f"{row.kind[:60]} has no bytes of its own, got {row.size_bytes}")
        return 0

    def _check_aligned(self, k: int, row: PlanTensor) -> None:
        alignment = self.plan.device.alignment
        if row.size_bytes % alignment:
            raise self._fault(
                f"$.tensors[{k}][1]", f"{row.size_bytes} bytes are no multiple of the alignment, {alignment}"
            )

    def _check_states(self, tensors: Sequence[Tensor]) -> None:
        first: dict[int, int] = {}
        for t, tensor in enumerate(tensors):
            if tensor.state_of is not None and (earlier := first.setdefault(tensor.state_of, t)) != t:
                raise self._fault(
                    f"$.tensors[{t}][2]",
                    f"{_quote(tensors[tensor.state_of].id)} is overwritten twice, first at $.tensors[{earlier}]",
                )

    def _node(self, v: int, row: PlanNode, tensors: Sequence[Tensor], per_step: bool) -> Node:
        inputs = tuple(self._read(v, j, name, tensors) for j, name in enumerate(row.inputs))
        in_place: list[int] = []
        for j, flag in enumerate(row.flags):
            where = f"$.nodes[{v}][6][{j}]"
            if flag in row.flags[:j]:
                raise self._fault(where, f"{_quote(flag)} is given twice")
            if flag.startswith(IN_PLACE_OF):
                taken = self._tensor_index(flag[len(IN_PLACE_OF) :], where)
                if taken not in inputs or not row.outputs:
                    raise self._fault(where, f"{_quote(tensors[taken].id)} is no input that an output could overwrite")
                in_place.append(taken)
            elif flag != ONCE:
                raise self._fault(where, f"expected 'once' or 'in place of TENSOR', got {_quote(flag)}")
        return Node(
            id=row.id,
            op_type=row.op_type,
            inputs=inputs,
            outputs=tuple(self.index[name] for name in row.outputs),
            cost_ns=row.cost_ns,
            workspace_bytes=row.workspace_bytes if per_step else 0,
            recomputable=ONCE not in row.flags,
            in_place_inputs=tuple(in_place),
        )

    def _read(self, v: int, j: int, name: str, tensors: Sequence[Tensor]) -> int:
        where = f"$.nodes[{v}][2][{j}]"
        t = self._tensor_index(name, where)
        owner = tensors[t].view_of
        producer = tensors[t if owner is None else owner].producer
        if producer is not None and producer >= v:
            raise self._fault(where, f"{_quote(name)} is made no earlier than by $.nodes[{producer}]")
        return t


def lower_solution(
    problem: Problem,
    solution: Solution,
    *,
    model: PlanModel,
    device: PlanDevice,
    costs: PlanCosts,
    budget_bytes: int,
    asked: str,
    seed: int,
    ortools: str,
    node_costs: Mapping[str, NodeCost],
    resident_bytes: Mapping[str, int],
    placement: Placement | None = None,
) -> Plan:
    """The plan of a solution, with `predicted` as replay and placement find it.

    `asked`: the method that the user asked for. `ortools`: its version. `node_costs`: node id -> cost; gives the
    workspaces (the times are the problem's). `resident_bytes`: id -> aligned bytes of each resident; {} for problem
    files. `placement` of exactly these steps, where the caller has it already.
    Raises InputError when two nodes or two tensors have one id, or when times add up to more than 64 bits hold, and
    InternalError when the solution has no schedule or the fixed bytes of `problem` are not those of the tables.
    """
    if solution.sequence is None or solution.status not in ("optimal", "feasible"):
        raise InternalError(f"{solution.method} has no schedule of {problem.name}: {solution.status}")
    steps = steps_of(problem, solution.sequence)
    nodes = tuple(_node_row(problem, v, node_costs) for v in range(len(problem.nodes)))
    tensors = tuple(_tensor_row(problem, t, resident_bytes) for t in range(len(problem.tensors)))
    _require_unique("tensors", tensors)
    _require_unique("nodes", nodes)
    per_step = costs.workspace == PER_STEP
    largest = _workspace_bytes(nodes, device, per_step)
    tensors += _fixed_row(problem, tensors, 0 if per_step else largest, per_step)
    predicted = predict(problem, steps, workspace_bytes=largest, per_step=per_step, placement=placement).predicted
    _require_64_bits(problem, predicted)
    return Plan(
        format=FORMAT,
        format_version=VERSION,
        model=model,
        device=device,
        costs=costs,
        budget_bytes=budget_bytes,
        solver=PlanSolver(
            method=solution.method,
            asked=asked,
            status=solution.status,
            scope=solution.scope,
            cost_ns=predicted.compute_ns,
            lower_bound_ns=solution.lower_bound_ns,
            seed=seed,
            ortools=ortools,
        ),
        predicted=predicted,
        tensors=tensors,
        outputs=tuple(problem.tensors[t].id for t in problem.outputs),
        nodes=nodes,
        steps=tuple(_step_row(problem, step) for step in steps),
    )


def workspace_bytes_of(plan: Plan) -> int:
    """What the largest workspace of any node commits beside the arena; that workspace itself where it counts per
    step."""
    return _workspace_bytes(plan.nodes, plan.device, plan.costs.workspace == PER_STEP)


def _workspace_bytes(nodes: Sequence[PlanNode], device: PlanDevice, per_step: bool) -> int:
    largest = max((node.workspace_bytes for node in nodes), default=0)
    return align(largest, device.alignment) if per_step else committed_workspace(largest, device.alignment)


def kind_text(problem: Problem, t: int) -> str:
    """The kind of a tensor as plans write it: views and states name the owner of their storage."""
    tensor = problem.tensors[t]
    if tensor.view_of is not None:
        return VIEW_OF + problem.tensors[problem.root[t]].id
    if tensor.state_of is not None:
        return STATE_OF + problem.tensors[tensor.state_of].id
    return tensor.kind


def flags_of(problem: Problem, v: int) -> tuple[str, ...]:
    """The notes of a node as plans write them."""
    node = problem.nodes[v]
    in_place = dict.fromkeys(IN_PLACE_OF + problem.tensors[t].id for t in node.in_place_inputs)
    return (*(() if node.recomputable else (ONCE,)), *in_place)


def _tensor_row(problem: Problem, t: int, resident_bytes: Mapping[str, int]) -> PlanTensor:
    tensor = problem.tensors[t]
    resident = tensor.kind in RESIDENT_KINDS
    return PlanTensor(
        tensor.id, resident_bytes.get(tensor.id, 0) if resident else tensor.size_bytes, kind_text(problem, t)
    )


def _node_row(problem: Problem, v: int, node_costs: Mapping[str, NodeCost]) -> PlanNode:
    node = problem.nodes[v]
    known = node_costs.get(node.id)
    return PlanNode(
        id=node.id,
        op_type=node.op_type,
        inputs=tuple(problem.tensors[t].id for t in node.inputs),
        outputs=tuple(problem.tensors[t].id for t in node.outputs),
        cost_ns=node.cost_ns,
        workspace_bytes=known.workspace_bytes if known else node.workspace_bytes,
        flags=flags_of(problem, v),
    )


def _step_row(problem: Problem, step: Step) -> PlanStep:
    if isinstance(step, Free):
        return PlanStep("free", problem.tensors[step.tensor].id)
    note = "" if step.in_place_of is None else IN_PLACE_OF + problem.tensors[step.in_place_of].id
    return PlanStep("compute", problem.nodes[step.node].id, note)


def _fixed_row(problem: Problem, rows: Sequence[PlanTensor], workspace: int, per_step: bool) -> tuple[PlanTensor, ...]:
    """One row for fixed bytes that no resident accounts for, so that readers can add them up. Only problem files."""
    missing = problem.fixed_bytes - workspace - sum(row.size_bytes for row in rows if row.kind in RESIDENT_KINDS)
    if missing == 0:
        return ()
    if missing < 0 or not per_step:
        raise InternalError(
            f"{problem.name}: fixed bytes are {problem.fixed_bytes}, but residents and workspace are"
            f" {problem.fixed_bytes - missing}"
        )
    taken = {row.id for row in rows}
    name = next(name for k in range(len(rows) + 1) if (name := FIXED_ROW + "'" * k) not in taken)
    return (PlanTensor(name, missing, "weight"),)


def _require_unique(table: str, rows: Sequence[_Row]) -> None:
    first: dict[str, int] = {}
    for k, row in enumerate(rows):
        if (earlier := first.setdefault(row.id, k)) != k:
            raise InputError(f"two {table} are called {_quote(row.id)}: the first is number {earlier}, the other {k}")


def _require_64_bits(problem: Problem, predicted: PlanPredicted) -> None:
    for name in predicted.__struct_fields__:
        if (value := getattr(predicted, name)) > MAX_INT:
            raise InputError(f"{problem.name}: {name} is {value}, which does not fit 64 bits")


def _kind(text: str) -> Kind:
    assert text in _KINDS
    return text  # type: ignore[return-value]


def _quote(name: str) -> str:
    return repr(name) if len(name) <= 80 else f"{name[:60]!r}... ({len(name)} characters)"
