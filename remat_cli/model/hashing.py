"""Fingerprints of a loaded graph: what a plan is made for, and which weights it was made with.

`graph_sha256` is over canonical JSON (sorted keys, no spaces, ASCII) of everything that decides what the nodes compute
and how large tensors are: operators with domain and opset, all attributes and bodies, names, types and shapes of
tensors, and the values of constants of up to 1,024 elements. Not in it: paths, doc strings, node names, the producer,
how values are encoded, and the values of weights, so a fine-tuned checkpoint replays the same plan.
`weights_sha256` is over all other values, wherever they are stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from math import prod
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from remat_cli.errors import ModelError
from remat_cli.model.graph import Graph, TensorInfo, Weight
from remat_cli.model.names import quoted
from remat_cli.model.weights import weight_chunks

# Values of tensors with more elements are weights, not structure.
_MAX_ELEMENTS = 1024


def graph_sha256(graph: Graph) -> str:
    """Hex SHA-256 of the structure of `graph`; equal for every file and machine that holds the same graph."""
    structure = {
        "opsets": dict(graph.opsets),
        "inputs": [_typed(graph.tensors[name]) for name in graph.inputs],
        "outputs": list(graph.outputs),
        "weights": [[w.name, w.elem_type, list(w.shape), w.overridable] for w in _by_name(graph)],
        "constants": [[name, *_tensor(graph.constants[name])] for name in sorted(graph.constants)],
        "nodes": [[_node(n.proto), [_typed(graph.tensors[name]) for name in n.outputs]] for n in graph.nodes],
        "state": dict(graph.state),
    }
    text = json.dumps(structure, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def weights_sha256(graph: Graph) -> str:
    """Hex SHA-256 of all values that `graph_sha256` leaves out, read in chunks. Raises ModelError if a file is gone."""
    digest = hashlib.sha256()
    for weight in _by_name(graph):
        _update_header(digest, weight.name, weight.elem_type, weight.shape)
        for chunk in _chunks(weight):
            digest.update(chunk)
    for name in sorted(graph.constants):
        _update_large(digest, name, graph.constants[name])
    for node in graph.nodes:
        for position, tensor in enumerate(_attribute_tensors(node.proto)):
            _update_large(digest, f"{node.id}:{position}", tensor)
    return digest.hexdigest()


def _by_name(graph: Graph) -> list[Weight]:
    return [graph.weights[name] for name in sorted(graph.weights)]


def _typed(info: TensorInfo) -> list[Any]:
    """Name, type and shape; measured shapes of tensors whose size no file fixes are left out."""
    shape = list(info.shape) if info.shape is not None and info.fixed_size else None
    return [info.name, info.elem_type, shape, info.container]


def _node(node: onnx.NodeProto) -> list[Any]:
    attributes = sorted(node.attribute, key=lambda attribute: str(attribute.name))
    return [
        node.domain, node.op_type, node.overload, list(node.input), list(node.output),
        [[a.name, int(a.type), _attribute(a)] for a in attributes],
    ]  # fmt: skip


def _attribute(attribute: AttributeProto) -> Any:
    """The value in JSON; floats in hexadecimal, since decimal text may round, and bytes as hex."""
    kind = AttributeProto
    if attribute.type == kind.FLOAT:
        return attribute.f.hex()
    if attribute.type == kind.INT:
        return attribute.i
    if attribute.type == kind.STRING:
        return attribute.s.hex()
    if attribute.type == kind.TENSOR:
        return _tensor(attribute.t)
    if attribute.type == kind.GRAPH:
        return _body(attribute.g)
    if attribute.type == kind.FLOATS:
        return [value.hex() for value in attribute.floats]
    if attribute.type == kind.INTS:
        return list(attribute.ints)
    if attribute.type == kind.STRINGS:
        return [value.hex() for value in attribute.strings]
    if attribute.type == kind.TENSORS:
        return [_tensor(tensor) for tensor in attribute.tensors]
    if attribute.type == kind.GRAPHS:
        return [_body(body) for body in attribute.graphs]
    # Types and sparse tensors: rare, small, and of one encoding.
    return attribute.SerializeToString(deterministic=True).hex()


def _body(graph: onnx.GraphProto) -> dict[str, Any]:
    return {
        "inputs": [[value.name, _type_hex(value.type)] for value in graph.input],
        "outputs": [value.name for value in graph.output],
        "constants": [[t.name, *_tensor(t)] for t in sorted(graph.initializer, key=lambda t: str(t.name))],
        "nodes": [_node(node) for node in graph.node],
    }


def _type_hex(kind: onnx.TypeProto) -> str:
    text: str = kind.SerializeToString(deterministic=True).hex()
    return text


def _tensor(tensor: TensorProto) -> list[Any]:
    shape = list(tensor.dims)
    return [tensor.data_type, shape, _value_hex(tensor) if prod(shape) <= _MAX_ELEMENTS else None]


def _value_hex(tensor: TensorProto) -> str | list[str]:
    """The bytes of the value in hex, the same for every field of TensorProto that may hold it."""
    if tensor.data_type == TensorProto.STRING:
        return [value.hex() for value in tensor.string_data]
    return _raw_bytes(tensor).hex()


def _raw_bytes(tensor: TensorProto) -> bytes:
    if tensor.HasField("raw_data"):
        return bytes(tensor.raw_data)
    try:
        return bytes(numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ModelError(f"tensor {quoted(tensor.name)} of an attribute is damaged ({error})") from None


def _attribute_tensors(node: onnx.NodeProto) -> Iterator[TensorProto]:
    """Tensors in attributes and in bodies, however deep, in an order that only the graph decides."""
    for attribute in sorted(node.attribute, key=lambda attribute: str(attribute.name)):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for body in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            yield from sorted(body.initializer, key=lambda tensor: str(tensor.name))
            for inner in body.node:
                yield from _attribute_tensors(inner)


def _update_large(digest: Any, name: str, tensor: TensorProto) -> None:
    if prod(tensor.dims) > _MAX_ELEMENTS:
        _update_header(digest, name, tensor.data_type, tuple(tensor.dims))
        value = _value_hex(tensor) if tensor.data_type == TensorProto.STRING else None
        digest.update(json.dumps(value).encode("ascii") if value is not None else _raw_bytes(tensor))


def _update_header(digest: Any, name: str, elem_type: int, shape: tuple[int, ...]) -> None:
    digest.update(json.dumps([name, elem_type, list(shape)]).encode("ascii"))


def _chunks(weight: Weight) -> Iterator[bytes | memoryview]:
    if weight.inline is not None:
        value = weight.inline
        strings = value.data_type == TensorProto.STRING
        yield json.dumps(_value_hex(value)).encode("ascii") if strings else _raw_bytes(value)
        return
    yield from weight_chunks(weight)
