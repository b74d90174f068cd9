"""Estimated scratch memory of kernels, from shapes: on the safe side of what onnxruntime's CPU kernels take.

Where a rule is not obvious it is that of onnxruntime's kernel, checked against measurements of training graphs
(`tests/profile/test_workspace.py`). Operators that no rule knows count as much as they read and write.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Literal

from remat_cli.model.element_types import type_name
from remat_cli.profile.op_view import OpView
from remat_cli.units import align

# Scratch is stated in these steps, measured or estimated.
GRANULARITY_BYTES = 16 * 1024
_INT64 = 8
_FLOAT = 4
# MLAS expands large convolutions a block at a time: this much for each thread.
_CONV_BLOCK_BYTES = 64 * 1024
_MOST_THREADS = 16
# Small vectors of indices and strides that many kernels make on their way.
_SMALL_BYTES = 64 * 1024


def estimate_workspace(op: OpView, kind: Literal["cpu", "cuda"] = "cpu") -> int:
    """Bytes of scratch that one run of the node may take on a device of this kind."""
    if op.op_type in _RULES:
        estimate = _RULES[op.op_type](op, kind)
    elif op.op_type in _NONE:
        estimate = 0
    elif op.op_type in _LITTLE:
        estimate = min(_SMALL_BYTES, op.read_bytes() + op.written_bytes())
    else:
        estimate = op.read_bytes() + op.written_bytes()
    return align(estimate, GRANULARITY_BYTES)


Rule = Callable[[OpView, str], int]


def _conv(op: OpView, kind: str) -> int:
    """One image's columns (Cin/group x kernel x output places) where there are more filters than places, else
    blocks of them; none for 1x1 kernels that read the image as it is. cuDNN may take the columns of an image."""
    weight, spatial = op.in_shape(1), prod(op.out_shape()[2:])
    columns = prod(weight[1:]) * spatial * _element_bytes(op)
    image = op.input(0)
    if kind == "cpu" and (image is None or type_name(image.elem_type) not in ("float", "double")):
        return columns + op.read_bytes() + op.written_bytes()
    if prod(weight[2:]) == 1 and not any(op.ints_attribute("pads")) and set(op.ints_attribute("strides")) <= {1}:
        return 0
    filters = weight[0] // max(op.int_attribute("group", 1), 1) if weight else 0
    if kind == "cuda" or filters > spatial:
        return columns
    return min(columns, _CONV_BLOCK_BYTES * _MOST_THREADS)


def _conv_transpose(op: OpView, kind: str) -> int:
    """One image's columns before they are added up: Cout/group x kernel x input places."""
    return prod(op.in_shape(1)[1:]) * prod(op.in_shape(0)[2:]) * _element_bytes(op) + GRANULARITY_BYTES


def _cross_entropy(op: OpView, kind: str) -> int:
    """The transposed input, the logarithms of the probabilities, and per label a weight and a loss."""
    return 3 * op.in_bytes(0) + 2 * op.in_count(1) * _FLOAT


def _where(op: OpView, kind: str) -> int:
    """Both branches, each masked, before they are added."""
    return 2 * op.written_bytes()


def _scatter(op: OpView, kind: str) -> int:
    """The indices, checked and counted from the front."""
    return op.in_count(1) * _INT64 + _SMALL_BYTES


def _one_hot(op: OpView, kind: str) -> int:
    return op.in_count(0) * _INT64 + _SMALL_BYTES


def _softmax(op: OpView, kind: str) -> int:
    """The transposed input and output, unless the axis is the last one."""
    rank = len(op.in_shape(0))
    default = -1 if op.graph.opsets.get("", 1) >= 13 else 1
    return 0 if op.axis(default, rank) == rank - 1 else 2 * op.in_bytes(0)


def _window_norm(op: OpView, kind: str) -> int:
    """The squares, padded by the window, and their sums."""
    return 2 * op.in_bytes(0) + _SMALL_BYTES


