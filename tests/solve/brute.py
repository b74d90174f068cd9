"""Exhaustive searches on tiny graphs: the truth that solvers are held against. Written from the memory rule alone."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from remat_cli.problem import Problem


class _Rule:
    """One node's step: what it needs, what it holds, what it leaves. Residents are bit sets of storages."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.sizes = [t.size_bytes for t in problem.tensors]
        self.kept = sum(1 << t for t in {problem.root[t] for t in problem.outputs} if problem.is_made(t))
        self.once = [
            not node.recomputable or any(problem.tensors[t].state_of is not None for t in node.outputs)
            for node in problem.nodes
        ]
        self.overwriters = {t.state_of: t.producer for t in problem.tensors if t.state_of is not None}

    def bytes_of(self, residents: int) -> int:
        return sum(size for t, size in enumerate(self.sizes) if residents >> t & 1)

    def steps(self, v: int, residents: int) -> Iterator[tuple[int, int]]:
        """(bytes during the step, residents after it) of every way to run v; nothing when an input is missing."""
        problem, node = self.problem, self.problem.nodes[v]
        owners = [problem.root[t] for t in node.inputs if problem.is_made(problem.root[t])]
        if any(not residents >> t & 1 for t in owners):
            return
        made = sum(1 << t for t in node.outputs)
        during = self.bytes_of(residents) + sum(self.sizes[t] for t in node.outputs) + node.workspace_bytes
        yield during, residents | made
        for t in node.in_place_inputs:
            owner = problem.root[t]
            if owner not in owners or owners.count(owner) > 1 or residents >> node.outputs[0] & 1:
                continue
            if self.sizes[owner] == self.sizes[node.outputs[0]]:
                yield during - self.sizes[owner], residents & ~(1 << owner) | made

    def may_rerun(self, v: int, done: int) -> bool:
        """Rerunning is legal for v once the nodes in `done` have run."""
        if self.once[v]:
            return False
        states = {self.problem.root[t] for t in self.problem.nodes[v].inputs}
        return not any(u != v and done >> u & 1 for s, u in self.overwriters.items() if s in states and u is not None)


def cheapest_staged(problem: Problem, capacity_bytes: int, *, ordered: bool = True) -> int | None:
    """Least cost over all schedules that first compute nodes in order and recompute in order within a stage, or in any
    order there (`ordered` False).

    Costs of zero count as one. None when there is no such schedule.
    """
    rule = _Rule(problem)
    n = len(problem.nodes)
    costs = [max(1, node.cost_ns) for node in problem.nodes]
    # State: (stage, next node that may run in it, residents); stage n comes after all first computations.
    queue = [(0, 0, 0, 0)]
    best: dict[tuple[int, int, int], int] = {(0, 0, 0): 0}
    while queue:
        cost, stage, following, residents = heapq.heappop(queue)
        if best[stage, following, residents] < cost:
            continue
        if stage == n and residents & rule.kept == rule.kept:
            return cost
        successors: list[tuple[int, int, int, int]] = []
        for t in range(len(problem.tensors)):
            if residents >> t & 1:
                successors.append((cost, stage, following, residents & ~(1 << t)))
        for v in range(following, min(stage, n - 1) + 1):
            if v < stage and not rule.may_rerun(v, (1 << stage) - 1):
                continue
            for during, after in rule.steps(v, residents):
                if during <= capacity_bytes:
                    place = (stage + 1, 0) if v == stage else (stage, v + 1 if ordered else 0)
                    successors.append((cost + costs[v], *place, after))
        for new in successors:
            if new[0] < best.get(new[1:], 1 << 62):
                best[new[1:]] = new[0]
                heapq.heappush(queue, new)
    return None


def least_peak(problem: Problem) -> int:
    """The smallest peak over all legal schedules, in any order of first computations."""
    rule = _Rule(problem)
    everything = (1 << len(problem.nodes)) - 1
    queue = [(0, 0, 0)]
    best: dict[tuple[int, int], int] = {(0, 0): 0}
    while queue:
        peak, done, residents = heapq.heappop(queue)
        if best[done, residents] < peak:
            continue
        if done == everything and residents & rule.kept == rule.kept:
            return peak
        successors = [(peak, done, residents & ~(1 << t)) for t in range(len(problem.tensors)) if residents >> t & 1]
        for v in range(len(problem.nodes)):
            if done >> v & 1 and not rule.may_rerun(v, done):
                continue
            if not done >> v & 1 and not _readers_are_done(problem, rule, v, done):
                continue
            successors += [(max(peak, during), done | 1 << v, after) for during, after in rule.steps(v, residents)]
        for new in successors:
            if new[0] < best.get(new[1:], 1 << 62):
                best[new[1:]] = new[0]
                heapq.heappush(queue, new)
    raise AssertionError("every graph has a schedule")


def _readers_are_done(problem: Problem, rule: _Rule, v: int, done: int) -> bool:
    """An update waits for all readers of what it overwrites; a reader must not come after it."""
    for state, update in rule.overwriters.items():
        readers = [w for w, node in enumerate(problem.nodes) if state in {problem.root[t] for t in node.inputs}]
        if update == v and any(w != v and not done >> w & 1 for w in readers):
            return False
        if v in readers and update is not None and done >> update & 1:
            return False
    return True
