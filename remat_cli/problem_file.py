"""Problem files (`remat-instance/1`): a graph to schedule for people who have no ONNX.

    {
      "schema": "remat-instance/1", "name": "two", "fixed_bytes": 0, "batch": 1, "meta": {},
      "nodes": [
        {"name": "conv", "cost": 183000, "out": [4096], "deps": [], "ws": 0, "keep": false},
        {"name": "split", "cost": 500, "out": [1024, 3072], "deps": [[0, 0]], "ws": 64, "keep": true}
      ]
    }

Nodes are in topological order. `cost` is in nanoseconds (any unit will do, as only ratios decide), `out` the bytes of
each output, `deps` pairs of [node, output] by index, `ws` the scratch bytes that count during the node's step alone,
`keep` says that all outputs are live at the end. `fixed_bytes` is resident all the time; output bytes and costs grow
with `batch`, fixed bytes do not. `fixed_bytes`, `batch`, `meta`, `ws` and `keep` may be left out; other keys are
refused, so that a misspelt one is not silently ignored. Numbers are whole, 0 to 2^60. Names may repeat (layers of a
network often do): the second node called ``pad`` gets the id ``pad#2``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from remat_cli.errors import FileFormatError
from remat_cli.problem import Node, Problem, Tensor
from remat_cli.strict_json import load_file

SCHEMA = "remat-instance/1"
OP_TYPE = "node"
# Larger numbers are mistakes, and sums must fit 64 bits.
MAX_VALUE = 2**60

_FILE_KEYS = {"schema", "name", "fixed_bytes", "batch", "meta", "nodes"}
_NODE_KEYS = {"name", "cost", "out", "deps", "ws", "keep"}

T = TypeVar("T")


def read_problem(path: Path) -> Problem:
    """The problem in `path`. Node ids are the nodes' names (numbered where they repeat); tensor ids are the node's id,
    or ``id:k`` for output k of a node with several. Alignment is 1: sizes are taken as they are.

    Raises InputError when the file cannot be read, and FileFormatError with the JSON path for every fault in it.
    """
    return parse_problem(load_file(path), str(path))


def parse_problem(document: object, file: str) -> Problem:
    """`read_problem` of a JSON document; `file` names it in messages."""
    return _Reader(file).problem(document)


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.names: set[str] = set()
        self.repeats: dict[str, int] = {}

    def fault(self, where: str, message: str, hint: str | None = None) -> FileFormatError:
        return FileFormatError(self.file, where, message, hint)

    def problem(self, document: object) -> Problem:
        top = self.members(document, "$", _FILE_KEYS)
        schema = self.required(top, "schema", "$", str)
        if schema != SCHEMA:
            raise self.fault("$.schema", f"{schema!r} is not a format that this version reads", f"it reads {SCHEMA!r}")
        name = self.text(top, "name", "$")
        fixed_bytes = self.whole(top.get("fixed_bytes", 0), "$.fixed_bytes")
        batch = self.whole(top["batch"], "$.batch", low=1) if top.get("batch") is not None else None
        self.typed(top.get("meta", {}), "$.meta", dict)
        rows = self.required(top, "nodes", "$", list)
        if not rows:
            raise self.fault("$.nodes", "there are no nodes, so there is nothing to schedule")
        self.names = {row["name"] for row in rows if isinstance(row, dict) and isinstance(row.get("name"), str)}
        nodes: list[Node] = []
        tensors: list[Tensor] = []
        kept: list[int] = []
        for v, row in enumerate(rows):
            node, outputs, keep = self.node(row, f"$.nodes[{v}]", nodes, len(tensors))
            nodes.append(node)
            tensors += outputs
            kept += node.outputs if keep else ()
        self.check_ids(tensors)
        self.check_sums(nodes, tensors, fixed_bytes)
        return Problem(name, tuple(nodes), tuple(tensors), tuple(kept), fixed_bytes, batch=batch)

    def node(self, row: object, where: str, earlier: list[Node], first_tensor: int) -> tuple[Node, list[Tensor], bool]:
        """One node, its tensors (numbered from `first_tensor`), and whether they are kept."""
        members = self.members(row, where, _NODE_KEYS)
        name = self.unique(self.text(members, "name", where))
        cost = self.whole(self.required(members, "cost", where, object), f"{where}.cost")
        sizes = self.required(members, "out", where, list)
        if not sizes:
            raise self.fault(f"{where}.out", f"node {name} has no outputs, so nothing can need it")
        keep = self.typed(members.get("keep", False), f"{where}.keep", bool)
        tensors = [
            Tensor(
                id=name if len(sizes) == 1 else f"{name}:{k}",
                size_bytes=self.whole(size, f"{where}.out[{k}]"),
                kind="output" if keep else "activation",
                producer=len(earlier),
            )
            for k, size in enumerate(sizes)
        ]
        deps = self.required(members, "deps", where, list)
        node = Node(
            id=name,
            op_type=OP_TYPE,
            inputs=tuple(self.dep(dep, f"{where}.deps[{k}]", earlier) for k, dep in enumerate(deps)),
            outputs=tuple(range(first_tensor, first_tensor + len(sizes))),
            cost_ns=cost,
            workspace_bytes=self.whole(members.get("ws", 0), f"{where}.ws"),
        )
        return node, tensors, keep

    def dep(self, dep: object, where: str, earlier: list[Node]) -> int:
        """The tensor that ``[node, output]`` means."""
        pair = self.typed(dep, where, list)
        if len(pair) != 2:
            raise self.fault(where, f"a dependency is [node, output], not {len(pair)} values")
        v = self.whole(pair[0], f"{where}[0]")
        if v >= len(earlier):
            raise self.fault(
                f"{where}[0]", f"node {v} does not come before node {len(earlier)}: nodes must be in topological order"
            )
        k = self.whole(pair[1], f"{where}[1]")
        outputs = earlier[v].outputs
        if k >= len(outputs):
            raise self.fault(f"{where}[1]", f"node {v} ({earlier[v].id}) has no output {k}, only {len(outputs)}")
        return outputs[k]

    def unique(self, name: str) -> str:
        """`name` the first time, then ``name#2`` and so on, past names that the file itself has."""
        count = self.repeats.get(name, 0) + 1
        while count > 1 and f"{name}#{count}" in self.names:
            count += 1
        self.repeats[name] = count
        return name if count == 1 else f"{name}#{count}"

    def check_ids(self, tensors: list[Tensor]) -> None:
        """Tensor ids are unique: ``a:0`` clashes with output 0 of a node ``a`` that has two."""
        owner: dict[str, int] = {}
        for tensor in tensors:
            assert tensor.producer is not None
            if tensor.id in owner:
                raise self.fault(
                    f"$.nodes[{tensor.producer}].name",
                    f"the tensor id {tensor.id!r} would mean an output of node {owner[tensor.id]} too",
                )
            owner[tensor.id] = tensor.producer

    def check_sums(self, nodes: list[Node], tensors: list[Tensor], fixed_bytes: int) -> None:
        total_bytes = fixed_bytes + sum(t.size_bytes for t in tensors) + max(n.workspace_bytes for n in nodes)
        if total_bytes > MAX_VALUE:
            raise self.fault("$.nodes", f"all outputs, workspace and fixed bytes are {total_bytes}, more than 2^60")
        total_cost = sum(n.cost_ns for n in nodes)
        if total_cost > MAX_VALUE:
            raise self.fault("$.nodes", f"all costs sum to {total_cost}, more than 2^60")

    def members(self, value: object, where: str, known: set[str]) -> Mapping[str, object]:
        """An object whose keys are all known."""
        members: dict[str, object] = self.typed(value, where, dict)
        for key in members:
            if key not in known:
                raise self.fault(where, f"unknown key {key!r}", f"known keys: {', '.join(sorted(known))}")
        return members

    def required(self, members: Mapping[str, object], key: str, where: str, kind: type[T]) -> T:
        if key not in members:
            raise self.fault(where, f"the key {key!r} is missing")
        return self.typed(members[key], f"{where}.{key}", kind)

    def text(self, members: Mapping[str, object], key: str, where: str) -> str:
        value = self.required(members, key, where, str)
        if not value:
            raise self.fault(f"{where}.{key}", "the name is empty")
        return value

    def whole(self, value: object, where: str, low: int = 0) -> int:
        """A whole number, `low` to 2^60; floats are refused even when whole."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fault(where, f"expected a whole number, not {_named(value)}")
        if not low <= value <= MAX_VALUE:
            raise self.fault(where, f"{value} is not within {low} and 2^60")
        return value

    def typed(self, value: object, where: str, kind: type[T]) -> T:
        if not isinstance(value, kind):
            raise self.fault(where, f"expected {_NAMES[kind]}, not {_named(value)}")
        return value


_NAMES: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number with a fraction",
    str: "a string",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def _named(value: object) -> str:
    return _NAMES.get(type(value), type(value).__name__)
