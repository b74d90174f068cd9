"""Shape inference of a single node, for passes that learn shapes as they go."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import onnx
import onnx.shape_inference
from onnx import TensorProto, helper

from remat_cli.model.subgraphs import bodies

# Tensor -> element type and shape, None where a dim is unknown.
Shapes = dict[str, "tuple[int, tuple[int, ...] | None]"]


def infer_node(
    node: onnx.NodeProto, shapes: Shapes, constants: Mapping[str, TensorProto], opsets: Mapping[str, int]
) -> Shapes:
    """Types of those outputs of `node` whose shape its inputs' shapes and constant values tell; empty if none.

    Nodes with bodies, of domains that onnx does not know, or with an input of unknown shape give nothing.
    """
    schema = _schema(node.op_type, node.domain, opsets.get(node.domain, 1))
    known = {name: shapes[name] for name in node.input if name in shapes}
    if schema is None or bodies(node) or any(name and known.get(name, (0, None))[1] is None for name in node.input):
        return {}
    types = {name: helper.make_tensor_type_proto(elem_type, shape) for name, (elem_type, shape) in known.items()}
    data = {name: constants[name] for name in node.input if name in constants}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    try:
        found = onnx.shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=imports)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError, TypeError, IndexError):
        return {}
    return {name: described for name, kind in found.items() if (described := _describe(kind)) is not None}


@cache
def _schema(op_type: str, domain: str, version: int) -> Any:
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def _describe(kind: onnx.TypeProto) -> tuple[int, tuple[int, ...]] | None:
    if not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims):
        return None
    return kind.tensor_type.elem_type, tuple(dim.dim_value for dim in dims)
