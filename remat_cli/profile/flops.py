"""Arithmetic and memory traffic of operators, from shapes alone.

Counts follow the operators' ONNX pages; a multiply-add is two operations. Special functions (exp, tanh, ...) count
as `SPECIAL` operations an element. An operator that no table knows counts as traffic without arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Literal

from remat_cli.model.element_types import type_name
from remat_cli.profile.op_view import OpView

Family = Literal["matmul", "conv", "other"]
SPECIAL = 16
DIVIDE = 4
LONE_FILTER = 4


@dataclass(frozen=True)
class Work:
    """What one run of a node does. `rate`: the entry of a device's peak rates that the arithmetic runs at."""

    flops: int
    moved_bytes: int
    family: Family
    rate: str


def work_of(op: OpView) -> Work:
    """Operations, bytes read and written, and the kind of arithmetic of one node."""
    family: Family = "other"
    if op.op_type in _PRODUCTS:
        family, flops = "matmul", _PRODUCTS[op.op_type](op)
    elif op.op_type in _CONVOLUTIONS:
        flops = _CONVOLUTIONS[op.op_type](op)
        # With one filter a group there is no matrix product to speak of, and no library gets near the matrix rate.
        family, flops = ("other", flops * LONE_FILTER) if _has_lone_filters(op) else ("conv", flops)
    elif op.op_type in _COUNTED:
        flops = _COUNTED[op.op_type](op)
    else:
        flops = _PER_OUTPUT.get(op.op_type, 0) * op.out_count() + _PER_INPUT.get(op.op_type, 0) * op.in_count(0)
    return Work(flops, _moved_bytes(op), family, _rate(op, family))


def _rate(op: OpView, family: Family) -> str:
    """Which peak applies. Vector arithmetic on narrow types is no faster than fp32 outside matrix units."""
    kinds = {"double": "fp64", "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8"}
    for info in (op.input(0), op.input(1), op.output()):
        name = type_name(info.elem_type) if info is not None else ""
        if name in ("float", *kinds):
            kind = kinds.get(name, "fp32")
            return kind if family != "other" or kind == "fp64" else "fp32"
    return "fp32"


def _has_lone_filters(op: OpView) -> bool:
    """Depthwise convolutions and their gradients: one filter (of Conv) or one output channel a group."""
    group, weight = op.int_attribute("group", 1), op.in_shape(_weight_position(op))
    if group == 1 or not weight:
        return False
    return weight[1] == 1 if op.op_type == "ConvTranspose" else weight[0] == group


def _weight_position(op: OpView) -> int:
    return 3 if op.op_type == "QLinearConv" else 1


def _conv(op: OpView) -> int:
    """Conv: each output element is a product over Cin/group x kernel (W: M x Cin/group x k1 x ...)."""
    position = _weight_position(op)
    return 2 * op.out_count() * prod(op.in_shape(position)[1:])


def _conv_transpose(op: OpView) -> int:
    """ConvTranspose: each input element spreads over Cout/group x kernel (W: Cin x Cout/group x k1 x ...)."""
    return 2 * op.in_count(0) * prod(op.in_shape(1)[1:])


def _matmul(op: OpView) -> int:
    return 2 * op.out_count() * (op.in_shape(0) or (0,))[-1]


def _gemm(op: OpView) -> int:
    shape = op.in_shape(0)
    if len(shape) != 2:
        return 0
    inner = shape[0] if op.int_attribute("transA", 0) else shape[1]
    return 2 * op.out_count() * inner + op.out_count()


