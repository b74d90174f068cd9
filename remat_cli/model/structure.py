"""Structure of the graph: gaps among outputs, single assignment, order, and nodes that nobody needs."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cache

import onnx

from remat_cli.errors import ModelError
from remat_cli.model.draft import Draft
from remat_cli.model.names import listed, node_labels, quoted
from remat_cli.model.subgraphs import bodies, reads


def close_gaps(draft: Draft, nodes: Sequence[onnx.NodeProto]) -> None:
    """Name the outputs that `nodes` leave out, in their bodies too; gaps at the end are dropped where that is the same.

    Kernels of Split and Loop write through a null pointer when an output has no name, and the process dies.
    """
    for position, node in enumerate(nodes):
        variadic = _variadic_from(node.op_type, node.domain, draft.opsets.get(node.domain, 1))
        # In a variadic list a gap at the end counts: Split makes as many parts as it has outputs.
        while node.output and not node.output[-1] and len(node.output) <= variadic:
            del node.output[-1]
        for k, name in enumerate(node.output):
            if not name:
                node.output[k] = draft.new_name(f"{node.name or f'{node.op_type}_{position}'}_unused_{k}")
        for body in bodies(node):
            close_gaps(draft, body.node)


@cache
def _variadic_from(op_type: str, domain: str, version: int) -> int:
    """Position of the first output of the variadic list of an operator; a large number if it has none."""
    from onnx import defs

    none = 2**31
    try:
        schema = defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return none
    last = schema.outputs[-1] if schema.outputs else None
    return len(schema.outputs) - 1 if last and last.option == defs.OpSchema.FormalParameterOption.Variadic else none


def check_names(draft: Draft) -> None:
    """Every tensor is made once, and everything that is read is made. Raises ModelError naming node and tensor."""
    labels = node_labels(draft.nodes)
    for position, node in enumerate(draft.nodes):
        if not node.op_type:
            raise ModelError(f"{draft.path}: node {position} {quoted(node.name)} has no operator")
    made: dict[str, str] = dict.fromkeys(draft.inputs, "a graph input")
    made.update(dict.fromkeys((*draft.weights, *draft.constants), "an initialiser"))
    _check_single_assignment(draft, draft.nodes, labels, made)
    for node, label in zip(draft.nodes, labels, strict=True):
        for name in reads(node):
            if name not in made:
                raise ModelError(f"{draft.path}: {label} reads {quoted(name)}, which nothing makes")
    for name in draft.outputs:
        if name not in made:
            raise ModelError(f"{draft.path}: graph output {quoted(name)} is made by no node")
    draft.labels = {node.output[0]: label for node, label in zip(draft.nodes, labels, strict=True) if node.output}


def _check_single_assignment(
    draft: Draft, nodes: Sequence[onnx.NodeProto], labels: Sequence[str], made: dict[str, str]
) -> None:
    for node, label in zip(nodes, labels, strict=True):
        for name in node.output:
            if name in made:
                raise ModelError(f"{draft.path}: {quoted(name)} is written twice: by {made[name]} and by {label}")
            made[name] = label
        for body in bodies(node):
            inner = dict.fromkeys((tensor.name for tensor in body.initializer), "an initialiser")
            inner.update(dict.fromkeys((value.name for value in body.input), f"an input of a body of {label}"))
            inner_labels = [f"{inner_label} inside {label}" for inner_label in node_labels(body.node)]
            _check_single_assignment(draft, body.node, inner_labels, inner)


def sort_nodes(draft: Draft) -> None:
    """Put nodes after the nodes that they read from, otherwise in the file's order. Raises ModelError on a cycle."""
    order = sorted_nodes(draft.nodes, str(draft.path))
    if order != list(range(len(order))):
        draft.notes.append("nodes were not in topological order; they are sorted")
        draft.nodes = [draft.nodes[index] for index in order]


def sorted_nodes(nodes: Sequence[onnx.NodeProto], where: str) -> list[int]:
    """Indices of `nodes` in topological order, the smallest index first where there is a choice.

    Raises ModelError that begins with `where` and names the nodes of a cycle.
    """
    producer = {name: index for index, node in enumerate(nodes) for name in node.output}
    needs = [{producer[name] for name in reads(node) if name in producer} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for index, sources in enumerate(needs):
        for source in sources:
            readers[source].append(index)
    missing = [len(sources) for sources in needs]
    ready = [index for index, count in enumerate(missing) if count == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers[index]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        labels = node_labels(nodes)
        cycle = [labels[index] for index in _cycle(needs, set(order))]
        shown = [*cycle[:8], *(["..."] if len(cycle) > 8 else []), cycle[0]]
        raise ModelError(f"{where}: nodes form a cycle: {' -> '.join(shown)}")
    return order


def _cycle(needs: Sequence[set[int]], placed: set[int]) -> list[int]:
    """One cycle among the nodes that could not be placed, each of which needs another such node."""
    index = min(i for i in range(len(needs)) if i not in placed)
    seen: dict[int, None] = {}
    while index not in seen:
        seen[index] = None
        index = min(source for source in needs[index] if source not in placed)
    walk = list(seen)
    cycle = walk[walk.index(index) :][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


def drop_dead(draft: Draft) -> list[str]:
    """Leave out nodes, weights and constants that no graph output needs; returns the labels of the nodes."""
    needed = set(draft.outputs)
    kept: list[onnx.NodeProto] = []
    dead: list[str] = []
    for node in reversed(draft.nodes):
        if needed.isdisjoint(node.output):
            dead.append(draft.label(node) if node.output else f"{node.op_type} {quoted(node.name)}")
        else:
            needed.update(reads(node))
            kept.append(node)
    draft.nodes = kept[::-1]
    draft.weights = {name: weight for name, weight in draft.weights.items() if name in needed}
    draft.constants = {name: value for name, value in draft.constants.items() if name in needed}
    return dead[::-1]


def drop_dead_with_note(draft: Draft) -> None:
    """`drop_dead` for what the file itself holds, noted for users."""
    unused = len(draft.weights) + len(draft.constants)
    dead = drop_dead(draft)
    unused -= len(draft.weights) + len(draft.constants)
    if dead:
        draft.notes.append(f"{len(dead)} dead node{'s' if len(dead) > 1 else ''} left out: {listed(dead)}")
    if unused:
        draft.notes.append(f"{unused} initialiser{'s' if unused > 1 else ''} left out that nothing reads")
