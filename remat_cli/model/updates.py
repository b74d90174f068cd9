"""Updates of training states: which may overwrite their resident, and when they run.

A state output (``W/new``) on its resident (``W``) costs no memory, if every other reader of the resident has run. Such
an update also runs as early as that allows: optimisers come last in files, but a gradient that waits for the end of the
step is memory lost (45 of 76 MB in a ResNet-18).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from remat_cli.model.graph import Graph, GraphNode


def place_updates(
    graph: Graph, computed: Sequence[GraphNode], root: Mapping[str, str]
) -> tuple[dict[str, str], list[int]]:
    """State outputs that overwrite their resident (output -> resident), and the order of `computed` that this asks for.

    `root`: tensor -> owner of its storage. Where two updates would have to wait for each other (states that swap
    values), the later one in the file gets a storage of its own instead; so does one whose old value is still seen at
    the end. Apart from updates and what feeds them alone, nodes keep their order.
    """
    producer = {name: v for v, node in enumerate(computed) for name in node.outputs}
    readers: dict[str, list[int]] = {}
    successors: list[set[int]] = [set() for _ in computed]
    for v, node in enumerate(computed):
        for name in {root[read] for read in node.reads}:
            readers.setdefault(name, []).append(v)
            if name in producer:
                successors[producer[name]].add(v)
    shown = {root[name] for name in graph.outputs}
    owned = {*graph.inputs, *graph.weights}
    state_of: dict[str, str] = {}
    overwritten: set[str] = set()
    for name, resident in graph.state.items():
        update = producer.get(name)
        if update is None or resident not in owned or resident in overwritten or resident in shown:
            continue
        if not overwrites_resident(graph, computed[update], name, resident, root):
            continue
        others = {v for v in readers.get(resident, ()) if v != update}
        if _reaches(successors, update, others):
            continue
        for v in others:
            successors[v].add(update)
        state_of[name] = resident
        overwritten.add(resident)
    order = _sorted(successors, range(len(computed)))
    group = _update_groups(computed, successors, order, [producer[name] for name in state_of])
    return state_of, _with_early_groups(successors, order, group)


def overwrites_resident(graph: Graph, node: GraphNode, output: str, resident: str, root: Mapping[str, str]) -> bool:
    """Whether `output` of `node` may be written onto the bytes of `resident`, all other readers being done.

    It may when the node does not read the resident at all, or reads it once, in a position where the first output
    may run in place.
    """
    new, old = graph.tensors[output], graph.tensors[resident]
    if not (new.fixed_size and old.fixed_size) or new.size_bytes != old.size_bytes or new.elem_type != old.elem_type:
        return False
    positions = [k for k, name in enumerate(node.inputs) if name and root[name] == resident]
    if any(root[name] == resident for name in node.captures):
        return False
    if not positions:
        return True
    return len(positions) == 1 and positions[0] in node.in_place and node.outputs[0] == output


def _reaches(successors: Sequence[set[int]], start: int, targets: set[int]) -> bool:
    seen, pending = {start}, [start]
    while pending:
        for v in successors[pending.pop()]:
            if v in targets:
                return True
            if v not in seen:
                seen.add(v)
                pending.append(v)
    return False


def _update_groups(
    computed: Sequence[GraphNode], successors: Sequence[set[int]], order: Sequence[int], updates: Sequence[int]
) -> dict[int, int]:
    """Node -> update, for the updates themselves and for elementwise nodes that feed one update and nothing else.

    Such nodes (learning rate times gradient) must move with their update: alone, some could run at the very start.
    """
    group = {update: update for update in updates}
    for v in reversed(order):
        if v in group or not successors[v] or not computed[v].in_place:
            continue
        served = {group.get(successor, -1) for successor in successors[v]}
        if len(served) == 1 and -1 not in served:
            group[v] = served.pop()
    return group


def _with_early_groups(successors: Sequence[set[int]], order: Sequence[int], group: Mapping[int, int]) -> list[int]:
    """`order`, but each group runs as soon as all else that it needs has run.

    A group can be treated as one unit: only its update has successors outside, so no path leaves it and comes back.
    """
    members: dict[int, list[int]] = {}
    for v in order:
        members.setdefault(group.get(v, v), []).append(v)
    position = {v: k for k, v in enumerate(order)}
    units = sorted(members, key=lambda unit: position[members[unit][-1]])
    number = {unit: k for k, unit in enumerate(units)}
    after: list[set[int]] = [set() for _ in units]
    for v, later in enumerate(successors):
        unit = number[group.get(v, v)]
        after[unit].update(number[group.get(w, w)] for w in later)
        after[unit].discard(unit)
    early = {number[update] for update in group.values()}
    rank = [k - len(units) if k in early else k for k in range(len(units))]
    return [v for k in _sorted(after, rank) for v in members[units[k]]]


def _sorted(successors: Sequence[set[int]], rank: Sequence[int]) -> list[int]:
    """The topological order that always takes the node of the lowest rank among those that are ready."""
    waiting = [0] * len(successors)
    for later in successors:
        for v in later:
            waiting[v] += 1
    ready = [(rank[v], v) for v, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, v = heapq.heappop(ready)
        order.append(v)
        for w in successors[v]:
            waiting[w] -= 1
            if waiting[w] == 0:
                heapq.heappush(ready, (rank[w], w))
    return order