def _einsum(op: OpView) -> int:
    """The product of all index sizes, twice; one operation an element for a single operand."""
    equation = op.text_attribute("equation", "").replace(" ", "").replace("...", "")
    terms, _, result = equation.partition("->")
    if not result:
        result = "".join(label for label in set(terms) - {","} if terms.count(label) == 1)
    sizes: dict[str, int] = {}
    for position, term in enumerate(terms.split(",")):
        for label, size in zip(reversed(term), reversed(op.in_shape(position)), strict=False):
            sizes[label] = max(size, sizes.get(label, 1))
    # What the output has beside its named indices are the dims of the ellipsis.
    unnamed = max(op.out_count() // max(prod(sizes.get(label, 1) for label in result), 1), 1)
    return (2 if "," in terms else 1) * prod(sizes.values()) * unnamed


def _recurrent(gates: int) -> Callable[[OpView], int]:
    """LSTM, GRU, RNN: X is seq x batch x input, W dirs x gates*hidden x input, R dirs x gates*hidden x hidden."""

    def count(op: OpView) -> int:
        steps = prod(op.in_shape(0)[:2])
        hidden = (op.in_shape(2) or (0,))[-1]
        directions = (op.in_shape(1) or (0,))[0]
        width = (op.in_shape(1) or (0,))[-1] + hidden
        return steps * directions * gates * hidden * (2 * width + SPECIAL)

    return count


def _attention(op: OpView) -> int:
    """Attention: scores and weighted sum, 4 x queries x keys x head width a head, and a softmax.

    Q is batch x heads x queries x width, or batch x queries x (heads*width); K likewise.
    """
    query, key = op.in_shape(0), op.in_shape(1)
    if len(query) not in (3, 4) or len(key) not in (3, 4):
        return 0
    keys = key[-2] + ((op.in_shape(4) or (0, 0, 0, 0))[-2] if op.input(4) else 0)
    heads = query[1] if len(query) == 4 else op.int_attribute("q_num_heads", op.int_attribute("num_heads", 1))
    scores = query[0] * query[-2] * keys
    width = query[1] * query[3] if len(query) == 4 else query[2]
    return scores * (4 * width + (SPECIAL + DIVIDE + 2) * heads)


def _pool(op: OpView) -> int:
    """Pools: one step a window element; places of the maxima cost a branch each."""
    return op.out_count() * prod(op.ints_attribute("kernel_shape")) * (SPECIAL if op.output(1) else 2)


def _sort(op: OpView) -> int:
    shape = op.in_shape(0)
    return op.in_count(0) * max(max(shape, default=1), 2).bit_length()


def _window_norm(op: OpView) -> int:
    return op.in_count(0) * (2 * op.int_attribute("size", 1) + SPECIAL)


def _variadic(op: OpView) -> int:
    return op.out_count() * max(len(op.node.inputs) - 1, 1)


def _scatter(op: OpView) -> int:
    return op.in_count(2) if op.text_attribute("reduction", "none") != "none" else 0


_PRODUCTS: dict[str, Callable[[OpView], int]] = {
    "MatMul": _matmul, "MatMulInteger": _matmul, "QLinearMatMul": _matmul, "FusedMatMul": _matmul,
    "Gemm": _gemm, "FusedGemm": _gemm, "Einsum": _einsum,
    "LSTM": _recurrent(4), "GRU": _recurrent(3), "RNN": _recurrent(1),
    "Attention": _attention, "MultiHeadAttention": _attention,
}  # fmt: skip
_CONVOLUTIONS: dict[str, Callable[[OpView], int]] = {
    "Conv": _conv, "ConvInteger": _conv, "QLinearConv": _conv, "FusedConv": _conv,
    "ConvTranspose": _conv_transpose,
}  # fmt: skip
_COUNTED: dict[str, Callable[[OpView], int]] = {
    "AveragePool": _pool, "MaxPool": _pool, "LpPool": _pool,
    "TopK": _sort, "Unique": _sort, "LRN": _window_norm,
    "Sum": _variadic, "Max": _variadic, "Min": _variadic, "Mean": _variadic,
    "ScatterElements": _scatter, "ScatterND": _scatter,
}  # fmt: skip
# Operations an element of the first output.
_PER_OUTPUT: dict[str, int] = {
    **dict.fromkeys((
        "Add", "Sub", "Mul", "Abs", "Neg", "Sign", "Relu", "LeakyRelu", "PRelu", "ThresholdedRelu", "Clip", "Floor",
        "Ceil", "Round", "Not", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual",
        "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "IsNaN", "IsInf", "HardSigmoid",
        "HardSwish", "Shrink", "QuantizeLinear", "DequantizeLinear", "CumSum", "Where", "Dropout",
    ), 1),
    **dict.fromkeys(("Div", "Mod", "Reciprocal", "Sqrt"), DIVIDE),
    **dict.fromkeys((
        "Exp", "Log", "Pow", "Sigmoid", "Tanh", "Erf", "Gelu", "FastGelu", "QuickGelu", "BiasGelu", "Elu", "Selu",
        "Celu", "Softplus", "Softsign", "Mish", "Swish", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh",
        "Asinh", "Acosh", "Atanh", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
        "Bernoulli",
    ), SPECIAL),
    "Softmax": SPECIAL + DIVIDE + 2, "LogSoftmax": SPECIAL + 4, "Hardmax": 2,
    "Resize": 8, "Upsample": 2, "GridSample": 12, "RotaryEmbedding": 6,
}  # fmt: skip
# Operations an element of the first input.
_PER_INPUT: dict[str, int] = {
    **dict.fromkeys((
        "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ArgMax", "ArgMin",
        "GlobalAveragePool", "GlobalMaxPool",
    ), 1),
    **dict.fromkeys(("ReduceL2", "ReduceSumSquare", "GlobalLpPool"), 2),
    **dict.fromkeys(("ReduceLogSum",), 1),
    "ReduceLogSumExp": SPECIAL + 2,
    **dict.fromkeys((
        "BatchNormalization", "LayerNormalization", "SkipLayerNormalization", "InstanceNormalization",
        "GroupNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "MeanVarianceNormalization",
        "LpNormalization",
    ), 8),
    "SoftmaxCrossEntropyLoss": SPECIAL + 6, "NegativeLogLikelihoodLoss": 2,
}  # fmt: skip


def _moved_bytes(op: OpView) -> int:
    """Bytes read and written. Operators that pick or place parts touch those parts alone."""
    written = op.written_bytes()
    if op.op_type in ("Shape", "Size"):
        return written
    if op.op_type in ("Gather", "GatherElements", "GatherND", "Slice", "Split", "Compress"):
        return 2 * written + sum(op.in_bytes(k) for k in range(1, len(op.node.inputs)))
    if op.op_type in ("ScatterElements", "ScatterND", "Scatter"):
        # The data are copied to the output, then the updated places are read and written once more.
        return op.read_bytes() + written + op.in_bytes(2)
    return op.read_bytes() + written
