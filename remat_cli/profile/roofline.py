"""The analytic cost model: the roofline of Williams, Waterman and Patterson (CACM 2009) with a launch overhead.

A node takes its launch plus the longer of its arithmetic at the device's effective peak and its traffic at the
device's bandwidth. All in integers, so that a graph and a device file give the same costs on any machine.
"""

from __future__ import annotations

from remat_cli.model.graph import Graph, GraphNode
from remat_cli.model.subgraphs import bodies
from remat_cli.problem import NodeCost
from remat_cli.profile.devices import DeviceModel, DeviceSpec
from remat_cli.profile.flops import work_of
from remat_cli.profile.op_view import OpView
from remat_cli.profile.workspace import estimate_workspace

_NS = 10**9


def estimate_costs(graph: Graph, model: DeviceModel) -> dict[str, NodeCost]:
    """Node id -> estimated time and scratch, for every node that takes a step (views take none)."""
    return {node.id: estimate_cost(graph, node, model) for node in graph.nodes if node.view_of is None}


def estimate_cost(graph: Graph, node: GraphNode, model: DeviceModel) -> NodeCost:
    """Time in ns and scratch in bytes of one node; 1 ns and none under the model `unit`."""
    if model.spec is None:
        return NodeCost(1, 0)
    op = OpView(graph, node)
    return NodeCost(_time_ns(op, model.spec), estimate_workspace(op, model.kind))


def _time_ns(op: OpView, spec: DeviceSpec) -> int:
    work = work_of(op)
    percent = getattr(spec.efficiency_percent, work.family)
    arithmetic = _ceil_div(work.flops * _NS * 100, spec.peak_flops_per_s.of(work.rate) * percent)
    traffic = _ceil_div(work.moved_bytes * _NS, int(spec.memory_bandwidth_bytes_per_s))
    return _launches(op.node) * spec.launch_overhead_ns + max(arithmetic, traffic)


def _launches(node: GraphNode) -> int:
    """One, and one for each node inside control flow: bodies are counted as if they ran once."""
    count, pending = 1, [node.proto]
    while pending:
        for body in bodies(pending.pop()):
            count += len(body.node)
            pending.extend(body.node)
    return count


def _ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)
