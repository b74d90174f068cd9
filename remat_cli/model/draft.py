"""The graph while it is being normalised: mutable, ONNX inside, weights already left in their files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import onnx

from remat_cli.model.graph import Weight


@dataclass
class Draft:
    """What the passes of loading hand on to each other; each pass changes it in place.

    `nodes`: the top level. `inputs`: graph inputs that must be fed, and their types. `declared`: types that the file
    states for other tensors (value_info, outputs); they may be wrong, and serve comparison only.
    `labels`: first output of a node -> how messages name it. `names`: every tensor name in use, inner ones included.
    """

    path: Path
    ir_version: int
    opsets: dict[str, int]
    nodes: list[onnx.NodeProto]
    inputs: dict[str, onnx.TypeProto]
    outputs: list[str]
    weights: dict[str, Weight]
    constants: dict[str, onnx.TensorProto]
    declared: dict[str, onnx.TypeProto]
    metadata: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    dims: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def label(self, node: onnx.NodeProto) -> str:
        """How messages name `node`."""
        return self.labels[node.output[0]]

    def new_name(self, wanted: str) -> str:
        """`wanted`, or `wanted_2`, `wanted_3`, ... if tensors of these names exist; the name is then in use."""
        name, count = wanted, 1
        while name in self.names:
            count += 1
            name = f"{wanted}_{count}"
        self.names.add(name)
        return name

    def to_model(self) -> onnx.ModelProto:
        """The graph as a model without weights: these are graph inputs, constants are initialisers.

        No shapes but those of inputs and constants: whatever else the file says may be wrong.
        """
        from onnx import GraphProto, ModelProto, OperatorSetIdProto, ValueInfoProto, helper

        known = {w.name: helper.make_tensor_type_proto(w.elem_type, w.shape) for w in self.weights.values()}
        known |= {t.name: helper.make_tensor_type_proto(t.data_type, t.dims) for t in self.constants.values()}
        known |= self.inputs
        inputs = [ValueInfoProto(name=name, type=kind) for name, kind in self.inputs.items()]
        inputs += [ValueInfoProto(name=name, type=known[name]) for name in self.weights]
        graph = GraphProto(
            name="graph",
            node=self.nodes,
            initializer=self.constants.values(),
            input=inputs,
            output=[ValueInfoProto(name=name, type=known.get(name)) for name in self.outputs],
        )
        opsets = [OperatorSetIdProto(domain=domain, version=version) for domain, version in self.opsets.items()]
        return ModelProto(ir_version=self.ir_version, opset_import=opsets, graph=graph)
