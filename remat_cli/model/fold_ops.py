"""Values of nodes that move or compare data, or compute exactly: the operators of shape arithmetic.

Every function here gives the bits that any correct kernel gives: integer arithmetic, comparisons, data movement, and
floating-point operations that IEEE 754 rounds exactly. Nothing else is folded, so a replay stays bit-identical to a
plain session, on every device. Sources: the operators' pages at https://onnx.ai/onnx/operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
# Larger results stay ordinary nodes: they would be resident.
MAX_BYTES = 64 * 1024


class _NotFolded(Exception):
    """The node stays: its value is too large, depends on the kernel, or is an error that its kernel shall report."""


class _Node:
    """A node with known inputs. `inputs[k]` is None for a gap."""

    def __init__(self, proto: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> None:
        self.proto = proto
        self.inputs = inputs
        self.opset = opset
        self._attributes = {a.name: a for a in proto.attribute}

    def __getitem__(self, position: int) -> Array:
        value = self.optional(position)
        if value is None:
            raise _NotFolded
        return value

    def optional(self, position: int) -> Array | None:
        return self.inputs[position] if position < len(self.inputs) else None

    def all_inputs(self) -> list[Array]:
        return [self[position] for position in range(len(self.inputs))]

    def attribute(self, name: str, default: Any = None) -> Any:
        found = self._attributes.get(name)
        return default if found is None else helper.get_attribute_value(found)

    def ints(self, name: str, position: int) -> list[int] | None:
        """A list that older opsets have as attribute `name` and newer ones as input `position`."""
        value = self.optional(position)
        if value is not None:
            return [int(v) for v in value.reshape(-1)]
        attribute = self.attribute(name)
        return None if attribute is None else list(attribute)


def evaluate(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> list[Array] | None:
    """The outputs of `node`, or None when it is not folded; bad nodes never are. `inputs[k]` is None for a gap."""
    operator = OPERATORS.get(node.op_type)
    if operator is None:
        return None
    try:
        with np.errstate(all="ignore"):
            result = operator(_Node(node, inputs, opset))
    except (_NotFolded, ValueError, LookupError, TypeError, ArithmeticError, MemoryError):
        return None
    results = result if isinstance(result, list) else [np.asarray(result)]
    return results if all(array.nbytes <= MAX_BYTES for array in results) else None


def _check_size(count: int, dtype: np.dtype[Any]) -> None:
    """Before the value is made: a shape from a hostile file must not fill the memory."""
    if count * dtype.itemsize > MAX_BYTES:
        raise _NotFolded


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise _NotFolded
    return axis % rank


# Data movement


def _cast(n: _Node) -> Array:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(n.attribute("to")))
    value = n[0]
    if dtype.kind not in "biuf":
        raise _NotFolded
    if value.dtype.kind == "f" and dtype.kind in "iu":
        # Values that do not fit are converted as the processor likes.
        limits = np.iinfo(dtype)
        whole = np.trunc(value.astype(np.float64))
        if not np.isfinite(whole).all() or (whole < limits.min).any() or (whole >= float(limits.max) + 1).any():
            raise _NotFolded
    return value.astype(dtype)


def _gather(n: _Node) -> Array:
    axis = _axis(n.attribute("axis", 0), n[0].ndim)
    _check_size(n[1].size * prod(n[0].shape[:axis] + n[0].shape[axis + 1 :]), n[0].dtype)
    return np.take(n[0], n[1], axis)


def _gather_elements(n: _Node) -> Array:
    return np.take_along_axis(n[0], n[1].astype(np.int64), n.attribute("axis", 0))


def _gather_nd(n: _Node) -> Array:
    if n.attribute("batch_dims", 0):
        raise _NotFolded
    depth = n[1].shape[-1]
    _check_size(n[1].size // max(depth, 1) * prod(n[0].shape[depth:]), n[0].dtype)
    return np.asarray(n[0][tuple(np.moveaxis(n[1], -1, 0))])


def _concat(n: _Node) -> Array:
    arrays = n.all_inputs()
    _check_size(sum(array.size for array in arrays), arrays[0].dtype)
    return np.concatenate(arrays, n.attribute("axis", 1 if n.opset < 4 else None))


def _unsqueeze(n: _Node) -> Array:
    axes = n.ints("axes", 1) or []
    rank = n[0].ndim + len(axes)
    return np.expand_dims(n[0], tuple(_axis(axis, rank) for axis in axes))


def _squeeze(n: _Node) -> Array:
    axes = n.ints("axes", 1)
    return np.squeeze(n[0], None if axes is None else tuple(axes))


def _reshape(n: _Node) -> Array:
    shape = n.ints("shape", 1)
    if shape is None:
        raise _NotFolded
    if not n.attribute("allowzero", 0):
        shape = [n[0].shape[k] if dim == 0 else dim for k, dim in enumerate(shape)]
    return n[0].reshape(shape)


def _flatten(n: _Node) -> Array:
    axis = n.attribute("axis", 1)
    axis = axis + n[0].ndim if axis < 0 else axis
    return n[0].reshape(prod(n[0].shape[:axis]), prod(n[0].shape[axis:]))


def _slice(n: _Node) -> Array:
    starts, ends = n.ints("starts", 1), n.ints("ends", 2)
    if starts is None or ends is None:
        raise _NotFolded
    axes = n.ints("axes", 3) or list(range(len(starts)))
    steps = n.ints("steps", 4) or [1] * len(starts)
    index = [slice(None)] * n[0].ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[_axis(axis, n[0].ndim)] = slice(start, end, step)
    return n[0][tuple(index)]


def _split(n: _Node) -> list[Array]:
    axis = _axis(n.attribute("axis", 0), n[0].ndim)
    size, parts = n[0].shape[axis], len(n.proto.output)
    sizes = n.ints("split", 1)
    if sizes is None:
        # With num_outputs (opset 18) the last part is the smaller one.
        part = -(-size // parts)
        sizes = [part] * (parts - 1) + [size - part * (parts - 1)]
    if sum(sizes) != size or len(sizes) != parts or min(sizes) < 0:
        raise _NotFolded
    return list(np.split(n[0], np.cumsum(sizes)[:-1], axis))


def _transpose(n: _Node) -> Array:
    return np.transpose(n[0], n.attribute("perm"))


def _expand(n: _Node) -> Array:
    shape = np.broadcast_shapes(n[0].shape, tuple(n[1].tolist()))
    _check_size(prod(shape), n[0].dtype)
    return np.broadcast_to(n[0], shape)


def _tile(n: _Node) -> Array:
    repeats = n[1].tolist()
    if len(repeats) != n[0].ndim:
        raise _NotFolded
    _check_size(n[0].size * prod(repeats), n[0].dtype)
    return np.tile(n[0], repeats)


def _constant_of_shape(n: _Node) -> Array:
    tensor = n.attribute("value")
    fill = np.zeros(1, np.float32) if tensor is None else numpy_helper.to_array(tensor)
    shape = n[0].tolist()
    if fill.size != 1 or fill.dtype.kind not in "biuf":
        raise _NotFolded
    _check_size(prod(shape), fill.dtype)
    return np.full(shape, fill.reshape(())[()], fill.dtype)


def _range(n: _Node) -> Array:
    if n[0].dtype.kind not in "iu":
        raise _NotFolded
    values = range(int(n[0].item()), int(n[1].item()), int(n[2].item()))
    _check_size(len(values), n[0].dtype)
    return np.array(values, n[0].dtype)


def _non_zero(n: _Node) -> Array:
    return np.array(np.nonzero(n[0]), np.int64)


def _scatter_nd(n: _Node) -> Array:
    if n.attribute("reduction", b"none") != b"none":
        raise _NotFolded
    result: Array = n[0].copy()
    result[tuple(np.moveaxis(n[1], -1, 0))] = n[2]
    return result


# Arithmetic


def _elementwise(function: Callable[..., Any]) -> Callable[[_Node], Array]:
    def apply(n: _Node) -> Array:
        arrays = n.all_inputs()
        # Before opset 7, operators broadcast along an axis of their own.
        if len(arrays) > 1 and n.opset < 7:
            raise _NotFolded
        _check_size(prod(np.broadcast_shapes(*(array.shape for array in arrays))), arrays[0].dtype)
        return np.asarray(function(*arrays))

    return apply


def _arithmetic(function: Callable[..., Any]) -> Callable[[_Node], Array]:
    """As `_elementwise`, for operators whose result has the type of their inputs."""
    apply = _elementwise(function)
    return lambda n: apply(n).astype(n[0].dtype)


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if not b.all():
        raise _NotFolded
    # Integer division of kernels is C's, towards zero; numpy's is towards minus infinity.
    quotient = a // b
    return np.asarray(quotient + ((quotient < 0) & (quotient * b != a)))


def _modulo(n: _Node) -> Array:
    function = np.fmod if n.attribute("fmod", 0) else np.mod
    if n[0].dtype.kind != "f" and not n[1].all():
        raise _NotFolded
    if n[0].dtype.kind == "f" and not n.attribute("fmod", 0):
        raise _NotFolded
    return _arithmetic(function)(n)


def _extremum(function: Callable[[Array, Array], Array]) -> Callable[[_Node], Array]:
    def apply(n: _Node) -> Array:
        if any(array.dtype.kind == "f" and np.isnan(array).any() for array in n.all_inputs()):
            raise _NotFolded
        return _arithmetic(lambda *arrays: arrays[0] if len(arrays) == 1 else _pairwise(function, arrays))(n)

    return apply


def _pairwise(function: Callable[[Array, Array], Array], arrays: Sequence[Array]) -> Array:
    result = arrays[0]
    for array in arrays[1:]:
        result = function(result, array)
    return result


def _reduce(function: Callable[..., Any]) -> Callable[[_Node], Array]:
    """Reductions of integers; the order in which a kernel adds floats shows in the last bits."""

    def apply(n: _Node) -> Array:
        if n[0].dtype.kind not in "iu":
            raise _NotFolded
        axes = n.ints("axes", 1)
        if not axes and n.attribute("noop_with_empty_axes", 0):
            return n[0]
        axis = tuple(axes) if axes else None
        result = function(n[0], axis=axis, keepdims=bool(n.attribute("keepdims", 1)))
        return np.asarray(result).astype(n[0].dtype)

    return apply


def _sqrt(n: _Node) -> Array:
    # Vector units may approximate; scalars go through the exact instruction.
    if n[0].size != 1:
        raise _NotFolded
    return np.asarray(np.sqrt(n[0]))


OPERATORS: dict[str, Callable[[_Node], Any]] = {
    "Abs": _elementwise(np.abs),
    "Add": _arithmetic(np.add),
    "And": _elementwise(np.logical_and),
    "Cast": _cast,
    "Ceil": _elementwise(np.ceil),
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Div": _arithmetic(_divide),
    "Equal": _elementwise(np.equal),
    "Expand": _expand,
    "Flatten": _flatten,
    "Floor": _elementwise(np.floor),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Greater": _elementwise(np.greater),
    "GreaterOrEqual": _elementwise(np.greater_equal),
    "Identity": lambda n: n[0],
    "Less": _elementwise(np.less),
    "LessOrEqual": _elementwise(np.less_equal),
    "Max": _extremum(np.maximum),
    "Min": _extremum(np.minimum),
    "Mod": _modulo,
    "Mul": _arithmetic(np.multiply),
    "Neg": _elementwise(np.negative),
    "NonZero": _non_zero,
    "Not": _elementwise(np.logical_not),
    "Or": _elementwise(np.logical_or),
    "Range": _range,
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "Reshape": _reshape,
    "ScatterND": _scatter_nd,
    "Sign": _elementwise(np.sign),
    "Slice": _slice,
    "Split": _split,
    "Sqrt": _sqrt,
    "Squeeze": _squeeze,
    "Sub": _arithmetic(np.subtract),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _elementwise(np.where),
    "Xor": _elementwise(np.logical_xor),
}
