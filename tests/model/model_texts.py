"""Small models from ONNX text, for the tests of sizing, node models and lowering."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, parser

from remat_cli.model.graph import Graph
from remat_cli.model.load import load_graph

CASES = Path(__file__).parents[1] / "data" / "cases"
HEADER = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1, "my.domain" : 1]>\n'


def parse(text: str, header: str = HEADER) -> ModelProto:
    """A model from the text of its graph."""
    return parser.parse_model(header + text)


def load(
    folder: Path, text: str, *, state: Mapping[str, str] | None = None, feeds: Mapping[str, np.ndarray] | None = None
) -> Graph:
    """The Graph of a text. `state`: output -> input pairs, as training graphs have them."""
    model = parse(text)
    if state:
        entry = model.metadata_props.add()
        entry.key, entry.value = "remat.state", json.dumps(dict(state))
    path = folder / "model.onnx"
    onnx.save(model, path)
    return load_graph(path, feeds=feeds)


def case(name: str, feeds: Mapping[str, np.ndarray] | None = None, dims: Mapping[str, int] | None = None) -> Graph:
    """The Graph of one trial case, by the start of its file name."""
    (path,) = CASES.glob(name + "*.onnx")
    return load_graph(path, dims, feeds)
