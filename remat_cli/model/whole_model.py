"""The whole normalised graph as one model, weights as inputs: the plain session that everything is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import GraphProto, ModelProto

from remat_cli.model.graph import Graph
from remat_cli.model.node_model import value_info


def whole_model(graph: Graph, outputs: Sequence[str] | None = None) -> ModelProto:
    """All nodes, views included, under the file's tensor names; a node's name is its id, which is unique.

    Weights are graph inputs, so they are never serialised; small constants are initialisers. `outputs`: tensors to
    expose instead of the graph's outputs.
    """
    body = GraphProto(name="graph")
    for name in (*graph.inputs, *graph.weights):
        body.input.append(value_info(name, graph.tensors[name]))
    for name, constant in graph.constants.items():
        tensor = body.initializer.add()
        tensor.CopyFrom(constant)
        tensor.name = name
    for node in graph.nodes:
        copy = body.node.add()
        copy.CopyFrom(node.proto)
        copy.name = node.id
        # The loader may have left out trailing gaps.
        del copy.input[:], copy.output[:]
        copy.input.extend(node.inputs)
        copy.output.extend(node.outputs)
    for name in graph.outputs if outputs is None else outputs:
        body.output.append(value_info(name, graph.tensors[name]))
    model = ModelProto(ir_version=graph.ir_version, graph=body)
    for domain in sorted(graph.opsets):
        model.opset_import.add(domain=domain, version=graph.opsets[domain])
    return model
