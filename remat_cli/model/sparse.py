"""Sparse tensors in files become dense: onnxruntime does the same when it loads them."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from remat_cli.errors import ModelError
from remat_cli.model.names import quoted

# A sparse tensor of more elements than this, once dense, is refused: its value would be held in memory.
_MAX_ELEMENTS = 2**25


def dense(sparse: onnx.SparseTensorProto, path: Path) -> TensorProto:
    """The value in full; indices are linear, or one coordinate a row (onnx.proto, SparseTensorProto)."""
    where = f"{path}: sparse tensor {quoted(sparse.values.name)}"
    shape = tuple(sparse.dims)
    if any(dim < 0 for dim in shape) or prod(shape) > _MAX_ELEMENTS:
        raise ModelError(f"{where} is too large to be made dense", "save the model with a dense tensor")
    if TensorProto.EXTERNAL in (sparse.values.data_location, sparse.indices.data_location):
        raise ModelError(f"{where} is external data", "save the model with a dense tensor")
    try:
        values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
        array = np.zeros(shape, values.dtype)
        if indices.ndim == 2:
            array[tuple(indices.T)] = values
        else:
            array.reshape(-1)[indices] = values
    except (ValueError, IndexError, TypeError) as error:
        raise ModelError(f"{where} is damaged ({error})") from None
    return numpy_helper.from_array(array, sparse.values.name)
