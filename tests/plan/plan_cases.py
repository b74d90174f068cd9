"""Problems, schedules and plans for the tests of this folder: made by hand or from a seed, without any solver."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from remat_cli.memory import replay_sequence
from remat_cli.plan.convert import lower_solution
from remat_cli.plan.types import Plan, PlanCosts, PlanDevice, PlanModel
from remat_cli.problem import Node, NodeCost, Problem, Solution, Tensor, committed_workspace
from remat_cli.units import align

S = TypeVar("S", bound=msgspec.Struct)

ALIGNMENT = 64
DEVICE = PlanDevice("cpu", ALIGNMENT, 1)
COSTS = PlanCosts("profile", "net.profile.json", "c0" * 32, "measured")
PER_STEP = PlanCosts("problem", "net.json", "c1" * 32, "per step")
MODEL = PlanModel("net.onnx", "a0" * 32, "b0" * 32, {"batch": 8, "seq": 3})


class Builder:
    """Writes a `Problem` line by line; tensors and nodes are named, as in ONNX."""

    def __init__(self, alignment: int = ALIGNMENT) -> None:
        self.alignment = alignment
        self.tensors: list[Tensor] = []
        self.nodes: list[Node] = []
        self.index: dict[str, int] = {}
        self.resident_bytes: dict[str, int] = {}
        self.workspaces: dict[str, int] = {}

    def resident(self, name: str, size: int, kind: str = "weight") -> str:
        self.resident_bytes[name] = align(size, self.alignment)
        return self._add(Tensor(name, 0, kind))  # type: ignore[arg-type]

    def view(self, name: str, of: str) -> str:
        return self._add(Tensor(name, 0, "view", view_of=self.index[of]))

    def node(
        self,
        outputs: Sequence[tuple[str, int]],
        inputs: Sequence[str],
        *,
        op_type: str = "Op",
        cost: int = 1,
        workspace: int = 0,
        once: bool = False,
        in_place: Sequence[str] = (),
        state_of: str | None = None,
        kind: str = "activation",
        name: str | None = None,
    ) -> str:
        """One node; `outputs` are (name, bytes). Its id is the first output's name, or `name`."""
        v = len(self.nodes)
        made = []
        for output, size in outputs:
            state = self.index[state_of] if state_of else None
            row = Tensor(output, align(size, self.alignment), "state" if state_of else kind, v, state_of=state)  # type: ignore[arg-type]
            made.append(self.index[self._add(row)])
        self.workspaces[name or outputs[0][0]] = workspace
        reads = tuple(self.index[i] for i in inputs)
        taken = tuple(self.index[i] for i in in_place)
        node_id = name or outputs[0][0]
        self.nodes.append(Node(node_id, op_type, reads, tuple(made), cost, 0, not once, taken))
        return outputs[0][0]

    def build(self, outputs: Sequence[str], name: str = "net.onnx") -> Problem:
        workspace = committed_workspace(max(self.workspaces.values(), default=0), self.alignment)
        return Problem(
            name=name,
            nodes=tuple(self.nodes),
            tensors=tuple(self.tensors),
            outputs=tuple(self.index[o] for o in outputs),
            fixed_bytes=sum(self.resident_bytes.values()) + workspace,
            alignment=self.alignment,
            batch=8,
        )

    def node_costs(self) -> dict[str, NodeCost]:
        return {n.id: NodeCost(n.cost_ns, self.workspaces[n.id]) for n in self.nodes}

    def _add(self, tensor: Tensor) -> str:
        self.index[tensor.id] = len(self.tensors)
        self.tensors.append(tensor)
        return tensor.id


def training_step() -> Builder:
    """A small training step with every feature: views, in-place nodes, a state, a node that runs once, two outputs.

    x -> conv (3000 bytes) -> relu in place -> flat (view) -> drop (once, with mask) -> loss; gradients; W/new on W.
    """
    b = Builder()
    b.resident("x", 1000, "input")
    b.resident("W", 500)
    b.resident("one", 4, "constant")
    b.node([("conv", 3000)], ["x", "W"], op_type="Conv", cost=900, workspace=1170)
    b.node([("relu", 3000)], ["conv"], op_type="Relu", cost=20, in_place=["conv"])
    b.view("flat", "relu")
    b.node([("drop", 3000), ("mask", 700)], ["flat"], op_type="Dropout", cost=30, once=True)
    b.node([("wide", 6000)], ["drop"], op_type="Gemm", cost=200, workspace=64)
    b.node([("loss", 4)], ["wide", "one"], op_type="Loss", cost=10)
    b.node([("dwide", 6000)], ["wide", "loss"], op_type="LossGrad", cost=15, kind="gradient")
    b.node([("ddrop", 3000)], ["dwide", "mask"], op_type="GemmGrad", cost=210, kind="gradient")
    b.node([("drelu", 3000)], ["ddrop", "flat"], op_type="Mul", cost=25, in_place=["ddrop"], kind="gradient")
    b.node([("dW", 500)], ["x", "drelu"], op_type="ConvGrad", cost=950, workspace=800, kind="gradient")
    b.node([("W/new", 0)], ["W", "dW"], op_type="Sub", cost=5, once=True, state_of="W")
    return b


