"""Short ways to load cases and models in ONNX's text form, shared by the tests of loading."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from remat_cli.model.graph import Graph
from remat_cli.model.load import load_graph
from remat_cli.model.weights import weight_array
from remat_cli.model.whole_model import whole_model
from remat_cli.ort_session import Device, make_session

CASES = Path(__file__).parents[1] / "data" / "cases"
HEAD = '<ir_version: 8, opset_import: ["" : 17, "loc" : 1]>\n'


def case(number: str, dims: Mapping[str, int] | None = None, **options: Any) -> Graph:
    """The loaded trial case of that number."""
    (path,) = CASES.glob(f"{number}_*.onnx")
    return load_graph(path, dims, **options)


def written(folder: Path, text: str) -> Path:
    """A model file from ONNX's text form, without the header."""
    path = folder / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(HEAD + text).SerializeToString())
    return path


def load(folder: Path, text: str, dims: Mapping[str, int] | None = None) -> Graph:
    """The loaded graph of a model in text form."""
    return load_graph(written(folder, text), dims)


def ops(graph: Graph) -> list[str]:
    """Operators of the nodes, in order."""
    return [node.op_type for node in graph.nodes]


def runs(graph: Graph, **given: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The outputs of the normalised graph in a plain session; zeros for inputs that are not given."""
    feeds = {name: weight_array(weight) for name, weight in graph.weights.items()}
    for name in graph.inputs:
        info = graph.tensors[name]
        dtype = helper.tensor_dtype_to_np_dtype(info.elem_type)
        feeds[name] = given.get(name, np.zeros(info.shape or (), dtype))
    session = make_session(whole_model(graph).SerializeToString(), Device())
    results: list[np.ndarray[Any, Any]] = session.run(list(graph.outputs), feeds)
    return results
