"""Weights: where their bytes lie, checked at loading, and how engines read them.

External data follow onnx.proto (TensorProto.external_data) and https://onnx.ai/onnx/repo-docs/ExternalData.html:
`location` is a path inside the model's folder, `offset` and `length` are decimal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import FileIO
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from remat_cli.errors import ModelError
from remat_cli.model.element_types import ELEMENT_BITS, STRING, tensor_bytes, type_name
from remat_cli.model.graph import Weight
from remat_cli.model.names import quoted, shape_text
from remat_cli.model.wire import SELF


def weight_of(tensor: TensorProto, model: Path, overridable: bool = False) -> Weight:
    """The Weight of initialiser `tensor` of the model file `model`; its bytes are checked to be there, not read.

    Raises ModelError that names the tensor and the file.
    """
    shape = tuple(tensor.dims)
    where = f"{model}: initialiser {quoted(tensor.name)}"
    if any(dim < 0 for dim in shape):
        raise ModelError(f"{where} has a negative dim: {shape_text(shape)}")
    if tensor.data_type not in ELEMENT_BITS and tensor.data_type != STRING:
        raise ModelError(f"{where} has an unknown element type ({type_name(tensor.data_type)})")
    size = tensor_bytes(tensor.data_type, shape)
    if tensor.data_location != tensor.EXTERNAL:
        value = _with_raw_data(tensor, where)
        return Weight(tensor.name, tensor.data_type, shape, size, inline=value, overridable=overridable)
    if tensor.data_type == STRING:
        raise ModelError(f"{where} holds strings as external data, which ONNX does not allow")
    try:
        file, offset = _locate(tensor, model, where, size)
    except (OSError, RuntimeError, ValueError) as error:
        # A name that is too long, no permission, links in a circle.
        raise ModelError(f"{where}: its weights file cannot be read ({error})") from None
    # Absolute, so that the weight is found after a change of the working directory.
    return Weight(tensor.name, tensor.data_type, shape, size, file.absolute(), offset, overridable=overridable)


def _with_raw_data(tensor: TensorProto, where: str) -> TensorProto:
    """`tensor` with its value as raw_data (strings excepted), whichever field the file has it in."""
    try:
        array = numpy_helper.to_array(tensor)
        if tensor.data_type == STRING:
            return TensorProto(name=tensor.name, data_type=STRING, dims=tensor.dims, string_data=tensor.string_data)
        value = numpy_helper.from_array(array)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        kind = f"{type_name(tensor.data_type)} tensor of shape {shape_text(tensor.dims)}"
        raise ModelError(f"{where} is damaged: its data do not make a {kind} ({error})") from None
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=value.raw_data)


def _locate(tensor: TensorProto, model: Path, where: str, size: int) -> tuple[Path, int]:
    """File and offset of an external tensor of `size` bytes, all checked."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    file = model if location == SELF else _data_file(location, model, where)
    offset = _number(entries, "offset", 0, where)
    length = _number(entries, "length", size, where)
    if length != size:
        shape = shape_text(tensor.dims)
        raise ModelError(
            f"{where} needs {size} bytes ({type_name(tensor.data_type)}, {shape}), but the file gives {length}"
        )
    actual = file.stat().st_size
    if offset + length > actual:
        raise ModelError(
            f"{where} lies at bytes {offset} to {offset + length} of {file}, which has only {actual} bytes",
            "copy or download the weights file again",
        )
    return file, offset


def _number(entries: dict[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelError(f"{where}: {key} of its external data is not a number: {quoted(text)}")
    return int(text)


def _data_file(location: str, model: Path, where: str) -> Path:
    """The external data file, or ModelError: files outside the model's folder could be anything on the machine."""
    if not location or "\0" in location:
        raise ModelError(f"{where} is external data without a file name")
    if PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor:
        raise ModelError(
            f"{where} names its weights file by an absolute path, {quoted(location)}",
            "ONNX allows only files inside the model's folder: save the model again with a relative location",
        )
    if ".." in PurePosixPath(location).parts or ".." in PureWindowsPath(location).parts:
        raise ModelError(
            f"{where} names a weights file outside the model's folder, {quoted(location)}",
            "move the weights file beside the model and save the model again with that location",
        )
    file = model.parent / location
    if not file.exists():
        raise ModelError(f"{where}: weights file {quoted(location)} not found beside the model", f"put it at {file}")
    if not file.is_file():
        raise ModelError(f"{where}: weights file {file} is not a regular file")
    _check_links(file, model, where)
    return file


def _check_links(file: Path, model: Path, where: str) -> None:
    """A symbolic link may lead into the model's folder, or to where the model itself is linked (hub caches do so)."""
    real = file.resolve()
    allowed = (model.parent.resolve(), model.resolve().parent)
    if not any(folder in real.parents for folder in allowed):
        raise ModelError(
            f"{where}: weights file {file} is a symbolic link to {real}, outside the model's folder",
            "copy the weights file beside the model",
        )


def read_weight_into(weight: Weight, buffer: memoryview) -> None:
    """Fill `buffer` (writable bytes, exactly `weight.length`) straight from the file, without a copy in between.

    Raises ModelError when the file has changed since loading, ValueError on strings or a buffer of another length.
    """
    view = buffer.cast("B")
    if view.nbytes != weight.length or weight.elem_type == STRING:
        raise ValueError(f"weight {weight.name!r} of {weight.length} bytes cannot be read into {view.nbytes} bytes")
    if weight.inline is not None:
        view[:] = weight.inline.raw_data
        return
    with _open(weight) as file:
        _fill(file, weight, view)


def weight_chunks(weight: Weight, chunk_bytes: int = 1 << 20) -> Iterator[memoryview]:
    """The bytes of a weight in its file, a chunk at a time; each chunk is valid until the next one is asked for."""
    buffer = memoryview(bytearray(min(chunk_bytes, weight.length)))
    with _open(weight) as file:
        for start in range(0, weight.length, chunk_bytes):
            part = buffer[: weight.length - start]
            _fill(file, weight, part)
            yield part


def _open(weight: Weight) -> FileIO:
    assert weight.file is not None, "inline weights have no file"
    try:
        file = FileIO(weight.file)
        file.seek(weight.offset)
    except OSError as error:
        raise ModelError(f"{weight.file}: cannot be read ({error.strerror})") from None
    return file


def _fill(file: FileIO, weight: Weight, view: memoryview) -> None:
    done = 0
    while done < view.nbytes:
        try:
            count = file.readinto(view[done:])
        except OSError as error:
            raise ModelError(f"{weight.file}: cannot be read ({error.strerror})") from None
        if not count:
            raise ModelError(f"{weight.file}: ends inside weight {quoted(weight.name)}: it changed since loading")
        done += count


def weight_tensor(weight: Weight) -> TensorProto:
    """The whole value in memory, as a TensorProto with raw_data (strings: string_data)."""
    if weight.inline is not None:
        return weight.inline
    data = bytearray(weight.length)
    read_weight_into(weight, memoryview(data))
    return TensorProto(name=weight.name, data_type=weight.elem_type, dims=weight.shape, raw_data=bytes(data))


def weight_array(weight: Weight) -> np.ndarray[Any, Any]:
    """The whole value in memory as a numpy array (bfloat16 and smaller types as ml_dtypes)."""
    array: np.ndarray[Any, Any] = numpy_helper.to_array(weight_tensor(weight))
    return array
