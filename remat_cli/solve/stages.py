"""Frontier-advancing stages: the form in which Checkmate's methods see a schedule.

Stage t (0 <= t < n) ends with the first computation of node t; before that it may recompute earlier nodes, in
ascending order (Jain et al. 2020, section 4.2). One stage more than the paper has, stage n, may recompute nodes
whose outputs must be live at the end: with several graph outputs it lowers what a graph needs.

What is held into each stage decides a schedule: `runs_from_holds` gives the fewest computes for given holds (the
second phase of the paper's two-phase rounding, section 5). Sets of tensors are ints used as bit sets: they stay
small and fast at thousands of nodes. Holding more than is read costs nothing, as frees are emitted at the earliest
step anyway (`remat_cli.memory.steps_of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from remat_cli.problem import Problem


@dataclass(frozen=True)
class Runs:
    """The nodes computed in each stage (n + 1 stages, ascending within one). `blocked`: nodes that would have to
    run after their last stage; when there are any, the runs are no schedule."""

    stages: tuple[tuple[int, ...], ...]
    blocked: tuple[int, ...]

    @property
    def sequence(self) -> tuple[int, ...]:
        """The order of computes."""
        return tuple(v for stage in self.stages for v in stage)


def bits(members: int) -> Iterator[int]:
    """The elements of a bit set, ascending."""
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest


def bit_set(members: Iterable[int]) -> int:
    """The bit set of `members`."""
    result = 0
    for member in members:
        result |= 1 << member
    return result


def producer_of(problem: Problem, tensor: int) -> int:
    """The node that makes `tensor`, a storage that is not resident."""
    producer = problem.tensors[tensor].producer
    assert producer is not None, f"tensor {tensor} is resident"
    return producer


def in_place_candidates(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """For each node, the storages that its first output may take over when they die in the node's step.

    These are the listed inputs of the same size that the node reads just once, itself or through views.
    """
    return tuple(_candidates(problem, v) for v in range(len(problem.nodes)))


def _candidates(problem: Problem, v: int) -> tuple[int, ...]:
    node = problem.nodes[v]
    if not node.in_place_inputs or not node.outputs:
        return ()
    roots = [problem.root[t] for t in node.inputs]
    size = problem.tensors[node.outputs[0]].size_bytes
    taken = {problem.root[t] for t in node.in_place_inputs}
    return tuple(
        t for t in problem.reads[v] if t in taken and roots.count(t) == 1 and problem.tensors[t].size_bytes == size
    )


def runs_from_holds(problem: Problem, holds: Sequence[int]) -> Runs:
    """The fewest computes that make what `holds` promises.

    `holds[t]`: bit set of the tensors held into stage t, for t = 0 .. n; the graph outputs are held to the end.
    A stage computes its own node, whatever the next stage holds and this one does not, and what these need in
    turn. Tensors that no earlier stage can have made are never looked for in `holds`.
    """
    n = len(problem.nodes)
    if len(holds) != n + 1:
        raise ValueError(f"holds for {len(holds)} stages, but {n} nodes make {n + 1}")
    last = problem.last_stage
    final = bit_set(problem.kept)
    writes = [bit_set(outputs) for outputs in problem.writes]
    stages: list[tuple[int, ...]] = []
    blocked: set[int] = set()
    live = made = 0
    for t in range(n + 1):
        held = live & holds[t]
        own = writes[t] if t < n else 0
        made |= own
        target = holds[t + 1] & made if t < n else final
        stage = {t} if t < n else set()
        wanted = list(bits(target & ~held & ~own))
        if t < n:
            wanted += [i for i in problem.reads[t] if not held >> i & 1]
        while wanted:
            v = producer_of(problem, wanted.pop())
            if v in stage:
                continue
            stage.add(v)
            if t > last[v]:
                blocked.add(v)
            wanted += [i for i in problem.reads[v] if not held >> i & 1]
        stages.append(tuple(sorted(stage)))
        live = held
        for v in stage:
            live |= writes[v]
    return Runs(tuple(stages), tuple(sorted(blocked)))


def sequence_from_holds(problem: Problem, holds: Sequence[int]) -> tuple[int, ...] | None:
    """The computes of `runs_from_holds`; None when a node would have to run after its last stage."""
    runs = runs_from_holds(problem, holds)
    return None if runs.blocked else runs.sequence


def pin_blocked(problem: Problem, holds: Sequence[int]) -> tuple[list[int], Runs]:
    """`holds` with the outputs of nodes that may not rerun held as long as it takes, and the runs of that.

    Ends after at most n rounds: each pins one node more, and with all pinned nothing is recomputed.
    """
    pinned = list(holds)
    while True:
        runs = runs_from_holds(problem, pinned)
        if not runs.blocked:
            return pinned, runs
        for v in runs.blocked:
            outputs = bit_set(problem.writes[v])
            for t in range(v + 1, len(pinned)):
                pinned[t] |= outputs


def stages_of(problem: Problem, sequence: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """The stages of a sequence of computes: n + 1 tuples, each up to and with a node's first computation.

    None when nodes are first computed in another order than that of the graph: such a schedule has no stages.
    """
    n = len(problem.nodes)
    stages: list[tuple[int, ...]] = []
    stage: list[int] = []
    for v in sequence:
        if v > len(stages):
            return None
        stage.append(v)
        if v == len(stages):
            stages.append(tuple(stage))
            stage = []
    if len(stages) != n:
        return None
    stages.append(tuple(stage))
    return tuple(stages)


def holds_from_stages(problem: Problem, stages: Sequence[Sequence[int]]) -> list[int]:
    """What is held into each stage when every copy is freed after its last use, for `runs_from_holds`."""
    needed = bit_set(problem.kept)
    reads = [bit_set(inputs) for inputs in problem.reads]
    writes = [bit_set(outputs) for outputs in problem.writes]
    holds = [0] * len(stages)
    for t in range(len(stages) - 1, -1, -1):
        for v in reversed(stages[t]):
            needed = needed & ~writes[v] | reads[v]
        holds[t] = needed
    return holds


def store_all_holds(problem: Problem) -> list[int]:
    """Holds that make every node run once: each tensor from its producer on."""
    holds = [0]
    for outputs in problem.writes:
        holds.append(holds[-1] | bit_set(outputs))
    return holds
