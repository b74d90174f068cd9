"""Between numpy arrays, onnxruntime values and the raw bytes of tensors."""

from __future__ import annotations

import copy
import ctypes
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from remat_cli.errors import InputError
from remat_cli.model.element_types import ELEMENT_BITS, STRING, numpy_dtype, type_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remat_cli.model.graph import TensorInfo

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class RawTensor:
    """A tensor's value where it lies. `data`: its bytes, packed where ONNX packs; for strings, a JSON list."""

    elem_type: int
    shape: tuple[int, ...]
    data: memoryview


# What a graph output can be: a tensor in memory, the strings of a string tensor, the tensors of a sequence, or
# nothing (an empty optional).
Value = RawTensor | Array | list[Array] | None


def is_held(info: TensorInfo) -> bool:
    """Whether the value lives in Python's hands, outside all blocks: its bytes cannot be known before the run."""
    return not info.fixed_size or info.container != "tensor" or info.elem_type == STRING or info.shape is None


def is_object(info: TensorInfo) -> bool:
    """Whether onnxruntime hands the value over as Python objects alone (strings, sequences, optionals)."""
    return info.container != "tensor" or info.elem_type == STRING


def bytes_of(info: TensorInfo, array: Array, role: str = "input") -> memoryview:
    """The raw bytes of `array`, without a copy where it is contiguous.

    Types that numpy lacks come as ml_dtypes arrays, or as the void arrays that ``np.load`` makes of them. Raises
    InputError, naming the tensor, when the type or the shape differs from the graph's.
    """
    array = np.asarray(array)
    wanted = numpy_dtype(info.elem_type)
    if array.dtype.kind == "V" and array.dtype.names is None and array.dtype.itemsize == wanted.itemsize:
        array = array.view(wanted)
    if array.dtype != wanted:
        raise InputError(f"{role} {info.name} is {array.dtype}, the graph wants {type_name(info.elem_type)}")
    if array.shape != info.shape:
        raise InputError(f"{role} {info.name} has shape {list(array.shape)}, the graph wants {list(info.shape or ())}")
    if ELEMENT_BITS[info.elem_type] < 8 or array.size == 0:
        return memoryview(onnx.numpy_helper.from_array(array).raw_data)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def array_of(tensor: RawTensor) -> Array:
    """A new array with the value of `tensor`."""
    if tensor.elem_type == STRING:
        return np.array(json.loads(bytes(tensor.data)), dtype=object).reshape(tensor.shape)
    if ELEMENT_BITS[tensor.elem_type] < 8:
        packed = onnx.TensorProto(data_type=tensor.elem_type, dims=tensor.shape, raw_data=bytes(tensor.data))
        return np.array(onnx.numpy_helper.to_array(packed))
    return np.frombuffer(bytearray(tensor.data), numpy_dtype(tensor.elem_type)).reshape(tensor.shape)


def python_value(value: Value) -> Any:
    """What users get: a new array, a list of arrays for a sequence, None for an empty optional."""
    if isinstance(value, RawTensor):
        return array_of(value)
    return copy.copy(value)


def raw_of_ort_value(value: Any) -> RawTensor:
    """The bytes of a tensor that onnxruntime owns; valid while `value` lives."""
    length = value.tensor_size_in_bytes()
    data = (ctypes.c_ubyte * length).from_address(value.data_ptr()) if length else bytearray()
    return RawTensor(value.element_type(), tuple(value.shape()), memoryview(data).cast("B"))


def parts_of(value: Value) -> Sequence[RawTensor]:
    """Any value as raw tensors: one for a tensor, one an element for a sequence, none for an empty optional."""
    if isinstance(value, RawTensor):
        return [value]
    if value is None:
        return []
    if isinstance(value, list):
        return [part for item in value for part in parts_of(item)]
    value = np.asarray(value)
    if value.dtype.kind in "OUS":
        texts = json.dumps(texts_of(value)).encode()
        return [RawTensor(STRING, value.shape, memoryview(texts))]
    packed = onnx.numpy_helper.from_array(value)
    return [RawTensor(packed.data_type, value.shape, memoryview(packed.raw_data))]


def texts_of(value: Array) -> list[str]:
    """The strings of a string tensor, in order."""
    items = value.reshape(-1).tolist()
    return [item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in items]
