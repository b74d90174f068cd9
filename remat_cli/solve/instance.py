"""A problem flattened for the stage heuristics: only storages that nodes make, as lists that inner loops index.

Storages are numbered anew, 0..count-1, in the order of `Problem.tensors`; residents and views have no number.
Stage s is what runs up to and including the first computation of node s (frontier-advancing stages, Jain et al.,
MLSys 2020, section 4.3): recomputed nodes first, then node s. The end of the schedule is a node of its own, the last
one, which costs and makes nothing and reads all graph outputs: its stage may recompute these.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.problem import Problem
from remat_cli.solve.stages import in_place_candidates


@dataclass(frozen=True, slots=True)
class Instance:
    """`size`, `producer`, `readers` and `last_need` are by storage; all other lists are by node.

    `n`: stages, the end included; `end` = n - 1 is the end's node.
    `cost`: nanoseconds, at least 1, so that nothing is recomputed for nothing (the end's is 0).
    `step_bytes`: outputs and workspace, what a step needs beside the live storages.
    `in_place`: storages that the node's first output may take over when they die in its step, none of them empty.
    `last_stage`: the last stage in which the node may run.
    `last_need`: for each storage, the last node that reads it, its producer when nobody does.
    """

    problem: Problem
    n: int
    end: int
    count: int
    size: tuple[int, ...]
    producer: tuple[int, ...]
    readers: tuple[tuple[int, ...], ...]
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
    end = len(problem.nodes)
    kept = set(problem.kept)
    producer = tuple(_producer(problem, t) for t in made)
    readers = tuple((*problem.readers[t], end) if t in kept else problem.readers[t] for t in made)
    size = tuple(problem.tensors[t].size_bytes for t in made)
    in_place = (tuple(number[t] for t in candidates) for candidates in in_place_candidates(problem))
    scratch = (node.workspace_bytes for node in problem.nodes)
    return Instance(
        problem=problem,
        n=end + 1,
        end=end,
        count=len(made),
        size=size,
        producer=producer,
        readers=readers,
        cost=(*(max(node.cost_ns, 1) for node in problem.nodes), 0),
        step_bytes=(*(outs + ws for outs, ws in zip(problem.write_bytes, scratch, strict=True)), 0),
        reads=(
            *(tuple(number[t] for t in roots) for roots in problem.reads),
            tuple(number[t] for t in problem.kept),
        ),
        writes=(*(tuple(number[t] for t in outs) for outs in problem.writes), ()),
        in_place=(*(tuple(t for t in storages if size[t]) for storages in in_place), ()),
        last_stage=(*problem.last_stage, end),
        last_need=tuple(r[-1] if r else p for r, p in zip(readers, producer, strict=True)),
    )


def _producer(problem: Problem, tensor: int) -> int:
    producer = problem.tensors[tensor].producer
    assert producer is not None
    return producer
