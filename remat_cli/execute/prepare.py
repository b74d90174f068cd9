"""From a plan and a model to a program that may run: everything is checked before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from remat_cli.errors import DeviceError, InputError
from remat_cli.execute.program import Program, build_program
from remat_cli.model.hashing import graph_sha256, weights_sha256
from remat_cli.model.load import load_graph
from remat_cli.model.lower import build_problem, resident_bytes
from remat_cli.ort_session import Device, check_provider, parse_device
from remat_cli.plan.check import check_model, check_plan, check_tables
from remat_cli.plan.convert import costs_of_plan
from remat_cli.problem import NodeCost, Problem
from remat_cli.reporter import Reporter
from remat_cli.units import format_bytes

if TYPE_CHECKING:
    from remat_cli.model.feeds import Feeds
    from remat_cli.model.graph import Graph
    from remat_cli.plan.types import Plan


@dataclass(frozen=True)
class Ready:
    """A checked plan: the program, what it runs on, and the budget that it keeps."""

    program: Program
    graph: Graph
    device: Device
    budget_bytes: int


def prepare(
    plan: Plan,
    model: Path | Graph,
    device: Device | None = None,
    *,
    feeds: Feeds | None = None,
    name: str = "plan",
    reporter: Reporter | None = None,
) -> Ready:
    """Check `plan` and lay it out for `model` on `device` (default: the plan's).

    `feeds`: input values, for models whose shapes hang on values. `name`: of the plan's file, for messages.
    Raises CheckFailed for an illegal plan or one that was made for another model, InputError for the plan of a problem
    file, ModelError when the model cannot be loaded, DeviceError when the device is not there or no engine for it, or
    when sizes rounded for it break the budget.
    """
    if plan.costs.source == "problem":
        raise InputError(
            f"{name} is the plan of a problem file, {plan.model.file}: there is no model to run",
            "plans of ONNX models can be run; remat check and remat show read this one",
        )
    check_plan(plan).raise_faults(name)
    device = device or parse_device(plan.device.name)
    check_provider(device)
    if device.kind != "cpu":
        raise DeviceError(
            f"{device.name}: the arena engine runs on the CPU only in this version",
            f"remat run {name} --device cpu",
        )
    graph = load_graph(model, plan.model.dims, feeds, reporter) if isinstance(model, Path) else model
    _check_graph(plan, graph, name, reporter or Reporter())
    program = build_program(plan, graph, device.alignment)
    if program.peak_bytes > plan.budget_bytes:
        raise DeviceError(
            f"on {device.name}, where sizes are rounded up to {device.alignment} bytes, {name} needs"
            f" {program.peak_bytes} bytes ({format_bytes(program.peak_bytes)}), more than its budget of"
            f" {plan.budget_bytes}",
            f"solve for that device: remat solve {plan.model.file} --device {device.name} --budget {plan.budget_bytes}",
        )
    return Ready(program, graph, device, plan.budget_bytes)


def _check_graph(plan: Plan, graph: Graph, name: str, reporter: Reporter) -> None:
    """The graph is the plan's, and the plan's tables say of it what is true: a wrong size would overwrite memory."""
    same = check_model(plan, graph_sha256(graph), weights_sha256(graph))
    for note in same.notes:
        reporter.note(note)
    same.raise_faults(name, "give the plan's own model with --model, or solve again for this one")
    known = costs_of_plan(plan)
    costs = {node.id: known.get(node.id, NodeCost(0)) for node in graph.nodes}
    problem = _with_measured_sizes(build_problem(graph, costs, plan.device.alignment), plan)
    residents = resident_bytes(graph, plan.device.alignment)
    check_tables(plan, problem, node_costs=costs, resident_bytes=residents).raise_faults(name)


def _with_measured_sizes(problem: Problem, plan: Plan) -> Problem:
    """The problem with the plan's figures for tensors of unknown size: they were measured on other values, perhaps,
    and no memory is set aside by them."""
    said = {row.id: row.size_bytes for row in plan.tensors}
    tensors = tuple(
        replace(t, size_bytes=said.get(t.id, t.size_bytes)) if t.kind == "pinned" else t for t in problem.tensors
    )
    return replace(problem, tensors=tensors)
