"""The memory rule and its oracle.

The rule, for a compute step of node v:

* bytes during the step = every live storage + all outputs of v + v's own workspace; inputs are live while v runs
  and outputs are being allocated, so both count. Only an in-place output costs nothing: it takes over the
  storage of an input that dies in the step.
* outputs that are already live keep their old copy; the new one exists during the step alone.
* a state output (``W/new``) overwrites its resident, so its node runs once, after every other reader of ``W``.
* nodes that are not recomputable run once. Graph outputs are live at the end.

`replay` enforces this and nothing else; solvers, `check`, `run` and reports all rely on it, and it shares no code
with any solver. `steps_of` turns a sequence of computes into steps with the earliest legal frees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.problem import Problem


@dataclass(frozen=True, slots=True)
class Compute:
    """Run `node`. `in_place_of`: the input tensor whose storage its first output takes over."""

    node: int
    in_place_of: int | None = None


@dataclass(frozen=True, slots=True)
class Free:
    """Release the storage `tensor`."""

    tensor: int


Step = Compute | Free


class IllegalStepError(Exception):
    """A schedule breaks the rule. `step`: index of the first illegal step; len(steps) for faults seen at the end."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"step {step}: {reason}")
        self.step = step
        self.reason = reason


@dataclass(frozen=True)
class Timeline:
    """What a replay saw. `step_bytes[k]`: bytes during step k (after it, for a free).

    `peak_bytes` is the largest of them, first reached in step `peak_step`; `compute_ns` the sum of all computes'
    costs; `recomputed` how many computes were not a node's first.
    """

    step_bytes: tuple[int, ...]
    peak_bytes: int
    peak_step: int
    compute_ns: int
    recomputed: int


