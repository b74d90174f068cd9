"""Graph + node costs -> Problem: views folded, states placed on their residents, unknown sizes pinned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remat_cli.errors import ModelError
from remat_cli.model.graph import Graph, GraphNode
from remat_cli.model.names import quoted
from remat_cli.model.updates import place_updates
from remat_cli.problem import Kind, Node, NodeCost, Problem, Tensor, committed_workspace
from remat_cli.units import align


def build_problem(graph: Graph, costs: Mapping[str, NodeCost], alignment: int, *, in_place: bool = True) -> Problem:
    """The problem that solvers see. `costs`: node id -> cost; views need none.

    Residents (inputs, weights, constants) have size 0 here: their bytes are in `fixed_bytes`, with the largest
    workspace of any node. Nodes keep the graph's order, except that an update which overwrites its resident comes
    after every other reader of it. ModelError names a node without cost.
    """
    computed = [node for node in graph.nodes if node.view_of is None]
    for node in computed:
        if node.id not in costs:
            raise ModelError(
                f"there is no cost for {node.label} ({quoted(node.id)})", f"remat profile {graph.path.name}"
            )
    layout = _layout(graph, computed)
    table = _TensorTable(graph, layout, alignment)
    nodes = tuple(_lower_node(graph, node, costs[node.id], table, layout, in_place) for node in layout.nodes)
    residents = resident_bytes(graph, alignment)
    workspace = max((costs[node.id].workspace_bytes for node in layout.nodes), default=0)
    return Problem(
        name=graph.path.name,
        nodes=nodes,
        tensors=tuple(table.rows),
        outputs=tuple(table.index[name] for name in graph.outputs),
        fixed_bytes=sum(residents.values()) + committed_workspace(workspace, alignment),
        alignment=alignment,
        batch=graph.dims.get("batch"),
    )


def resident_bytes(graph: Graph, alignment: int) -> dict[str, int]:
    """Aligned bytes of every input, weight and constant, in the order of the problem's tensor table."""
    return {name: align(graph.tensors[name].size_bytes, alignment) for name, _ in _residents(graph)}


def _residents(graph: Graph) -> list[tuple[str, Kind]]:
    rows: list[tuple[str, Kind]] = [(name, "input") for name in graph.inputs]
    rows += [(name, "weight") for name in graph.weights]
    rows += [(name, "constant") for name in graph.constants]
    return rows


@dataclass(frozen=True)
class _Layout:
    """`nodes` in schedule order; `state_of`: outputs that overwrite a resident -> that resident; `root`: view or
    other tensor -> owner of its storage."""

    nodes: Sequence[GraphNode]
    state_of: Mapping[str, str]
    root: Mapping[str, str]


def _layout(graph: Graph, computed: Sequence[GraphNode]) -> _Layout:
    root = storage_roots(graph)
    state_of, order = place_updates(graph, computed, root)
    return _Layout([computed[v] for v in order], state_of, root)


def storage_roots(graph: Graph) -> dict[str, str]:
    """For each tensor of the graph, the tensor that owns its bytes (itself unless a node only views it)."""
    root = {name: name for name, _ in _residents(graph)}
    for node in graph.nodes:
        for name in node.outputs:
            root[name] = name
        if node.view_of is not None:
            root[node.outputs[0]] = root[node.view_of]
    return root


class _TensorTable:
    """The rows of `Problem.tensors`: residents, then each node's outputs; views follow what they view."""

    def __init__(self, graph: Graph, layout: _Layout, alignment: int) -> None:
        self.graph = graph
        self.rows: list[Tensor] = []
        self.index: dict[str, int] = {}
        self._views: dict[str, list[str]] = {}
        for node in graph.nodes:
            if node.view_of is not None:
                self._views.setdefault(node.view_of, []).append(node.outputs[0])
        shown = set(graph.outputs)
        for name, kind in _residents(graph):
            self._add(Tensor(name, 0, kind))
        for v, node in enumerate(layout.nodes):
            for name in node.outputs:
                resident = layout.state_of.get(name)
                if resident is not None:
                    self._add(Tensor(name, 0, "state", producer=v, state_of=self.index[resident]))
                    continue
                info = graph.tensors[name]
                kind = "pinned" if not info.fixed_size else "output" if name in shown else "activation"
                self._add(Tensor(name, align(info.size_bytes, alignment), kind, producer=v))

    def _add(self, row: Tensor) -> None:
        pending = [row]
        while pending:
            row = pending.pop()
            parent = len(self.rows)
            self.index[row.id] = parent
            self.rows.append(row)
            views = self._views.get(row.id, [])
            pending += [Tensor(name, 0, "view", view_of=parent) for name in reversed(views)]


def _lower_node(
    graph: Graph, node: GraphNode, cost: NodeCost, table: _TensorTable, layout: _Layout, in_place: bool
) -> Node:
    updates = any(name in layout.state_of for name in node.outputs)
    return Node(
        id=node.id,
        op_type=node.op_type,
        inputs=tuple(table.index[name] for name in node.reads),
        outputs=tuple(table.index[name] for name in node.outputs),
        cost_ns=cost.cost_ns,
        # The largest scratch is committed once, as part of the fixed bytes.
        workspace_bytes=0,
        recomputable=not node.once and not updates,
        in_place_inputs=_in_place_inputs(graph, node, table, layout) if in_place else (),
    )


def _in_place_inputs(graph: Graph, node: GraphNode, table: _TensorTable, layout: _Layout) -> tuple[int, ...]:
    """The inputs that the first output may overwrite: storages that a node makes, of the output's size, read once."""
    if not node.in_place or node.outputs[0] in layout.state_of:
        return ()
    result = table.rows[table.index[node.outputs[0]]]
    if result.kind == "pinned":
        return ()
    roots = [layout.root[name] for name in node.reads]
    found = []
    for position in node.in_place:
        name = node.inputs[position]
        owner = table.rows[table.index[layout.root[name]]]
        if owner.producer is None or owner.kind in ("pinned", "state") or roots.count(owner.id) != 1:
            continue
        if owner.size_bytes == result.size_bytes:
            found.append(table.index[name])
    return tuple(found)
