"""From an ONNX file to a Graph: the one way into remat for models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from remat_cli.model.draft import Draft
from remat_cli.model.graph import Graph, GraphNode, TensorInfo
from remat_cli.model.names import listed, quoted, shape_text
from remat_cli.model.normalise import normalise
from remat_cli.model.operators import in_place_positions, once_reason, view_source
from remat_cli.model.sizing import infer_shapes, size_tensors
from remat_cli.model.state import read_state
from remat_cli.model.subgraphs import captures, reads
from remat_cli.model.wire import read_model
from remat_cli.reporter import Reporter


def load_graph(
    path: Path,
    dims: Mapping[str, int] | None = None,
    feeds: Mapping[str, np.ndarray[Any, Any]] | None = None,
    reporter: Reporter | None = None,
) -> Graph:
    """The normalised Graph of the model at `path`; its weights stay in their files.

    `dims`: values of symbolic dims of the inputs, by the model's name or as ``input:axis``. `feeds`: input values, for
    models whose shapes hang on values. `reporter`: told what loading did (`Graph.notes` has the same lines).
    Raises ModelError, which names the file and the place, for anything that cannot be loaded or sized.
    """
    reporter = reporter or Reporter()
    draft = normalise(read_model(path), path, dims or {}, feeds or {}, infer_shapes)
    tensors = size_tensors(draft.to_model(), draft.weights, feeds, reporter, draft.declared, draft.labels)
    _note_wrong_shapes(draft, tensors)
    graph = Graph(
        path=path,
        ir_version=draft.ir_version,
        opsets=draft.opsets,
        dims=draft.dims,
        nodes=_graph_nodes(draft, tensors),
        tensors=tensors,
        inputs=tuple(draft.inputs),
        outputs=tuple(draft.outputs),
        weights=draft.weights,
        constants=draft.constants,
        state=read_state(draft, tensors),
        notes=tuple(draft.notes),
    )
    for note in graph.notes:
        reporter.note(note)
    return graph


def _graph_nodes(draft: Draft, tensors: Mapping[str, TensorInfo]) -> tuple[GraphNode, ...]:
    used = {*draft.outputs, *(name for node in draft.nodes for name in reads(node))}
    opset = draft.opsets.get("", 1)
    return tuple(
        GraphNode(
            id=node.output[0],
            label=draft.label(node),
            op_type=node.op_type,
            domain=node.domain,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            proto=_named(node),
            captures=captures(node),
            view_of=view_source(node, tensors, draft.constants, used, opset),
            once=once_reason(node, tensors, draft.constants, opset),
            in_place=in_place_positions(node, tensors, opset),
        )
        for node in draft.nodes
    )


def _named(node: onnx.NodeProto) -> onnx.NodeProto:
    """The node under its id: names in files repeat or are missing, and onnxruntime refuses repeated ones."""
    node.name = node.output[0]
    return node


def _note_wrong_shapes(draft: Draft, tensors: Mapping[str, TensorInfo]) -> None:
    """Shapes that the file states and that are wrong are not used, which users should know."""
    wrong = []
    for name, kind in draft.declared.items():
        info = tensors.get(name)
        if info is None or info.shape is None or not kind.tensor_type.HasField("shape"):
            continue
        stated = [d.dim_value if d.HasField("dim_value") else None for d in kind.tensor_type.shape.dim]
        if len(stated) != len(info.shape) or any(s not in (None, d) for s, d in zip(stated, info.shape, strict=True)):
            text = shape_text("?" if dim is None else dim for dim in stated)
            wrong.append(f"{quoted(name)} is {shape_text(info.shape)}, not {text}")
    if wrong:
        draft.notes.append(f"shapes in the file that are wrong: {listed(wrong, 5)}")
