"""Bodies of If, Loop, Scan and their like: what they read from outside."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs among the node's attributes, in the file's order."""
    found = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            found.append(attribute.g)
        found.extend(attribute.graphs)
    return found


def captures(node: onnx.NodeProto) -> tuple[str, ...]:
    """Outer tensors that the node's bodies read, nested ones included, and `node.input` does not list."""
    found: dict[str, None] = {}
    for body in bodies(node):
        found.update(dict.fromkeys(_free_names(body)))
    for name in node.input:
        found.pop(name, None)
    return tuple(found)


def reads(node: onnx.NodeProto) -> list[str]:
    """All tensors that the node reads, gaps left out, captures last."""
    names = [name for name in node.input if name]
    return [*names, *captures(node)] if node.attribute else names


def defined_names(graph: onnx.GraphProto) -> set[str]:
    """Names that `graph` itself gives to tensors; nested graphs have their own."""
    names = {value.name for value in graph.input}
    names.update(tensor.name for tensor in graph.initializer)
    names.update(tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        names.update(node.output)
    return names - {""}


def _free_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Names that `graph` reads and does not define. An inner name hides an outer one of the same name."""
    defined = defined_names(graph)
    for node in graph.node:
        for name in reads(node):
            if name not in defined:
                yield name
    for value in graph.output:
        if value.name and value.name not in defined:
            yield value.name


def all_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Every tensor name that occurs in `graph`, nested graphs included."""
    yield from (value.name for value in graph.input)
    yield from (value.name for value in graph.output)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        yield from node.input
        yield from node.output
        for body in bodies(node):
            yield from all_names(body)


def rename_reads(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Make `graph` read `new` where it reads `old`, also in nested graphs that have no `old` of their own."""
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name == old:
                node.input[position] = new
        for body in bodies(node):
            if old not in defined_names(body):
                rename_reads(body, old, new)
    for value in graph.output:
        if value.name == old:
            value.name = new
