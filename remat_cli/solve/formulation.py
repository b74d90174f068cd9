"""The Checkmate MILP (Jain et al. 2020, equations 1 to 9), independent of any solver.

Binaries, for stage t, node v, tensor i: R[t,v] runs v in stage t; S[t,i] holds i into stage t; FREE[t,i,v] frees i
right after v in stage t. Byte counts U[t,v]: live bytes before v in stage t. Differences from the paper:

* everything is per tensor, so nodes may have several outputs, each freed on its own;
* during a step inputs, outputs and the node's workspace all count;
* FREE <= R: a free that rides on a node which does not run would hide memory;
* FREE is linearised by cliques instead of a hazard count: at most one of (all frees of i in stage t, hold into
  t + 1), and at most one of (frees of i before v, run of v) for each reader v. The LP relaxation is tighter;
* S[t,i] + R[t,producer of i] <= 1: of two copies the held one could always be dropped before;
* TAKE[t,v]: v's first output takes over the storage of an input that dies in the step;
* stage n after the last node, for outputs that must be live at the end (see `remat_cli.solve.stages`);
* nodes that may not run after some stage have no R beyond it;
* a recompute must serve a reader in its stage or be held on: without this row solvers lose themselves in schedules
  that differ by useless runs.

Variables that cannot matter are left out: runs that nothing later can read, holds past the last possible reader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from remat_cli.problem import Problem
from remat_cli.solve.stages import bit_set, bits, holds_from_stages, in_place_candidates, producer_of

Term = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Row:
    """low <= sum of coefficient * variable <= high, with terms (variable, coefficient); None is no limit."""

    terms: tuple[Term, ...]
    low: int | None
    high: int | None


@dataclass
class Formulation:
    """The model of `problem` with `capacity_bytes`. Variables are numbered from 0.

    `run`, `hold`, `free`, `take` and `live` map the indices of R, S, FREE, TAKE and U to variables: Booleans, but
    for U, which lies between 0 and the capacity and comes last. `definitions` gives each U as a sum of Booleans and of
    one U before it. `fixed` are Booleans that are one. `nodes_in[t]`: the nodes that have an R in stage t, ascending.
    """

    problem: Problem
    capacity_bytes: int
    candidates: Sequence[Sequence[int]]
    run: dict[tuple[int, int], int] = field(default_factory=dict)
    hold: dict[tuple[int, int], int] = field(default_factory=dict)
    free: dict[tuple[int, int, int], int] = field(default_factory=dict)
    take: dict[tuple[int, int], int] = field(default_factory=dict)
    live: dict[tuple[int, int], int] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    definitions: dict[int, tuple[Term, ...]] = field(default_factory=dict)
    fixed: list[int] = field(default_factory=list)
    nodes_in: list[list[int]] = field(default_factory=list)
    n_variables: int = 0

    @property
    def n_booleans(self) -> int:
        """Booleans are numbered before all U."""
        return self.n_variables - len(self.live)

    @property
    def cost(self) -> list[Term]:
        """Objective: the cost of every run, mandatory ones included."""
        return [(variable, self.problem.nodes[v].cost_ns) for (_, v), variable in self.run.items()]

    def stages(self, is_one: Callable[[int], bool]) -> list[list[int]]:
        """The runs of a solution, stage by stage; `is_one` tells the value of a Boolean."""
        stages: list[list[int]] = [[] for _ in range(len(self.problem.nodes) + 1)]
        for (t, v), variable in sorted(self.run.items()):
            if is_one(variable):
                stages[t].append(v)
        return stages


@dataclass(frozen=True)
class Reach:
    """How far things can matter: `run[v]`, the last stage in which a run of v can serve anything; `hold[i]`, the
    last stage into which tensor i may be worth holding (-1: it has no reader)."""

    run: tuple[int, ...]
    hold: tuple[int, ...]


def reach_of(problem: Problem) -> Reach:
    """`Reach` by one pass against the edges."""
    n = len(problem.nodes)
    last = problem.last_stage
    kept = set(problem.kept)
    run = [0] * n
    hold = [-1] * len(problem.tensors)
    for v in range(n - 1, -1, -1):
        for i in problem.writes[v]:
            hold[i] = n if i in kept else max((run[w] for w in problem.readers[i]), default=-1)
        run[v] = max(v, min(last[v], max((hold[i] for i in problem.writes[v]), default=-1)))
    return Reach(tuple(run), tuple(hold))


def count_booleans(problem: Problem) -> int:
    """How many Booleans `build` would make (TAKE left out), from sums alone: instant at any size."""
    reach = reach_of(problem)
    count = sum(reach.run[v] - v + 1 for v in range(len(problem.nodes)))
    for i, tensor in enumerate(problem.tensors):
        if tensor.producer is None:
            continue
        count += max(0, reach.hold[i] - tensor.producer)
        if tensor.size_bytes:
            count += sum(reach.run[v] - v + 1 for v in (tensor.producer, *problem.readers[i]))
    return count


def build(problem: Problem, capacity_bytes: int, candidates: Sequence[Sequence[int]] | None = None) -> Formulation:
    """The formulation. `candidates`: in-place candidates to use when `problem` has rounded sizes."""
    builder = _Builder(problem, capacity_bytes, candidates if candidates is not None else in_place_candidates(problem))
    builder.variables()
    for t in range(len(problem.nodes) + 1):
        builder.dependencies(t)
        builder.purposes(t)
        builder.frees(t)
        builder.memory(t)
    return builder.model


class _Builder:
    def __init__(self, problem: Problem, capacity_bytes: int, candidates: Sequence[Sequence[int]]) -> None:
        self.problem = problem
        self.model = Formulation(problem, capacity_bytes, candidates)
        self.candidates = candidates
        self.reach = reach_of(problem)
        self.kept = set(problem.kept)
        n = len(problem.nodes)
        self.runs_in = [[v for v in range(min(t + 1, n)) if t <= self.reach.run[v]] for t in range(n + 1)]
        self.model.nodes_in = self.runs_in
        self.sizes = [t.size_bytes for t in problem.tensors]

    def new(self) -> int:
        self.model.n_variables += 1
        return self.model.n_variables - 1

    def row(self, terms: list[Term], low: int | None, high: int | None) -> None:
        self.model.rows.append(Row(tuple(terms), low, high))

    def variables(self) -> None:
        """All Booleans, stage by stage, then U."""
        model, problem = self.model, self.problem
        for t, nodes in enumerate(self.runs_in):
            for v in nodes:
                model.run[t, v] = self.new()
            if t < len(problem.nodes):
                model.fixed.append(model.run[t, t])
            for i, tensor in enumerate(problem.tensors):
                if tensor.producer is not None and tensor.producer < t <= self.reach.hold[i]:
                    model.hold[t, i] = self.new()
        for t, nodes in enumerate(self.runs_in):
            for v in nodes:
                self._free_variables(t, v)
        for t, nodes in enumerate(self.runs_in):
            for v in nodes:
                model.live[t, v] = self.new()

    def _free_variables(self, t: int, v: int) -> None:
        model, problem = self.model, self.problem
        for i in (*problem.reads[v], *problem.writes[v]):
            kept_now = t == len(problem.nodes) and i in self.kept
            read_at_the_end = v < t and t in problem.readers[i]
            if self.sizes[i] and not kept_now and not read_at_the_end:
                model.free[t, i, v] = self.new()
        if any((t, i, v) in model.free for i in self.candidates[v]):
            model.take[t, v] = self.new()

    def presence(self, t: int, i: int) -> list[Term]:
        """Terms that sum to one when i is live in stage t once its producer has had its turn."""
        model = self.model
        found = (model.hold.get((t, i)), model.run.get((t, producer_of(self.problem, i))))
        return [(variable, 1) for variable in found if variable is not None]

    def dependencies(self, t: int) -> None:
        """Inputs are live, holds continue something, one copy at a time, graph outputs last to the end."""
        model, problem, n = self.model, self.problem, len(self.problem.nodes)
        for v in self.runs_in[t]:
            for i in problem.reads[v]:
                self.row([*self.presence(t, i), (model.run[t, v], -1)], 0, None)
        for i in range(len(problem.tensors)):
            held = model.hold.get((t, i))
            if held is None:
                continue
            producer = producer_of(problem, i)
            if producer < t - 1:
                self.row([*self.presence(t - 1, i), (held, -1)], 0, None)
            if (again := model.run.get((t, producer))) is not None:
                self.row([(held, 1), (again, 1)], None, 1)
        if t == n:
            for i in problem.kept:
                self.row(self.presence(n, i), 1, None)

    def purposes(self, t: int) -> None:
        """A recompute is read by the stage's own node, or by another recompute there, or is held on."""
        model, problem, n = self.model, self.problem, len(self.problem.nodes)
        for v in self.runs_in[t]:
            wanted = [(i, w) for i in problem.writes[v] for w in problem.readers[i]]
            at_the_end = t == n and any(i in self.kept for i in problem.writes[v])
            if v == t or at_the_end or any(w == t for _, w in wanted):
                continue
            uses = [model.run[t, w] for w in {w for _, w in wanted} if (t, w) in model.run]
            uses += [model.hold[t + 1, i] for i in problem.writes[v] if (t + 1, i) in model.hold]
            self.row([(model.run[t, v], 1), *((variable, -1) for variable in sorted(uses))], None, 0)

    def frees(self, t: int) -> None:
        """FREE rides on a run, on a live copy, after the last reader, and ends the copy."""
        model, problem = self.model, self.problem
        touchers: dict[int, list[int]] = {}
        for v in self.runs_in[t]:
            for i in (*problem.reads[v], *problem.writes[v]):
                touchers.setdefault(i, []).append(v)
        for i, nodes in touchers.items():
            freed: list[Term] = []
            for v in nodes:
                if freed and v != t:
                    self.row([*freed, (model.run[t, v], 1)], None, 1)
                if (variable := model.free.get((t, i, v))) is not None:
                    self.row([(variable, 1), (model.run[t, v], -1)], None, 0)
                    freed.append((variable, 1))
            if freed:
                after = model.hold.get((t + 1, i))
                ends = freed if after is None else [*freed, (after, 1)]
                self.row(ends + [(variable, -1) for variable, _ in self.presence(t, i)], None, 0)

    def memory(self, t: int) -> None:
        """U from step to step, and the capacity during each."""
        model, problem = self.model, self.problem
        nodes = self.runs_in[t]
        if not nodes:
            return
        terms = [
            (variable, self.sizes[i])
            for i in range(len(problem.tensors))
            if self.sizes[i] and (variable := model.hold.get((t, i))) is not None
        ]
        model.definitions[model.live[t, nodes[0]]] = tuple(terms)
        for v, following in zip(nodes, [*nodes[1:], None], strict=True):
            live, run = model.live[t, v], model.run[t, v]
            during = problem.write_bytes[v] + problem.nodes[v].workspace_bytes
            taken = self._take(t, v)
            self.row([(live, 1), (run, during), *taken], None, model.capacity_bytes)
            if following is not None:
                frees = [
                    (variable, -self.sizes[i])
                    for i in (*problem.reads[v], *problem.writes[v])
                    if (variable := model.free.get((t, i, v))) is not None
                ]
                model.definitions[model.live[t, following]] = ((live, 1), (run, problem.write_bytes[v]), *frees)

    def _take(self, t: int, v: int) -> list[Term]:
        """In place: the term that saves the first output's bytes, and the rows that allow it."""
        model = self.model
        variable = model.take.get((t, v))
        if variable is None:
            return []
        dying = [(model.free[t, i, v], -1) for i in self.candidates[v] if (t, i, v) in model.free]
        self.row([(variable, 1), *dying], None, 0)
        return [(variable, -self.sizes[self.problem.nodes[v].outputs[0]])]