class _Machine:
    """The state of a replay: which storages are live, which nodes ran, which residents were overwritten."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.live: set[int] = set()
        self.live_bytes = 0
        self.done: set[int] = set()
        self.overwritten: dict[int, int] = {}
        self.updates = {t.producer for t in problem.tensors if t.state_of is not None}
        self.readers_of_state = self._readers_of_states()

    def _readers_of_states(self) -> dict[int, set[int]]:
        """For each update node, the other nodes that read what it overwrites."""
        problem = self.problem
        updates = {t.state_of: t.producer for t in problem.tensors if t.state_of is not None}
        readers: dict[int, set[int]] = {u: set() for u in updates.values() if u is not None}
        for v, node in enumerate(problem.nodes):
            for t in node.inputs:
                update = updates.get(problem.root[t])
                if update is not None and update != v:
                    readers[update].add(v)
        return readers

    def compute(self, step: Compute) -> int:
        """Run one compute; returns the bytes during it. Raises ValueError with the reason when it is illegal."""
        problem, v = self.problem, step.node
        if not 0 <= v < len(problem.nodes):
            raise ValueError(f"there is no node number {v}")
        node = problem.nodes[v]
        if v in self.done and not node.recomputable:
            raise ValueError(f"node {node.id} ({node.op_type}) must run only once")
        if v in self.done and v in self.updates:
            raise ValueError(f"node {node.id} updates a state, so it must run only once")
        self._check_inputs(v)
        saved = self._check_in_place(step) if step.in_place_of is not None else 0
        during = self.live_bytes + problem.write_bytes[v] - saved + node.workspace_bytes
        if step.in_place_of is not None:
            self.free(problem.root[step.in_place_of])
        self.done.add(v)
        for t in node.outputs:
            if t not in self.live:
                self.live.add(t)
                self.live_bytes += problem.tensors[t].size_bytes
            if (resident := problem.tensors[t].state_of) is not None:
                self.overwritten[resident] = v
        return during

    def _check_inputs(self, v: int) -> None:
        problem = self.problem
        for t in problem.nodes[v].inputs:
            root = problem.root[t]
            if problem.is_made(root):
                if root not in self.live:
                    gone = "is not live here" if problem.tensors[root].producer in self.done else "was never computed"
                    raise ValueError(f"node {problem.nodes[v].id} needs {problem.tensors[t].id}, which {gone}")
            elif root in self.overwritten:
                update = problem.nodes[self.overwritten[root]].id
                raise ValueError(
                    f"node {problem.nodes[v].id} reads {problem.tensors[t].id} after {update} has overwritten it"
                )
        if v in self.readers_of_state and (late := sorted(self.readers_of_state[v] - self.done)):
            raise ValueError(
                f"node {problem.nodes[v].id} overwrites a state that node {problem.nodes[late[0]].id} has yet to read"
            )

    def _check_in_place(self, step: Compute) -> int:
        """Legality of an in-place step; returns the bytes that it saves."""
        problem, node = self.problem, self.problem.nodes[step.node]
        assert step.in_place_of is not None
        taken = problem.root[step.in_place_of]
        name = problem.tensors[step.in_place_of].id
        if taken not in {problem.root[t] for t in node.in_place_inputs}:
            raise ValueError(f"node {node.id} ({node.op_type}) cannot run in place of {name}")
        if sum(problem.root[t] == taken for t in node.inputs) != 1:
            raise ValueError(f"node {node.id} reads {name} more than once, so it cannot run in place of it")
        first = node.outputs[0]
        if first in self.live:
            raise ValueError(f"node {node.id} cannot run in place of {name}: its own output is still live")
        if problem.tensors[taken].size_bytes != problem.tensors[first].size_bytes:
            raise ValueError(f"node {node.id} cannot run in place of {name}: the sizes differ")
        return problem.tensors[first].size_bytes

    def free(self, t: int) -> None:
        """Release one storage; ValueError when it is not live or owns no storage."""
        problem = self.problem
        if not 0 <= t < len(problem.tensors):
            raise ValueError(f"there is no tensor number {t}")
        tensor = problem.tensors[t]
        if tensor.view_of is not None:
            raise ValueError(f"{tensor.id} is a view of {problem.tensors[problem.root[t]].id}: only that can be freed")
        if not problem.is_made(t):
            raise ValueError(f"{tensor.id} is resident ({tensor.kind}): it cannot be freed")
        if t not in self.live:
            raise ValueError(f"{tensor.id} is freed but is not live")
        self.live.discard(t)
        self.live_bytes -= tensor.size_bytes

    def finish(self) -> None:
        """The end of a schedule: every node has run and every graph output is live."""
        problem = self.problem
        if missing := [node.id for v, node in enumerate(problem.nodes) if v not in self.done]:
            raise ValueError(f"node {missing[0]} is never computed" + _and_more(missing))
        if lost := [problem.tensors[t].id for t in problem.kept if t not in self.live]:
            raise ValueError(f"graph output {lost[0]} is not live at the end" + _and_more(lost))


def _and_more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def replay(problem: Problem, steps: Sequence[Step]) -> Timeline:
    """Replay `steps` under the memory rule. Raises IllegalStepError at the first illegal step."""
    machine = _Machine(problem)
    step_bytes: list[int] = []
    compute_ns = computes = 0
    for index, step in enumerate(steps):
        try:
            if isinstance(step, Compute):
                step_bytes.append(machine.compute(step))
                compute_ns += problem.nodes[step.node].cost_ns
                computes += 1
            else:
                machine.free(step.tensor)
                step_bytes.append(machine.live_bytes)
        except ValueError as fault:
            raise IllegalStepError(index, str(fault)) from None
    try:
        machine.finish()
    except ValueError as fault:
        raise IllegalStepError(len(steps), str(fault)) from None
    peak = max(step_bytes, default=0)
    return Timeline(
        step_bytes=tuple(step_bytes),
        peak_bytes=peak,
        peak_step=step_bytes.index(peak) if step_bytes else 0,
        compute_ns=compute_ns,
        recomputed=computes - len(problem.nodes),
    )


def steps_of(problem: Problem, sequence: Sequence[int]) -> list[Step]:
    """The steps of a sequence of computes: each free at the earliest step, in place wherever that is legal.

    A copy dies after its last use before it is next recomputed. Raises IllegalStepError when a node would read
    a tensor that the sequence has not computed.
    """
    needed = set(problem.kept)
    dying: list[list[int]] = [[] for _ in sequence]
    for position in range(len(sequence) - 1, -1, -1):
        v = sequence[position]
        for t in problem.writes[v]:
            if t not in needed:
                dying[position].append(t)
            needed.discard(t)
        for t in problem.reads[v]:
            if t not in needed:
                dying[position].append(t)
                needed.add(t)
    steps: list[Step] = []
    for position, v in enumerate(sequence):
        taken = _in_place_input(problem, v, dying[position])
        steps.append(Compute(v, taken))
        root = None if taken is None else problem.root[taken]
        steps.extend(Free(t) for t in sorted(dying[position]) if t != root)
    if needed:
        made_late = min(needed)
        raise IllegalStepError(0, f"{problem.tensors[made_late].id} is read before it is computed")
    return steps


def _in_place_input(problem: Problem, v: int, dying: Sequence[int]) -> int | None:
    """The first input that dies in this step and that node v's first output may overwrite."""
    node = problem.nodes[v]
    if not node.in_place_inputs or not node.outputs:
        return None
    size = problem.tensors[node.outputs[0]].size_bytes
    for t in node.in_place_inputs:
        root = problem.root[t]
        if root not in dying or problem.tensors[root].size_bytes != size:
            continue
        if sum(problem.root[i] == root for i in node.inputs) == 1:
            return t
    return None


def replay_sequence(problem: Problem, sequence: Sequence[int]) -> Timeline:
    """Replay of `steps_of(problem, sequence)`."""
    return replay(problem, steps_of(problem, sequence))
