"""Does a device have a kernel for every node? Asked once, before anything is measured, planned or run."""

from __future__ import annotations

from remat_cli.errors import DeviceError, ModelError
from remat_cli.model.element_types import type_name
from remat_cli.model.graph import Graph, GraphNode
from remat_cli.model.ort_messages import RuntimeMessage, parse_message
from remat_cli.model.whole_model import whole_model
from remat_cli.ort_session import Device, make_session


def check_kernels(graph: Graph, device: Device) -> None:
    """Load the whole model, without weights, on `device`.

    ModelError names the node, operator, opset and element type that has no kernel there; DeviceError when the device
    itself is missing.
    """
    try:
        make_session(whole_model(graph).SerializeToString(), device)
    except (ModelError, DeviceError):
        raise
    except Exception as error:
        # onnxruntime raises classes of its own that share no public base but Exception.
        raise kernel_error(graph, device, parse_message(str(error))) from None


def kernel_error(graph: Graph, device: Device, message: RuntimeMessage) -> ModelError:
    """The error of a message of onnxruntime about the whole model, told in the words of the user's file."""
    node = _node_of(graph, message)
    if node is None:
        return ModelError(f"onnxruntime cannot load the model on {device.name}: {message.reason}")
    domain = node.domain or "ai.onnx"
    opset = graph.opsets.get(node.domain, graph.opsets.get("ai.onnx"))
    operator = node.op_type if domain in ("", "ai.onnx") else f"{domain}:{node.op_type}"
    types = ", ".join(dict.fromkeys(type_name(graph.tensors[name].elem_type) for name in node.reads))
    reason = "no kernel" if message.kind == "no kernel" else message.reason
    return ModelError(
        f"{node.label}: {reason} for {operator} (opset {opset}) on {types or 'no inputs'} -> "
        f"{type_name(graph.tensors[node.outputs[0]].elem_type)} in onnxruntime on {device.name}",
        "convert the model to operators and types that onnxruntime runs there",
    )


def _node_of(graph: Graph, message: RuntimeMessage) -> GraphNode | None:
    if message.node:
        return next((node for node in graph.nodes if node.id == message.node), None)
    if message.op_type:
        wanted = (message.op_type, message.domain)
        return next((node for node in graph.nodes if (node.op_type, node.domain) == wanted), None)
    if message.type_text:
        for node in graph.nodes:
            names = (*node.outputs, *node.reads)
            if any(type_name(graph.tensors[name].elem_type) == message.type_text for name in names):
                return node
    return None