TRAINING_OUTPUTS = ("loss", "W/new")
# conv and relu are dropped after `drop` has read them, and computed again for drelu.
TRAINING_RECOMPUTE = (0, 1, 2, 3, 4, 5, 6, 0, 1, 7, 8, 9)


def solution_of(problem: Problem, sequence: Sequence[int], bound: int | None = None) -> Solution:
    timeline = replay_sequence(problem, sequence)
    return Solution("greedy", "feasible", tuple(sequence), timeline.compute_ns, timeline.peak_bytes, bound)


def lower(
    builder: Builder,
    outputs: Sequence[str],
    sequence: Sequence[int],
    budget: int | None = None,
    bound: int | None = None,
) -> Plan:
    """The plan of a sequence. `budget` None: just what it needs."""
    problem = builder.build(outputs)
    lowered = lower_solution(
        problem,
        solution_of(problem, sequence, bound),
        model=MODEL,
        device=DEVICE,
        costs=COSTS,
        budget_bytes=budget or 0,
        asked="auto",
        seed=0,
        ortools="9.15.6755",
        node_costs=builder.node_costs(),
        resident_bytes=builder.resident_bytes,
    )
    if budget is not None:
        return lowered
    return replace_fields(lowered, budget_bytes=lowered.predicted.peak_bytes)


def replace_fields(plan: S, **fields: object) -> S:
    """A plan or row with some fields changed."""
    return msgspec.structs.replace(plan, **fields)


def training_plan(sequence: Sequence[int] = TRAINING_RECOMPUTE) -> Plan:
    return lower(training_step(), TRAINING_OUTPUTS, sequence)


def random_problem(seed: int, size: int, alignment: int = ALIGNMENT) -> tuple[Builder, tuple[str, ...]]:
    """A random DAG: views, in-place nodes, several outputs, nodes that run once, repeated inputs; and its outputs."""
    draw = random.Random(seed)
    b = Builder(alignment)
    names = [
        b.resident(f"w{k}", draw.randrange(0, 5000), draw.choice(["input", "weight", "constant"])) for k in range(2)
    ]
    made: list[str] = []
    sizes: dict[str, int] = {}
    for v in range(size):
        recent = made[-6:] or names
        reads = [draw.choice(recent if draw.random() < 0.7 else made + names) for _ in range(draw.randrange(1, 4))]
        outputs = [
            (f"n{v}" + f":{k}" * (k > 0), draw.choice([0, 64, 100, 1000, 4096, 5000]))
            for k in range(draw.choice([1, 1, 1, 2, 3]))
        ]
        in_place = []
        if draw.random() < 0.5 and sizes.get(reads[0]) is not None and reads.count(reads[0]) == 1:
            outputs[0] = (outputs[0][0], sizes[reads[0]])
            in_place = [reads[0]]
        b.node(
            outputs, reads, op_type=draw.choice(["Add", "Conv", "Relu"]), cost=draw.randrange(0, 100),
            workspace=draw.choice([0, 0, 10, 999]), once=draw.random() < 0.1, in_place=in_place,
        )  # fmt: skip
        for name, nbytes in outputs:
            made.append(name)
            sizes[name] = nbytes
        if draw.random() < 0.2:
            made.append(b.view(f"v{v}", draw.choice(made)))
    return b, tuple(sorted({*draw.sample(made, min(len(made), 2)), made[-1]}))


def random_sequence(problem: Problem, seed: int, forget: float = 0.3) -> list[int]:
    """A legal sequence with recomputes: storages are forgotten at random, and made again when they are read."""
    draw = random.Random(seed)
    sequence: list[int] = []
    live: set[int] = set()

    def run(v: int) -> None:
        for t in problem.reads[v]:
            if t not in live:
                producer = problem.tensors[t].producer
                assert producer is not None
                run(producer)
        sequence.append(v)
        live.update(problem.writes[v])

    for v in range(len(problem.nodes)):
        if v in sequence:
            continue
        run(v)
        for t in sorted(live):
            if draw.random() < forget and _may_forget(problem, t):
                live.discard(t)
    for t in problem.kept:
        if t not in live:
            producer = problem.tensors[t].producer
            assert producer is not None
            run(producer)
    return sequence


def _may_forget(problem: Problem, t: int) -> bool:
    """Whether everything that makes t again may still run, at any later stage."""
    pending, seen = [t], set()
    while pending:
        producer = problem.tensors[pending.pop()].producer
        assert producer is not None
        if not problem.nodes[producer].recomputable or problem.last_stage[producer] < len(problem.nodes):
            return False
        for read in problem.reads[producer]:
            if read not in seen:
                seen.add(read)
                pending.append(read)
    return True
