"""Small graphs for the tests of profiles, from ONNX's text form."""

from __future__ import annotations

from pathlib import Path

import onnx

from remat_cli.model.graph import Graph, GraphNode
from remat_cli.model.load import load_graph
from remat_cli.profile.op_view import OpView

CASES = Path(__file__).parents[1] / "data" / "cases"
HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\n'


def load_text(folder: Path, body: str, name: str = "m.onnx") -> Graph:
    """The loaded graph of ``g (inputs) => (outputs) { nodes }``."""
    path = folder / name
    path.write_bytes(onnx.parser.parse_model(HEAD + body).SerializeToString())
    return load_graph(path)


def case(number: str) -> Graph:
    (path,) = CASES.glob(f"{number}_*.onnx")
    return load_graph(path)


def node_of(graph: Graph, name: str) -> GraphNode:
    return next(node for node in graph.nodes if node.id == name)


def view(graph: Graph, name: str) -> OpView:
    """The node that makes `name`, as the cost formulas see it."""
    return OpView(graph, node_of(graph, name))


def one_op(folder: Path, inputs: str, output: str, call: str) -> OpView:
    """A graph of one node: ``y = call``."""
    return view(load_text(folder, f"g ({inputs}) => ({output} y) {{ y = {call} }}"), "y")