def _variadic(op: OpView, kind: str) -> int:
    """A partial result beside the output from three inputs on."""
    return op.written_bytes() if len(op.node.inputs) > 2 else 0


def _random_floats(op: OpView, kind: str) -> int:
    return op.out_count() * _FLOAT


def _recurrent(op: OpView, kind: str) -> int:
    """Gate inputs of all steps and directions, and what else is kept of a step."""
    rows = prod(op.in_shape(0)[:2])
    gates = prod(op.in_shape(1)[:2])
    return 2 * rows * gates * _FLOAT + op.read_bytes() + op.written_bytes()


def _attention(op: OpView, kind: str) -> int:
    """The scores of all heads, twice, and the operands transposed."""
    query, key = op.in_shape(0), op.in_shape(1)
    if len(query) not in (3, 4) or len(key) not in (3, 4):
        return 4 * (op.read_bytes() + op.written_bytes())
    heads = query[1] if len(query) == 4 else op.int_attribute("q_num_heads", op.int_attribute("num_heads", 1))
    keys = key[-2] + (op.in_shape(4)[-2] if len(op.in_shape(4)) == 4 else 0)
    return 2 * query[0] * heads * query[-2] * keys * _FLOAT + op.read_bytes() + op.written_bytes()


def _half_as_float(op: OpView, kind: str) -> int:
    """Kernels without half precision convert operands to float first."""
    info = op.input(0)
    narrow = info is not None and type_name(info.elem_type) in ("float16", "bfloat16")
    return 2 * (op.read_bytes() + op.written_bytes()) if narrow else 0


def _element_bytes(op: OpView) -> int:
    info = op.input(0)
    return {"double": 8}.get(type_name(info.elem_type), _FLOAT) if info else _FLOAT


_RULES: dict[str, Rule] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose,
    "SoftmaxCrossEntropyLoss": _cross_entropy, "NegativeLogLikelihoodLoss": _cross_entropy,
    "Where": _where, "ScatterElements": _scatter, "ScatterND": _scatter, "Scatter": _scatter, "OneHot": _one_hot,
    "Softmax": _softmax, "LogSoftmax": _softmax, "Hardmax": _softmax,
    "LRN": _window_norm, "Sum": _variadic, "Max": _variadic, "Min": _variadic, "Mean": _variadic,
    "Dropout": _random_floats, "LSTM": _recurrent, "GRU": _recurrent, "RNN": _recurrent,
    "Attention": _attention, "MultiHeadAttention": _attention,
    "LayerNormalization": _half_as_float, "MatMul": _half_as_float, "Gemm": _half_as_float,
}  # fmt: skip
# Kernels that go from inputs to outputs directly.
_NONE = frozenset({
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Abs", "Neg", "Sign", "Relu", "LeakyRelu", "PRelu", "ThresholdedRelu",
    "Clip", "Floor", "Ceil", "Round", "Not", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater",
    "GreaterOrEqual", "Exp", "Log", "Sqrt", "Reciprocal", "Sigmoid", "Tanh", "Erf", "Gelu", "Elu", "Selu", "Softplus",
    "Softsign", "HardSigmoid", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh",
    "IsNaN", "IsInf", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "QuantizeLinear",
    "DequantizeLinear", "Cast", "CastLike", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Shape", "Size",
    "Range", "Constant", "ConstantOfShape", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
# As those, but for a few small vectors: offsets, strides, partial results.
_LITTLE = frozenset({
    "Transpose", "Concat", "Split", "Slice", "Pad", "Tile", "Expand", "Gather", "GatherElements", "GatherND",
    "DepthToSpace", "SpaceToDepth", "ReverseSequence", "Trilu", "EyeLike",
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSum", "ReduceLogSumExp", "ArgMax", "ArgMin", "CumSum", "MaxPool", "AveragePool", "LpPool",
    "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "MaxUnpool", "BatchNormalization", "InstanceNormalization",
})  # fmt: skip
