"""Element types of ONNX tensors: names, widths, numpy equivalents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

STRING = TensorProto.STRING
_BITS = {
    "FLOAT": 32, "DOUBLE": 64, "FLOAT16": 16, "BFLOAT16": 16, "COMPLEX64": 64, "COMPLEX128": 128, "BOOL": 8,
    "INT8": 8, "UINT8": 8, "INT16": 16, "UINT16": 16, "INT32": 32, "UINT32": 32, "INT64": 64, "UINT64": 64,
    "FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8, "FLOAT8E8M0": 8,
    "FLOAT6E2M3": 6, "FLOAT6E3M2": 6, "FLOAT4E2M1": 4, "INT4": 4, "UINT4": 4, "INT2": 2, "UINT2": 2,
}  # fmt: skip
# Older onnx releases lack the newest types.
ELEMENT_BITS: dict[int, int] = {
    value: _BITS[name] for name, value in TensorProto.DataType.items() if name in _BITS
}  # fmt: skip


def type_name(elem_type: int) -> str:
    """``float32``-like names for messages: ``float``, ``bfloat16``, ``int4``, as the ONNX specification has them."""
    if elem_type in TensorProto.DataType.values():
        return str(TensorProto.DataType.Name(elem_type)).lower()
    return f"type {elem_type}"


def tensor_bytes(elem_type: int, shape: Sequence[int]) -> int:
    """Bytes of a dense tensor; types narrower than a byte are packed without padding between elements.

    0 for strings, whose bytes no shape tells. KeyError for an unknown element type.
    """
    if elem_type == STRING:
        return 0
    count = 1
    for dim in shape:
        count *= dim
    return -(-count * ELEMENT_BITS[elem_type] // 8)


def numpy_dtype(elem_type: int) -> np.dtype[Any]:
    """The numpy (or ml_dtypes) type of one element; object for strings. KeyError for an unknown type."""
    dtype: np.dtype[Any] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    return dtype
