"""The main job, end to end: model or problem file -> costs -> problem -> solution -> placed plan.

This is the one module that knows all stages; commands, benchmarks and tests go through it. Heavy packages are
imported inside the functions that need them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from remat_cli.errors import DeviceError, InfeasibleError, InputError, NoScheduleError
from remat_cli.memory import replay_sequence, steps_of
from remat_cli.ort_session import Device, parse_device
from remat_cli.plan.types import Plan, PlanCosts, PlanDevice, PlanModel
from remat_cli.problem import NodeCost, Problem, Solution
from remat_cli.reporter import Reporter
from remat_cli.units import Percent, format_bytes

if TYPE_CHECKING:
    import numpy as np

    from remat_cli.model.graph import Graph
    from remat_cli.plan.placement import Placement
    from remat_cli.solve.types import Effort

Budget = int | Percent | Literal["auto", "min"]
# Placement misses the live peak by a percent or two at worst, so a few tighter questions are enough.
PLACEMENT_ATTEMPTS = 8
DEFAULT_COST_MODEL = "cpu"


@dataclass(frozen=True)
class Source:
    """What the user wants scheduled: an ONNX graph, or a problem file."""

    path: Path
    graph: Graph | None = None
    problem: Problem | None = None


@dataclass(frozen=True)
class Costs:
    """Node costs and where they come from. `nodes` maps node id -> cost."""

    nodes: Mapping[str, NodeCost]
    origin: PlanCosts
    device: PlanDevice


@dataclass(frozen=True)
class CompileRequest:
    """Everything that decides a plan. `budget` includes fixed bytes, except for percents (see `resolve_budget`)."""

    source: Source
    costs: Costs
    budget: Budget
    method: str = "auto"
    seed: int = 0
    effort: Effort = "normal"
    time_limit_s: float | None = None
    warm_start: Plan | None = None
    in_place: bool = True
    reporter: Reporter = field(default_factory=Reporter)


def load_source(
    path: Path,
    dims: Mapping[str, int] | None = None,
    feeds: Mapping[str, np.ndarray] | None = None,
    reporter: Reporter | None = None,
) -> Source:
    """Read a model or, by its ending ``.json``, a problem file."""
    if path.suffix == ".json":
        from remat_cli.problem_file import read_problem

        if dims:
            raise InputError(f"{path.name} is a problem file: it has no dims to fix", "leave --dim out")
        return Source(path, problem=read_problem(path))
    from remat_cli.model.load import load_graph

    return Source(path, graph=load_graph(path, dims, feeds, reporter))


def costs_of_problem(source: Source) -> Costs:
    """Problem files carry their own costs; workspace counts per step."""
    assert source.problem is not None
    nodes = {n.id: NodeCost(n.cost_ns, n.workspace_bytes) for n in source.problem.nodes}
    origin = PlanCosts("problem", source.path.name, _sha256(source.path.read_bytes()), "per step")
    return Costs(nodes, origin, PlanDevice("problem", source.problem.alignment, 1))


def costs_from_profile(source: Source, profile: Path) -> Costs:
    """Costs of a measured profile; refuses one that was made for another graph."""
    from remat_cli.model.hashing import graph_sha256
    from remat_cli.profile.files import read_profile

    graph = _graph(source)
    measured = read_profile(profile)
    if measured.model.graph_sha256 != graph_sha256(graph):
        dims = " ".join(f"--dim {name}={size}" for name, size in measured.model.dims.items())
        raise InputError(
            f"{profile.name} was measured on another graph ({measured.model.file} {dims}".rstrip() + ")",
            f"remat profile {source.path.name} -o {profile.name}",
        )
    nodes = measured.costs()
    origin = PlanCosts("profile", profile.name, _sha256(profile.read_bytes()), measured.workspace)
    device = parse_device(measured.device.name)
    return Costs(nodes, origin, PlanDevice(device.name, device.alignment, measured.device.threads))


def costs_from_measurement(
    source: Source,
    device: Device,
    profile_out: Path,
    *,
    threads: int = 1,
    feeds: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    force: bool = False,
    reporter: Reporter | None = None,
) -> Costs:
    """Measure on `device`, write the profile to `profile_out`, and use it."""
    from remat_cli.profile.files import write_profile
    from remat_cli.profile.measure import profile_graph

    reporter = reporter or Reporter()
    profile = profile_graph(_graph(source), device, threads=threads, feeds=feeds, seed=seed, reporter=reporter)
    write_profile(profile, profile_out, force=force)
    reporter.note(f"profile written to {profile_out.name}")
    return costs_from_profile(source, profile_out)


def costs_from_model(
    source: Source, name: str = DEFAULT_COST_MODEL, *, threads: int = 1, reporter: Reporter | None = None
) -> Costs:
    """Analytic roofline costs of a device model: a built-in name, or a YAML file.

    Nothing is run for them, so kernels are looked for here: ModelError names a node that the device cannot run.
    """
    from remat_cli.profile.devices import load_device_model
    from remat_cli.profile.roofline import estimate_costs

    model = load_device_model(name)
    nodes = estimate_costs(_graph(source), model)
    origin = PlanCosts("cost-model", model.file, model.sha256, "estimated")
    device = Device(model.kind)
    _require_kernels(_graph(source), device, reporter or Reporter())
    return Costs(nodes, origin, PlanDevice(device.name, device.alignment, threads))


def _require_kernels(graph: Graph, device: Device, reporter: Reporter) -> None:
    from remat_cli.model.kernels import check_kernels

    try:
        check_kernels(graph, device)
    except DeviceError:
        reporter.note(f"{device.name} is not here, so whether it has a kernel for every node was not checked")


def problem_for(source: Source, costs: Costs, *, in_place: bool = True) -> Problem:
    """The problem that solvers see."""
    if source.problem is not None:
        return source.problem
    from remat_cli.model.lower import build_problem

    return build_problem(_graph(source), costs.nodes, costs.device.alignment, in_place=in_place)


def resolve_budget(budget: int | Percent, problem: Problem) -> int:
    """Bytes: a percent is fixed bytes plus that share of the store-all peak of activations."""
    if isinstance(budget, Percent):
        store_all = replay_sequence(problem, range(len(problem.nodes)))
        return problem.fixed_bytes + budget.of(store_all.peak_bytes)
    return budget


def compile_plan(request: CompileRequest) -> Plan:
    """Solve, place and lower. Raises InfeasibleError (proved) or NoScheduleError (none found), each with the
    smallest feasible budget that was found."""
    problem = problem_for(request.source, request.costs, in_place=request.in_place)
    if request.budget == "min":
        return _compile_smallest(request, problem)
    if request.budget == "auto":
        budget_bytes = free_memory_bytes(parse_device(request.costs.device.name))
    else:
        budget_bytes = resolve_budget(request.budget, problem)
    solution, placement = _solve_and_place(request, problem, budget_bytes)
    return _lower(request, problem, solution, placement, budget_bytes)


def free_memory_bytes(device: Device) -> int:
    """What `--budget auto` means: memory that is free on the device now."""
    from remat_cli.device_memory import free_bytes

    return free_bytes(device)


def smallest_budget(source: Source, problem: Problem, reporter: Reporter | None = None) -> tuple[int, Solution]:
    """The smallest budget in bytes that a schedule was found and placed for, and that schedule."""
    from remat_cli.solve.smallest import smallest_feasible

    found = smallest_feasible(problem, reporter=reporter or Reporter())
    solution = found.solution
    assert solution.sequence is not None
    needed, _ = _needed_bytes(source, problem, solution.sequence)
    return problem.fixed_bytes + needed, solution


def _compile_smallest(request: CompileRequest, problem: Problem) -> Plan:
    """`--budget min`: find the smallest budget, then let the asked method do its best within it."""
    budget_bytes, fallback = smallest_budget(request.source, problem, request.reporter)
    assert fallback.sequence is not None
    try:
        solution, placement = _solve_and_place(request, problem, budget_bytes, fallback.sequence, attempts=2)
    except (NoScheduleError, InfeasibleError):
        if request.method != "auto":
            raise
        solution, placement = fallback, _place(problem, fallback.sequence)
    return _lower(request, problem, solution, placement, budget_bytes)


def _solve_and_place(
    request: CompileRequest,
    problem: Problem,
    budget_bytes: int,
    warm: tuple[int, ...] | None = None,
    attempts: int = PLACEMENT_ATTEMPTS,
) -> tuple[Solution, Placement]:
    """Ask for a schedule; while its placed arena misses the capacity, ask again with less."""
    from remat_cli.solve.registry import run_method
    from remat_cli.solve.types import Request

    capacity = budget_bytes - problem.fixed_bytes
    question = Request(
        problem=problem,
        capacity_bytes=capacity,
        seed=request.seed,
        effort=request.effort,
        time_limit_s=request.time_limit_s,
        warm_start=warm or _warm_sequence(request, problem),
        reporter=request.reporter,
    )
    first: Solution | None = None
    needed = 0
    for _ in range(attempts):
        solution = run_method(request.method, question) if question.capacity_bytes >= 0 else None
        if solution is None or solution.sequence is None:
            break
        first = first or solution
        needed, placement = _needed_bytes(request.source, problem, solution.sequence)
        if needed <= capacity:
            return _as_asked(solution, first), placement
        tighter = question.capacity_bytes - max(needed - capacity, problem.alignment)
        question = replace(question, capacity_bytes=tighter, warm_start=solution.sequence)
    _raise_no_schedule(request, problem, budget_bytes, first or solution, needed)
    raise AssertionError("unreachable")


def _as_asked(solution: Solution, first: Solution) -> Solution:
    """A schedule that was found with less capacity than asked keeps only what is proved for the full capacity."""
    if solution is first:
        return solution
    bound = first.lower_bound_ns
    proved = bound is not None and solution.cost_ns is not None and solution.cost_ns <= bound
    return replace(solution, status="optimal" if proved else "feasible", lower_bound_ns=bound, scope=first.scope)


def _raise_no_schedule(
    request: CompileRequest, problem: Problem, budget_bytes: int, answer: Solution | None, needed: int
) -> None:
    from remat_cli.solve.verified import LIVE_BYTES

    smallest, _ = smallest_budget(request.source, problem, request.reporter)
    hint = f"smallest feasible budget found: {smallest} bytes ({format_bytes(smallest)}): try --budget {smallest}"
    asked = f"budget of {budget_bytes} bytes ({format_bytes(budget_bytes)})"
    if answer is None:
        raise InfeasibleError(
            f"{asked} is less than what is resident all the time: {problem.fixed_bytes} bytes of inputs, weights, "
            "constants and kernel workspace",
            hint,
        )
    if answer.status == "infeasible" and answer.scope == LIVE_BYTES:
        raise InfeasibleError(f"no schedule fits a {asked}: {answer.message}", hint)
    if answer.sequence is not None:
        total = problem.fixed_bytes + needed
        raise NoScheduleError(f"schedules of {request.method} fit a {asked} but need {total} bytes once placed", hint)
    detail = f": {answer.message}" if answer.message else ""
    raise NoScheduleError(f"{request.method} found no schedule for a {asked}{detail}", hint)


def _needed_bytes(source: Source, problem: Problem, sequence: tuple[int, ...]) -> tuple[int, Placement]:
    """What a schedule needs beside the fixed bytes: its placed arena, or its live peak where nothing is executed.

    Problem files have no arena: their budgets are about live bytes and per-step workspace, as in the literature.
    """
    placement = _place(problem, sequence)
    if source.problem is not None:
        return replay_sequence(problem, sequence).peak_bytes, placement
    return placement.arena_bytes, placement


def _place(problem: Problem, sequence: tuple[int, ...]) -> Placement:
    from remat_cli.plan.placement import place

    return place(problem, steps_of(problem, sequence))


def _warm_sequence(request: CompileRequest, problem: Problem) -> tuple[int, ...] | None:
    """The computes of the older plan, by node id; a plan of another graph is refused."""
    if request.warm_start is None:
        return None
    index = {node.id: v for v, node in enumerate(problem.nodes)}
    sequence = []
    for step in request.warm_start.steps:
        if step.action != "compute":
            continue
        if step.target not in index:
            raise InputError(f"the warm start computes {step.target}, which this graph does not have")
        sequence.append(index[step.target])
    if missing := set(range(len(problem.nodes))) - set(sequence):
        raise InputError(f"the warm start never computes {problem.nodes[min(missing)].id}")
    return tuple(sequence)


def _lower(
    request: CompileRequest, problem: Problem, solution: Solution, placement: Placement, budget_bytes: int
) -> Plan:
    from remat_cli.plan.convert import lower_solution

    if request.time_limit_s is not None:
        # Another run may get further in the same time, so the plan says how it was made.
        solution = replace(solution, scope=f"{solution.scope}, time limit {request.time_limit_s:g} s, not reproducible")
    return lower_solution(
        problem,
        solution,
        model=plan_model(request.source),
        device=request.costs.device,
        costs=request.costs.origin,
        budget_bytes=budget_bytes,
        asked=request.method,
        seed=request.seed,
        ortools=version("ortools"),
        node_costs=request.costs.nodes,
        resident_bytes=_resident_bytes(request.source, problem),
        placement=placement,
    )


def plan_model(source: Source) -> PlanModel:
    """How a plan names what it is for."""
    if source.graph is None:
        return PlanModel(source.path.name, _sha256(source.path.read_bytes()), "", {})
    from remat_cli.model.hashing import graph_sha256, weights_sha256

    graph = source.graph
    return PlanModel(source.path.name, graph_sha256(graph), weights_sha256(graph), dict(sorted(graph.dims.items())))


def _resident_bytes(source: Source, problem: Problem) -> dict[str, int]:
    if source.graph is None:
        return {}
    from remat_cli.model.lower import resident_bytes

    return resident_bytes(source.graph, problem.alignment)


def _graph(source: Source) -> Graph:
    if source.graph is None:
        raise InputError(f"{source.path.name} is a problem file: it carries its own costs and cannot be measured")
    return source.graph


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
