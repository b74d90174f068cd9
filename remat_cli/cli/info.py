"""``remat info``: what is in a model or problem file, and how little memory could do."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from remat_cli.cli import options as opt
from remat_cli.cli.plan_text import percent_text, size_text
from remat_cli.report.text import shown

if TYPE_CHECKING:
    from remat_cli.cli.console import Terminal
    from remat_cli.model.graph import Graph
    from remat_cli.pipeline import Source
    from remat_cli.problem import Problem

_MOST_OPS = 20


@dataclass(frozen=True)
class Contents:
    """The result of ``info``; field names are the JSON keys.

    `memory`: bytes of each kind of resident, of all activations together, and of the store-all peak (fixed bytes
    included). `bound_bytes`: no schedule fits less, for the step of `bound_node` needs it, fixed bytes included.
    `once`: nodes that may run only once, and why.
    """

    file: str
    kind: str
    nodes: int
    views: int
    opsets: dict[str, int]
    dims: dict[str, int]
    ops: dict[str, int]
    memory: dict[str, int]
    bound_bytes: int
    bound_node: str
    once: dict[str, str]
    notes: tuple[str, ...]


@click.command(
    "info",
    cls=opt.RematCommand,
    examples=(
        "remat info model.onnx",
        "remat info dynamic.onnx --dim batch=8 --format json",
        "remat info problem.json",
    ),
)
@click.argument("path", metavar="MODEL|PROBLEM.json", type=click.Path(path_type=Path))
@opt.dims_option
@opt.inputs_option
@opt.quiet_option
@opt.common_options()
def command(path: Path, dim: dict[str, int], inputs: Path | None, format: str, quiet: bool) -> None:
    """List what is in MODEL: nodes, operators, memory by kind, and the least budget that any schedule needs.

    Kernel workspace is not counted here, as nothing is measured: `remat solve` does count it.
    """
    from remat_cli.cli.console import Terminal
    from remat_cli.pipeline import load_source

    terminal = Terminal(json_output=format == "json", quiet=quiet)
    contents = contents_of(load_source(path, dim, opt.feeds_of(inputs), terminal.reporter))
    if terminal.json_output:
        terminal.json(asdict(contents))
    else:
        _print(terminal, contents)


def contents_of(source: Source) -> Contents:
    """Everything that ``info`` tells."""
    from remat_cli.solve.bounds import working_set_bound

    problem, graph = _problem_of(source), source.graph
    bound = working_set_bound(problem)
    memory = _memory(problem) if graph is None else _resident(graph, problem.alignment) | _memory(problem)
    return Contents(
        file=source.path.name,
        kind="problem file" if graph is None else "ONNX model",
        nodes=len(problem.nodes),
        views=sum(tensor.view_of is not None for tensor in problem.tensors),
        opsets={} if graph is None else {domain or "ai.onnx": v for domain, v in sorted(graph.opsets.items())},
        dims={} if graph is None else dict(sorted(graph.dims.items())),
        ops=dict(Counter(_op_names(source)).most_common()),
        memory=memory,
        bound_bytes=problem.fixed_bytes + bound.bytes,
        bound_node=problem.nodes[bound.node].id if bound.node >= 0 else "",
        once={} if graph is None else {node.label: node.once for node in graph.nodes if node.once},
        notes=() if graph is None else graph.notes,
    )


def _problem_of(source: Source) -> Problem:
    """The problem with every node at the same cost: memory does not hang on costs."""
    if source.problem is not None:
        return source.problem
    from remat_cli.model.lower import build_problem
    from remat_cli.ort_session import Device
    from remat_cli.problem import NodeCost

    assert source.graph is not None
    costs = {node.id: NodeCost(1) for node in source.graph.nodes}
    return build_problem(source.graph, costs, Device().alignment)


def _op_names(source: Source) -> list[str]:
    if source.graph is None:
        return [node.op_type for node in source.problem.nodes] if source.problem else []
    return [f"{node.domain}:{node.op_type}" if node.domain else node.op_type for node in source.graph.nodes]


def _resident(graph: Graph, alignment: int) -> dict[str, int]:
    """Bytes of the weights, other inputs and constants."""
    from remat_cli.model.lower import resident_bytes

    sizes = resident_bytes(graph, alignment)
    return {
        "weights_bytes": sum(sizes[name] for name in graph.weights),
        "inputs_bytes": sum(sizes[name] for name in graph.inputs),
        "constants_bytes": sum(sizes[name] for name in graph.constants),
    }


def _memory(problem: Problem) -> dict[str, int]:
    from remat_cli.memory import replay_sequence

    peak = replay_sequence(problem, range(len(problem.nodes))).peak_bytes
    return {
        "fixed_bytes": problem.fixed_bytes,
        "activations_bytes": sum(problem.write_bytes),
        "store_all_peak_bytes": problem.fixed_bytes + peak,
    }


def _print(terminal: Terminal, contents: Contents) -> None:
    memory = contents.memory
    facts = [("file", f"{contents.file} ({contents.kind})"), ("nodes", f"{contents.nodes}, and {contents.views} views")]
    if contents.opsets:
        facts.append(("opset", ", ".join(f"{domain} {version}" for domain, version in contents.opsets.items())))
    if contents.dims:
        facts.append(("dims", ", ".join(f"{name}={size}" for name, size in contents.dims.items())))
    names = {
        "weights_bytes": "weights", "inputs_bytes": "inputs", "constants_bytes": "constants", "fixed_bytes": "fixed",
        "activations_bytes": "activations", "store_all_peak_bytes": "store-all peak",
    }  # fmt: skip
    facts += [(names[key], size_text(size)) for key, size in memory.items()]
    share = percent_text(contents.bound_bytes, memory["store_all_peak_bytes"])
    facts.append(
        ("least budget", f"{size_text(contents.bound_bytes)}, {share} of store-all, for {shown(contents.bound_node)}")
    )
    terminal.facts(facts)
    terminal.line()
    rows = list(contents.ops.items())
    terminal.table(("operator", "nodes"), rows[:_MOST_OPS], right=("nodes",))
    if len(rows) > _MOST_OPS:
        terminal.line(f"and {len(rows) - _MOST_OPS} more operators: --format json lists all")
    if contents.once:
        terminal.line()
        terminal.table(("runs only once", "because"), list(contents.once.items()))
