"""A problem flattened for the stage heuristics: only storages that nodes make, as lists that inner loops index.

Storages are numbered anew, 0..count-1, in the order of `Problem.tensors`; residents and views have no number.
Stage s is what runs up to and including the first computation of node s (frontier-advancing stages, Jain et al.,
MLSys 2020, section 4.3): recomputed nodes first, then node s.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.problem import Problem


@dataclass(frozen=True, slots=True)
class Instance:
    """`size`, `producer`, `readers`, `kept` are by storage; all other lists are by node.

    `cost`: nanoseconds, at least 1, so that nothing is recomputed for nothing.
    `step_bytes`: outputs and workspace, what a step needs beside the live storages.
    `in_place`: storages that the node's first output may take over when they die in its step.
    `last_stage`: the last stage in which the node may run.
    `last_need`: for each storage, the last node that reads it (n for kept ones, its producer when nobody does).
    """

    problem: Problem
    n: int
    count: int
    size: tuple[int, ...]
    producer: tuple[int, ...]
    readers: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]
    cost: tuple[int, ...]
    step_bytes: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    in_place: tuple[tuple[int, ...], ...]
    last_stage: tuple[int, ...]
    last_need: tuple[int, ...]


def flatten(problem: Problem) -> Instance:
    """The instance of `problem`."""
    made = [t for t, tensor in enumerate(problem.tensors) if tensor.producer is not None]
    number = {t: k for k, t in enumerate(made)}
    n = len(problem.nodes)
    producer = tuple(_producer(problem, t) for t in made)
    readers = tuple(problem.readers[t] for t in made)
    kept = tuple(number[t] for t in problem.kept)
    last_need = [r[-1] if r else p for r, p in zip(readers, producer, strict=True)]
    for k in kept:
        last_need[k] = n
    return Instance(
        problem=problem,
        n=n,
        count=len(made),
        size=tuple(problem.tensors[t].size_bytes for t in made),
        producer=producer,
        readers=readers,
        kept=kept,
        cost=tuple(max(node.cost_ns, 1) for node in problem.nodes),
        step_bytes=tuple(b + node.workspace_bytes for b, node in zip(problem.write_bytes, problem.nodes, strict=True)),
        reads=tuple(tuple(number[t] for t in roots) for roots in problem.reads),
        writes=tuple(tuple(number[t] for t in outs) for outs in problem.writes),
        in_place=tuple(tuple(number[t] for t in _in_place_storages(problem, v)) for v in range(n)),
        last_stage=problem.last_stage,
        last_need=tuple(last_need),
    )


def _producer(problem: Problem, tensor: int) -> int:
    producer = problem.tensors[tensor].producer
    assert producer is not None
    return producer


def _in_place_storages(problem: Problem, v: int) -> list[int]:
    """Storages that node v may overwrite: of its first output's size, not empty, and read once."""
    node = problem.nodes[v]
    if not node.outputs:
        return []
    size = problem.tensors[node.outputs[0]].size_bytes
    roots = [problem.root[t] for t in node.inputs]
    candidates = dict.fromkeys(problem.root[t] for t in node.in_place_inputs)
    return [
        t
        for t in candidates
        if size > 0 and problem.is_made(t) and problem.tensors[t].size_bytes == size and roots.count(t) == 1
    ]
