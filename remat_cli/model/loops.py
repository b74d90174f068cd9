"""Shapes of what Loop makes, where they do not hang on values; ONNX inference gives up on all of them.

Two facts, from https://onnx.ai/onnx/operators/onnx__Loop.html:

* a carried value whose shape the body leaves as it is has the shape of its initial value, after any number of turns;
* a loop whose trip count is constant and whose condition cannot become false turns exactly that often, which is the
  first dim of its scan outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

from remat_cli.model.subgraphs import bodies, defined_names, reads

Types = Mapping[str, TypeProto]
Inference = Callable[[ModelProto], dict[str, TypeProto]]


def loop_types(model: ModelProto, types: Types, infer: Inference) -> dict[str, TypeProto]:
    """Types of Loop outputs at the top level of `model` that `types` leaves open. `infer` types a model (a body)."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    found: dict[str, TypeProto] = {}
    for node in model.graph.node:
        if node.op_type != "Loop" or node.domain not in ("", "ai.onnx") or not bodies(node):
            continue
        if all(is_fixed(types.get(name)) for name in node.output if name):
            continue
        found.update(_types_of(node, model, types, constants, infer))
    return found


def is_fixed(kind: TypeProto | None) -> bool:
    """True for a tensor type with element type and all dims known."""
    if kind is None or not kind.tensor_type.elem_type or not kind.tensor_type.HasField("shape"):
        return False
    return all(dim.HasField("dim_value") for dim in kind.tensor_type.shape.dim)


def _types_of(
    node: NodeProto, model: ModelProto, types: Types, constants: Mapping[str, TensorProto], infer: Inference
) -> dict[str, TypeProto]:
    body = bodies(node)[0]
    carried = list(node.input[2:])
    if len(body.input) != 2 + len(carried) or len(body.output) != 1 + len(node.output):
        return {}
    entering = [types.get(name, TypeProto()) for name in carried]
    while True:
        inner = infer(_body_model(node, body, entering, model, types, constants))
        leaving = [inner.get(value.name) for value in body.output[1 : 1 + len(carried)]]
        changed = [k for k, kind in enumerate(entering) if is_fixed(kind) and not _same(kind, leaving[k])]
        if not changed:
            break
        for k in changed:
            entering[k] = _without_shape(entering[k])
    found = {name: kind for name, kind in zip(node.output, entering, strict=False) if name and is_fixed(kind)}
    trips = _trip_count(node, body, constants)
    scans = zip(node.output[len(carried) :], body.output[1 + len(carried) :], strict=True)
    for name, value in scans:
        if name and trips is not None and is_fixed(inner.get(value.name)):
            found[name] = _stacked(inner[value.name], trips)
    return found


def _same(kind: TypeProto, other: TypeProto | None) -> bool:
    return other is not None and is_fixed(other) and _dims(kind) == _dims(other)


def _dims(kind: TypeProto) -> list[int]:
    return [dim.dim_value for dim in kind.tensor_type.shape.dim]


def _without_shape(kind: TypeProto) -> TypeProto:
    return TypeProto(tensor_type=TypeProto.Tensor(elem_type=kind.tensor_type.elem_type))


def _body_model(
    node: NodeProto,
    body: GraphProto,
    entering: list[TypeProto],
    model: ModelProto,
    types: Types,
    constants: Mapping[str, TensorProto],
) -> ModelProto:
    """The body as a model of its own: carried values typed as they enter a turn, outer tensors as inputs."""
    counter = helper.make_tensor_type_proto(TensorProto.INT64, [])
    condition = helper.make_tensor_type_proto(TensorProto.BOOL, [])
    graph = GraphProto(name="body")
    graph.node.extend(body.node)
    graph.initializer.extend(body.initializer)
    for value, kind in zip(body.input, [counter, condition, *entering], strict=True):
        graph.input.append(ValueInfoProto(name=value.name, type=kind))
    inner = defined_names(body)
    for name in dict.fromkeys(name for name in reads(node) if name not in inner):
        if name in constants:
            graph.initializer.append(constants[name])
        elif name in types:
            graph.input.append(ValueInfoProto(name=name, type=types[name]))
    graph.output.extend(ValueInfoProto(name=value.name) for value in body.output)
    return ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=graph)


def _trip_count(node: NodeProto, body: GraphProto, constants: Mapping[str, TensorProto]) -> int | None:
    """How often the loop turns, if no value can change it."""
    trips = constants.get(node.input[0]) if node.input[0] else None
    if trips is None:
        return None
    start = node.input[1]
    if start and not (start in constants and onnx.numpy_helper.to_array(constants[start]).all()):
        return None
    if not _stays_true(body, constants):
        return None
    return max(0, int(onnx.numpy_helper.to_array(trips).reshape(-1)[0]))


def _stays_true(body: GraphProto, constants: Mapping[str, TensorProto]) -> bool:
    """Whether the body hands its condition on as it is, or gives a constant true."""
    makers = {name: inner for inner in body.node for name in inner.output}
    known = dict(constants) | {tensor.name: tensor for tensor in body.initializer}
    name = body.output[0].name
    while name != body.input[1].name:
        if name in known and name not in makers:
            return bool(onnx.numpy_helper.to_array(known[name]).all())
        maker = makers.get(name)
        if maker is None or maker.op_type not in ("Identity", "Cast", "Constant"):
            return False
        if maker.op_type == "Constant":
            return any(a.name == "value" and onnx.numpy_helper.to_array(a.t).all() for a in maker.attribute)
        name = maker.input[0]
    return True


def _stacked(kind: TypeProto, trips: int) -> TypeProto:
    return helper.make_tensor_type_proto(kind.tensor_type.elem_type, [trips, *_dims(kind)])
