"""Running a part of a graph node by node on real values, for nodes that synthetic values cannot measure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np

from remat_cli.model.element_types import STRING, numpy_dtype
from remat_cli.model.graph import Graph, GraphNode
from remat_cli.model.node_model import node_bindings, node_model
from remat_cli.model.weights import weight_array
from remat_cli.ort_session import Device, make_session


def ancestors(graph: Graph, targets: Collection[str]) -> list[GraphNode]:
    """The nodes with the ids `targets` and all that they depend on, in order."""
    wanted: set[str] = set()
    found: list[GraphNode] = []
    for node in reversed(graph.nodes):
        if node.id in targets or any(name in wanted for name in node.outputs):
            found.append(node)
            wanted.update(node.reads)
    return found[::-1]


class Interpreter:
    """Runs nodes in order and keeps each value until its last use.

    `open_session`: node model -> session. `feeds`: a value for every graph input.
    """

    def __init__(self, graph: Graph, feeds: Mapping[str, np.ndarray], open_session: Callable[[bytes], Any]) -> None:
        self._graph = graph
        self._feeds = feeds
        self._open_session = open_session
        self._sessions: dict[bytes, Any] = {}
        self._values: dict[str, Any] = {}
        self._last_use: dict[str, str] = {}

    def ordered(self, nodes: list[GraphNode]) -> list[GraphNode]:
        """Announce the nodes to be run, in order and closed under dependence; values live until their last use."""
        self._last_use = {name: node.id for node in nodes for name in node.reads}
        return nodes

    def run(self, node: GraphNode, visit: Callable[[GraphNode, Callable[[], None]], None]) -> None:
        """Run the next node. `visit` gets it and a function that runs it on its real values, which it calls once or
        more often. Lets onnxruntime's errors pass."""
        model = node_model(self._graph, node)
        if model not in self._sessions:
            self._sessions[model] = self._open_session(model)
        session = self._sessions[model]
        binding = self._bound(node, session)
        visit(node, partial(session.run_with_iobinding, binding))
        for name, value in zip(node.outputs, binding.get_outputs(), strict=True):
            if name in self._last_use:
                self._values[name] = value
        for name in node.reads:
            if self._last_use[name] == node.id:
                self._values.pop(name, None)

    def _bound(self, node: GraphNode, session: Any) -> Any:
        bindings = node_bindings(self._graph, node)
        binding = session.io_binding()
        for name, tensor in bindings.inputs:
            binding.bind_ortvalue_input(name, self._value(tensor))
        for name, _ in bindings.outputs:
            binding.bind_output(name, "cpu")
        return binding

    def _value(self, tensor: str) -> Any:
        if tensor not in self._values:
            array = self._feeds[tensor] if tensor in self._feeds else weight_array(self._graph.weights[tensor])
            self._values[tensor] = _ort_value(array, self._graph.tensors[tensor].elem_type)
        return self._values[tensor]


def _ort_value(array: np.ndarray, elem_type: int) -> Any:
    import onnxruntime as ort

    if elem_type == STRING:
        return _string_value(array)
    if array.dtype.type.__module__ == "numpy" and array.dtype == numpy_dtype(elem_type):
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
    same_width = {1: np.uint8, 2: np.uint16}[array.dtype.itemsize]
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array).view(same_width), elem_type)


def _string_value(array: np.ndarray) -> Any:
    """onnxruntime makes no OrtValue of strings from Python: a model that holds them gives one."""
    from onnx import TensorProto, helper

    text = helper.make_tensor("text", TensorProto.STRING, array.shape, [str(item) for item in array.reshape(-1)])
    output = helper.make_tensor_value_info("value", TensorProto.STRING, array.shape)
    graph = helper.make_graph([helper.make_node("Identity", ["text"], ["value"])], "strings", [], [output], [text])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    return make_session(model.SerializeToString(), Device()).run_with_ort_values(["value"], {})[0]
