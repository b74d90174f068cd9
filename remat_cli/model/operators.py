"""What remat must know of single operators: views, operators that may run only once, operators that run in place.

Everything here is conservative. An operator that no table knows is no view, never runs in place, and is recomputed
only when its domain is one whose operators are known to be functions of their inputs.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import onnx
from onnx import TensorProto

from remat_cli.model.element_types import ELEMENT_BITS
from remat_cli.model.graph import TensorInfo

# Operators whose first output has the bytes of their first input, in the same order.
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast", "Dropout"})

_ONNX_DOMAINS = frozenset({"", "ai.onnx"})
# Domains whose operators are functions of their inputs, but for those named below. The last three hold what
# onnxruntime's own graph optimisers write.
_KNOWN_DOMAINS = _ONNX_DOMAINS | {
    "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training",
    "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc",
}  # fmt: skip
_RANDOM = frozenset({
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli",
    "BiasDropout", "BitmaskDropout", "BitmaskBiasDropout", "Sampling",
})  # fmt: skip
# com.microsoft operators that write into an input, talk to the outside or call foreign code.
_STATEFUL = frozenset({
    "InPlaceAccumulator", "InPlaceAccumulatorV2", "GradientAccumulator", "ZeroGradient", "AdamOptimizer",
    "AdamWOptimizer", "LambOptimizer", "SGDOptimizer", "SGDOptimizerV2", "MixedPrecisionScale", "PythonOp",
    "PythonOpGrad", "ATen", "ATenOp", "TritonOp", "TorchEmbedding", "Send", "Recv", "RecordEvent", "WaitEvent",
    "YieldOp", "Group", "PassThrough", "NcclAllReduce", "NcclAllGather", "NcclReduceScatter", "AllReduce", "AllGather",
    "AllToAll", "AdasumAllReduce", "ScaledTensorBroadcast", "SnpeNode", "EPContext", "DynamicQuantizeLSTMState",
})  # fmt: skip
# Attention operators that can write new keys into the past buffer when input and output share it.
_SHARES_PAST = frozenset({
    "GroupQueryAttention", "SparseAttention", "PagedAttention", "DecoderMaskedMultiHeadAttention",
    "DecoderMaskedSelfAttention",
})  # fmt: skip

# Bit-equal with the output on the input's own pointer; tests/model/test_in_place.py checks each of them.
# Not here although they look elementwise: Gelu (some releases read the input again after writing), sums and extrema of
# more than two inputs (they accumulate in the output).
_UNARY = frozenset({
    "Abs", "Neg", "Sign", "Exp", "Log", "Sqrt", "Reciprocal", "Erf", "Relu", "LeakyRelu", "ThresholdedRelu", "Elu",
    "Selu", "Celu", "Sigmoid", "HardSigmoid", "HardSwish", "Mish", "Tanh", "Softplus", "Softsign", "Clip", "Floor",
    "Ceil", "Round", "Not", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh",
    "Cast",
})  # fmt: skip
_BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Sum", "Min", "Max"})
# Whole rows at a time. LogSoftmax of double is wrong in place, so doubles are left out of all.
_ROWWISE = frozenset({"Softmax", "LogSoftmax", "LayerNormalization", "BatchNormalization"})
_ROWWISE_TYPES = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
IN_PLACE_OPERATORS = _UNARY | _BINARY | _ROWWISE | {"Where"}


def view_source(
    node: onnx.NodeProto,
    tensors: Mapping[str, TensorInfo],
    constants: Mapping[str, TensorProto],
    used: Container[str],
    opset: int,
) -> str | None:
    """The input whose bytes the node's output shares, or None when the node has to run.

    `constants`: the embedded constants. `used`: tensors that some node or the graph's outputs read. `opset`: version
    of the default domain. Source: the operators' ONNX pages.
    """
    if node.domain not in _ONNX_DOMAINS or node.op_type not in _VIEWS or not node.input or not node.input[0]:
        return None
    source, result = tensors[node.input[0]], tensors[node.output[0]]
    if not _is_plain(source) or not _is_plain(result):
        return None
    if source.elem_type != result.elem_type or source.size_bytes != result.size_bytes:
        return None
    if node.op_type == "Dropout":
        mask_is_used = any(name and name in used for name in node.output[1:])
        return None if mask_is_used or not _dropout_is_off(node, constants, opset) else str(node.input[0])
    if any(name and name not in constants for name in node.input[1:]):
        return None
    return str(node.input[0])


def _dropout_is_identity(node: onnx.NodeProto, opset: int) -> bool:
    """Dropout without a training_mode input (opset 12) or, before opset 7, with is_test set."""
    if opset < 7:
        return _int_attribute(node, "is_test", 0) != 0
    return len(node.input) < 3 or not node.input[2]


def once_reason(
    node: onnx.NodeProto,
    tensors: Mapping[str, TensorInfo],
    constants: Mapping[str, TensorProto],
    opset: int,
) -> str:
    """Why the node may run only once ("random", "stateful operator", "custom operator", "unknown size"), or "".

    Seeded random operators count too: a second run of one session draws the next numbers of its stream. Control flow
    counts when a body holds such a node, however deep. Training BatchNormalization is a function of its inputs.
    """
    if reason := _behaviour(node, constants, opset):
        return reason
    if any(name and not tensors[name].fixed_size for name in node.output):
        return "unknown size"
    return ""


def _behaviour(node: onnx.NodeProto, constants: Mapping[str, TensorProto], opset: int) -> str:
    pending = [node]
    while pending:
        current = pending.pop()
        if reason := _own_behaviour(current, constants, opset):
            return reason if current is node else f"{reason} inside {node.op_type}"
        for attribute in current.attribute:
            bodies = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else list(attribute.graphs)
            for body in bodies:
                pending.extend(body.node)
    return ""


def _own_behaviour(node: onnx.NodeProto, constants: Mapping[str, TensorProto], opset: int) -> str:
    if node.domain not in _KNOWN_DOMAINS:
        return "custom operator"
    if node.op_type in _RANDOM:
        return "random"
    if node.op_type == "Dropout" and node.domain in _ONNX_DOMAINS and not _dropout_is_off(node, constants, opset):
        return "random"
    if node.domain not in _ONNX_DOMAINS and (node.op_type in _STATEFUL or _writes_past(node)):
        return "stateful operator"
    return ""


def _dropout_is_off(node: onnx.NodeProto, constants: Mapping[str, TensorProto], opset: int) -> bool:
    if _dropout_is_identity(node, opset):
        return True
    if opset < 7 or node.input[2] not in constants:
        return False
    return not onnx.numpy_helper.to_array(constants[node.input[2]]).any()


def _writes_past(node: onnx.NodeProto) -> bool:
    return node.op_type in _SHARES_PAST or _int_attribute(node, "past_present_share_buffer", 0) != 0


def in_place_positions(node: onnx.NodeProto, tensors: Mapping[str, TensorInfo], opset: int) -> tuple[int, ...]:
    """Positions of inputs whose storage the first output may take over, best first.

    Only operators of a whitelist that was verified bit for bit, on inputs with the shape and element width of the
    first output. An input that the node reads twice is never offered.
    """
    if node.domain not in _ONNX_DOMAINS or not node.output:
        return ()
    result = tensors[node.output[0]]
    if not _is_plain(result):
        return ()
    candidates = _candidates(node, result.elem_type, opset)
    names = list(node.input)
    return tuple(
        position
        for position in candidates
        if position < len(names)
        and names[position]
        and names.count(names[position]) == 1
        and _same_storage(tensors[names[position]], result)
    )


def _candidates(node: onnx.NodeProto, elem_type: int, opset: int) -> tuple[int, ...]:
    if node.op_type in _UNARY:
        return (0,)
    if node.op_type in _BINARY:
        return (0, 1) if len(node.input) == 2 else ()
    if node.op_type == "Where":
        return (1, 2)
    if node.op_type in _ROWWISE and elem_type in _ROWWISE_TYPES:
        if node.op_type == "BatchNormalization" and not _is_inference_batch_norm(node, opset):
            return ()
        return (0,)
    return ()


def _is_inference_batch_norm(node: onnx.NodeProto, opset: int) -> bool:
    """Training is asked for by training_mode (opset 14), by further outputs (7 to 13), or by is_test = 0 (below)."""
    if opset >= 14:
        return _int_attribute(node, "training_mode", 0) == 0
    if opset >= 7:
        return not any(node.output[1:])
    return _int_attribute(node, "is_test", 0) != 0


def _is_plain(info: TensorInfo) -> bool:
    return info.fixed_size and info.container == "tensor" and info.shape is not None


def _same_storage(info: TensorInfo, result: TensorInfo) -> bool:
    width = ELEMENT_BITS.get(info.elem_type)
    return _is_plain(info) and info.shape == result.shape and width == ELEMENT_BITS.get(result.elem_type)


def _int_attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)