def without_live(model: Formulation) -> list[Row]:
    """All rows with every U replaced by the Booleans that it sums: longer rows, but nothing beside Booleans."""
    sums: dict[int, dict[int, int]] = {}
    for live, terms in model.definitions.items():
        sums[live] = _expanded(terms, sums)
    return [
        Row(tuple(_expanded(row.terms, sums).items()), row.low, row.high)
        if any(variable in sums for variable, _ in row.terms)
        else row
        for row in model.rows
    ]


def _expanded(terms: Sequence[Term], sums: dict[int, dict[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for variable, coefficient in terms:
        for inner, factor in sums.get(variable, {variable: 1}).items():
            total[inner] = total.get(inner, 0) + coefficient * factor
    return {variable: coefficient for variable, coefficient in total.items() if coefficient}


def assignment_of(model: Formulation, stages: Sequence[Sequence[int]]) -> list[int]:
    """The values of all variables for a schedule given by its stages, each ascending: a hint for a solver.

    U may exceed the capacity when the schedule does.
    """
    problem = model.problem
    holds = [*holds_from_stages(problem, stages), bit_set(problem.kept)]
    sizes = [tensor.size_bytes for tensor in problem.tensors]
    values = [0] * model.n_variables
    for (t, i), variable in model.hold.items():
        values[variable] = holds[t] >> i & 1
    for t, stage in enumerate(stages):
        running = set(stage)
        dying = _deaths(problem, stage, holds[t + 1])
        live = sum(sizes[i] for i in bits(holds[t]))
        for v in model.nodes_in[t]:
            values[model.live[t, v]] = live
            if v not in running:
                continue
            values[model.run[t, v]] = 1
            live += problem.write_bytes[v] - sum(sizes[i] for i in dying.get(v, ()))
            for i in dying.get(v, ()):
                _set(values, model.free.get((t, i, v)))
                if i in model.candidates[v]:
                    _set(values, model.take.get((t, v)))
    return values


def _set(values: list[int], variable: int | None) -> None:
    if variable is not None:
        values[variable] = 1


def _deaths(problem: Problem, stage: Sequence[int], held_after: int) -> dict[int, list[int]]:
    """For each node of a stage, the tensors whose copy is used there for the last time."""
    dying: dict[int, list[int]] = {}
    seen = held_after
    for v in reversed(stage):
        for i in (*problem.writes[v], *problem.reads[v]):
            if not seen >> i & 1:
                seen |= 1 << i
                dying.setdefault(v, []).append(i)
    return dying
