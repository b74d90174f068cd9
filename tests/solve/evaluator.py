"""A second replay of compute sequences, written differently from `remat_cli.memory` to hold the two against each other.

It thinks in copies: each run of a node makes one copy of each output, which lasts from that run to its last reader
before the next run of the node (to the end for the last copy of a graph output). A position's bytes are the sizes
of the copies that last over it.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.problem import Problem


class Illegal(Exception):
    """The sequence is no schedule."""


def peak_and_cost(problem: Problem, sequence: Sequence[int]) -> tuple[int, int]:
    """Peak bytes and cost of a sequence with earliest frees and in-place runs wherever they are legal."""
    _check(problem, sequence)
    copies = _copies(problem, sequence)
    peak = 0
    for position, v in enumerate(sequence):
        total = problem.nodes[v].workspace_bytes
        dying = set()
        for tensor, born, dies in copies:
            if born <= position <= dies:
                total += problem.tensors[tensor].size_bytes
            if dies == position and born < position:
                dying.add(tensor)
        if _in_place(problem, v, dying):
            total -= problem.tensors[problem.nodes[v].outputs[0]].size_bytes
        peak = max(peak, total)
    return peak, sum(problem.nodes[v].cost_ns for v in sequence)


def _copies(problem: Problem, sequence: Sequence[int]) -> list[tuple[int, int, int]]:
    """(tensor, first position, last position) of every copy."""
    owners = {problem.root[t] for t in problem.outputs}
    copies = []
    for tensor, facts in enumerate(problem.tensors):
        if facts.producer is None:
            continue
        births = [p for p, v in enumerate(sequence) if v == facts.producer]
        reads = [p for p, v in enumerate(sequence) if any(problem.root[t] == tensor for t in problem.nodes[v].inputs)]
        if any(not births or p <= births[0] for p in reads):
            raise Illegal(f"{facts.id} is read before it is made")
        for born, successor in zip(births, [*births[1:], len(sequence)], strict=True):
            dies = max([born, *(p for p in reads if born < p <= successor)])
            if successor == len(sequence) and tensor in owners:
                dies = len(sequence)
            copies.append((tensor, born, dies))
    return copies


def _check(problem: Problem, sequence: Sequence[int]) -> None:
    for v, node in enumerate(problem.nodes):
        runs = [p for p, ran in enumerate(sequence) if ran == v]
        if not runs:
            raise Illegal(f"{node.id} never runs")
        states = [problem.tensors[t].state_of for t in node.outputs if problem.tensors[t].state_of is not None]
        if len(runs) > 1 and (states or not node.recomputable):
            raise Illegal(f"{node.id} runs twice")
        for state in states:
            for w, other in enumerate(problem.nodes):
                late = [p for p, ran in enumerate(sequence) if ran == w and p > runs[0]]
                if w != v and late and any(problem.root[t] == state for t in other.inputs):
                    raise Illegal(f"{other.id} reads a state after {node.id} has overwritten it")


def _in_place(problem: Problem, v: int, dying: set[int]) -> bool:
    node = problem.nodes[v]
    for t in node.in_place_inputs:
        owner = problem.root[t]
        times = sum(problem.root[i] == owner for i in node.inputs)
        same = problem.tensors[owner].size_bytes == problem.tensors[node.outputs[0]].size_bytes
        if owner in dying and times == 1 and same:
            return True
    return False
