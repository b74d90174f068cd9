"""Which graph inputs' values decide a tensor's shape: the difference between "not inferred" and "not fixed".

A taint analysis. For each tensor it tracks what its values hang on and what its shape hangs on; `Shape` and `Size` pass
on the latter only. Bodies of If, Loop and Scan are followed. Conservative: operators that no table knows hang on all
that they read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import GraphProto, NodeProto

from remat_cli.model.subgraphs import bodies, reads

RANDOM = "random numbers"

# Positions of the inputs whose values decide the shape of an output; source: the operators' ONNX pages.
_SHAPE_INPUTS: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,), "BlackmanWindow": (0,), "CenterCropPad": (1,), "Col2Im": (1, 2), "Compress": (1,),
    "ConstantOfShape": (0,), "DFT": (1, 2), "Expand": (1,), "HammingWindow": (0,), "HannWindow": (0,),
    "MaxUnpool": (2,), "MelWeightMatrix": (0, 1), "NonMaxSuppression": (0, 1, 2, 3, 4), "NonZero": (0,),
    "OneHot": (1,), "Pad": (1, 3), "Range": (0, 1, 2), "Reshape": (1,), "Resize": (1, 2, 3), "STFT": (1, 3),
    "SequenceAt": (1,), "SequenceErase": (1,), "SequenceInsert": (2,), "Slice": (1, 2, 3, 4), "Split": (1,),
    "SplitToSequence": (1,), "Squeeze": (1,), "StringSplit": (0,), "Tile": (1, 2), "TopK": (1,), "Unique": (0,),
    "Unsqueeze": (1,), "Upsample": (1,),
    "ReduceL1": (1,), "ReduceL2": (1,), "ReduceLogSum": (1,), "ReduceLogSumExp": (1,), "ReduceMax": (1,),
    "ReduceMean": (1,), "ReduceMin": (1,), "ReduceProd": (1,), "ReduceSum": (1,), "ReduceSumSquare": (1,),
}  # fmt: skip
_ALL_INPUTS = frozenset({"ImageDecoder", "SequenceMap", "If", "Loop", "Scan"})
_RANDOM_OPERATORS = frozenset({
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout",
})  # fmt: skip
# Their values follow from the input's shape alone, random numbers aside.
_READ_SHAPE_ONLY = frozenset({"Shape", "Size", "EyeLike", "RandomNormalLike", "RandomUniformLike"})
_ONNX_DOMAINS = ("", "ai.onnx")


@dataclass
class _Taint:
    """Bit sets of sources, by tensor. `values`: what a value hangs on; `shapes`: what a shape hangs on."""

    values: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, int] = field(default_factory=dict)

    def value_of(self, names: Iterable[str]) -> int:
        return _union(self.values, names)

    def shape_of(self, names: Iterable[str]) -> int:
        return _union(self.shapes, names)

    def body(self) -> _Taint:
        """A scope inside this one."""
        return _Taint(dict(self.values), dict(self.shapes))


@dataclass(frozen=True)
class ShapeSources:
    """`of(tensor)`: graph inputs (or `RANDOM`) whose values may decide the tensor's shape, in the inputs' order."""

    names: Sequence[str]
    shape_bits: Mapping[str, int]

    def of(self, tensor: str) -> tuple[str, ...]:
        bits = self.shape_bits.get(tensor, 0)
        return tuple(name for k, name in enumerate(self.names) if bits >> k & 1)


def shape_sources(graph: GraphProto, sources: Collection[str], fixed: Collection[str]) -> ShapeSources:
    """Follow values through sorted nodes. `sources`: inputs that users feed; `fixed`: tensors of inferred shape."""
    # The bit of RANDOM is the lowest, so that bodies need not be told where it is.
    names = [RANDOM, *sources]
    taint = _Taint({name: 1 << k for k, name in enumerate(names)})
    _follow(graph.node, taint, fixed)
    return ShapeSources(names, taint.shapes)


def _follow(nodes: Iterable[NodeProto], taint: _Taint, fixed: Collection[str]) -> None:
    for node in nodes:
        for name, (value, shape) in zip(node.output, _outputs_of(node, taint), strict=False):
            if name:
                taint.values[name] = value
                taint.shapes[name] = 0 if name in fixed else shape


def _outputs_of(node: NodeProto, taint: _Taint) -> list[tuple[int, int]]:
    """For each output, what its value and its shape hang on."""
    inner = bodies(node)
    if node.domain in _ONNX_DOMAINS and node.op_type == "If" and inner:
        return _if_outputs(node, inner, taint)
    if node.domain in _ONNX_DOMAINS and node.op_type in ("Loop", "Scan") and inner:
        found = _repeated_outputs(node, inner[0], taint)
        if found is not None:
            return found
    return [_plain_output(node, taint)] * len(node.output)


def _plain_output(node: NodeProto, taint: _Taint) -> tuple[int, int]:
    inputs = reads(node)
    shape = taint.shape_of(inputs)
    value = shape if _is_one_of(node, _READ_SHAPE_ONLY) else taint.value_of(inputs) | shape
    if node.op_type in ("Shape", "Size"):
        return value, 0
    if not _is_one_of(node, _READ_SHAPE_ONLY):
        shape |= taint.value_of(_controlling(node, inputs))
    if _is_one_of(node, _RANDOM_OPERATORS):
        value |= 1
    return value, shape


def _if_outputs(node: NodeProto, branches: Sequence[GraphProto], taint: _Taint) -> list[tuple[int, int]]:
    condition = taint.value_of(node.input)
    value, shape = [condition] * len(node.output), [condition] * len(node.output)
    for branch in branches:
        scope = taint.body()
        _follow(branch.node, scope, ())
        for k, output in enumerate(branch.output[: len(node.output)]):
            value[k] |= scope.value_of([output.name])
            shape[k] |= scope.shape_of([output.name])
    return list(zip(value, shape, strict=True))


def _repeated_outputs(node: NodeProto, body: GraphProto, taint: _Taint) -> list[tuple[int, int]] | None:
    """Loop and Scan: what a turn hands to the next one adds up. None for forms that are not understood."""
    is_loop = node.op_type == "Loop"
    entering = ["", "", *node.input[2:]] if is_loop else list(node.input)
    leaving = list(body.output)[1 if is_loop else 0 :]
    if len(body.input) != len(entering) or len(leaving) != len(node.output):
        return None
    first = 2 if is_loop else 0
    # How often the body runs: a loop's count and condition; for a scan the shape of what it scans.
    turns = taint.value_of(node.input[:2]) if is_loop else taint.shape_of(node.input)
    value, shape = [taint.value_of([name]) for name in entering], [taint.shape_of([name]) for name in entering]
    while True:
        scope = taint.body()
        for k, name in enumerate(argument.name for argument in body.input):
            scope.values[name], scope.shapes[name] = value[k] | turns, shape[k]
        _follow(body.node, scope, ())
        before = (turns, list(value), list(shape))
        if is_loop:
            turns |= scope.value_of([body.output[0].name])
        for k, output in enumerate(leaving[: len(entering) - first]):
            value[first + k] |= scope.value_of([output.name])
            shape[first + k] |= scope.shape_of([output.name])
        if before == (turns, value, shape):
            break
    return [(scope.value_of([output.name]) | turns, scope.shape_of([output.name]) | turns) for output in leaving]


def _controlling(node: NodeProto, inputs: Sequence[str]) -> Iterable[str]:
    if node.domain not in _ONNX_DOMAINS or node.op_type in _ALL_INPUTS:
        return inputs
    return [node.input[k] for k in _SHAPE_INPUTS.get(node.op_type, ()) if k < len(node.input)]


def _is_one_of(node: NodeProto, operators: Collection[str]) -> bool:
    return node.domain in _ONNX_DOMAINS and node.op_type in operators


def _union(bits: Mapping[str, int], names: Iterable[str]) -> int:
    result = 0
    for name in names:
        result |= bits.get(name, 0)
    return result
