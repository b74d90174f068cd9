"""Which graph inputs' values decide a tensor's shape: the difference between "not inferred" and "not fixed".

A taint analysis over the top-level nodes. For each tensor it tracks what its values hang on and what its shape hangs
on; `Shape` and `Size` pass on the latter only. Conservative: operators that no table knows hang on all they read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx
from onnx import NodeProto

from remat_cli.model.subgraphs import reads

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
_ALL_INPUTS = frozenset({
    "If", "Loop", "Scan", "SequenceMap", "ImageDecoder", "Optional", "OptionalGetElement", "OptionalHasElement",
})  # fmt: skip
_RANDOM_OPERATORS = frozenset({
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout",
})  # fmt: skip


@dataclass
class ShapeSources:
    """`of(tensor)`: graph inputs (or `RANDOM`) whose values may decide the tensor's shape, in the inputs' order."""

    _names: list[str]
    _shape_bits: dict[str, int]

    def of(self, tensor: str) -> tuple[str, ...]:
        bits = self._shape_bits.get(tensor, 0)
        return tuple(name for k, name in enumerate(self._names) if bits >> k & 1)


def shape_sources(graph: onnx.GraphProto, sources: Collection[str], fixed: Collection[str]) -> ShapeSources:
    """Follow values through sorted nodes. `sources`: inputs that users feed; `fixed`: tensors of inferred shape."""
    names = [*sources, RANDOM]
    values: dict[str, int] = {name: 1 << k for k, name in enumerate(names)}
    shapes: dict[str, int] = {}
    for node in graph.node:
        inputs = reads(node)
        shape_bits = _union(shapes, inputs)
        value_bits = _union(values, inputs) | shape_bits
        if node.domain in ("", "ai.onnx") and node.op_type in ("Shape", "Size"):
            value_bits = shape_bits
            result_bits = 0
        else:
            result_bits = shape_bits | _union(values, _controlling(node, inputs))
        if node.op_type in _RANDOM_OPERATORS:
            value_bits |= values[RANDOM]
        for name in node.output:
            if name:
                values[name] = value_bits
                shapes[name] = 0 if name in fixed else result_bits
    return ShapeSources(names, shapes)


def _controlling(node: NodeProto, inputs: list[str]) -> Iterable[str]:
    if node.domain not in ("", "ai.onnx") or node.op_type in _ALL_INPUTS:
        return inputs
    return [node.input[k] for k in _SHAPE_INPUTS.get(node.op_type, ()) if k < len(node.input)]


def _union(bits: Mapping[str, int], names: Iterable[str]) -> int:
    result = 0
    for name in names:
        result |= bits.get(name, 0)
    return result
