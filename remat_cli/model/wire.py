"""Read an ONNX file without reading its weights.

Protobuf has no lazy fields, so parsing a model brings every weight into memory, and files of more than 2 GiB cannot
be parsed at all. This scanner walks the wire format over a memory map, leaves out the raw bytes of large tensors, and
hands the small rest to onnx. A tensor without its bytes becomes external data (onnx.proto, TensorProto.external_data)
in `SELF`, the model file itself, so that every onnx tool takes it for what it is.

Wire format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any, NoReturn

import onnx
from onnx import StringStringEntryProto, TensorProto

from remat_cli.errors import ModelError

# Tensors of more bytes than this stay in the file.
LARGE_BYTES = 8 * 1024
# Location of external data that lies in the model file itself. No file can have this name on any system.
SELF = "<model>/"
# onnx itself parses no deeper.
_MAX_DEPTH = 100

# Field numbers of onnx.proto that lead to tensors.
_CHILDREN: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
    "tensor": {},
}
# float_data, raw_data and double_data: packed, all three are the tensor's little-endian bytes.
_DATA_FIELDS = (4, 9, 10)
_DATA_LOCATION = 14
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_model(path: Path) -> onnx.ModelProto:
    """The model at `path`, its large tensors replaced by references to the file.

    Raises ModelError when the file is missing, empty, damaged or no ONNX model.
    """
    try:
        if path.is_dir():
            raise ModelError(f"{path}: is a folder, not an ONNX file")
        with path.open("rb") as file:
            head = file.read(256)
            _refuse_other_files(path, head)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                slim = _Scanner(path, data).slim("model", 0, len(data), 0)
        model = _parse(slim, path)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not model.HasField("graph") or not model.ir_version:
        raise ModelError(f"{path}: is not an ONNX model: it holds no {'graph' if model.ir_version else 'IR version'}")
    return model


def _parse(slim: bytes, path: Path) -> onnx.ModelProto:
    try:
        model = onnx.ModelProto.FromString(slim)
    except Exception:
        # protobuf's DecodeError, whose module has no type hints; nothing else can go wrong in parsing.
        raise ModelError(f"{path}: is damaged, or not an ONNX file", _HINT) from None
    if not _is_text(model):
        raise ModelError(f"{path}: is damaged: a name in it is not UTF-8 text", _HINT)
    return model


def _is_text(model: onnx.ModelProto) -> bool:
    """Whether all strings are UTF-8. Protobuf gives others as bytes, or fails when they are read."""
    pending: list[Any] = [model]
    while pending:
        try:
            fields = pending.pop().ListFields()
        except UnicodeDecodeError:
            return False
        for field, value in fields:
            if field.type == field.TYPE_MESSAGE:
                pending += [value] if hasattr(value, "ListFields") else value
            elif field.type == field.TYPE_STRING and not _is_str(value):
                return False
    return True


def _is_str(value: Any) -> bool:
    try:
        return isinstance(value, str) or (not isinstance(value, bytes) and all(isinstance(item, str) for item in value))
    except UnicodeDecodeError:
        return False


_HINT = "copy or download the file again; `python -m onnx.checker` or Netron read files that are whole"


def _refuse_other_files(path: Path, head: bytes) -> None:
    if not head:
        raise ModelError(f"{path}: is empty", _HINT)
    if head.startswith(b"version https://git-lfs"):
        raise ModelError(f"{path}: is a Git LFS pointer, not the model itself", "run `git lfs pull` in its repository")
    if head[4:8] == b"ORTM":
        raise ModelError(f"{path}: is in onnxruntime's own ORT format", "give the .onnx file that it was made from")
    if head[:4] == b"PK\x03\x04":
        raise ModelError(
            f"{path}: is a zip archive (a PyTorch checkpoint?), not ONNX", "export the model to ONNX first"
        )


class _Scanner:
    """Walks the wire format of one file. Positions are byte offsets into `data`."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data

    def slim(self, kind: str, start: int, end: int, depth: int) -> bytes:
        """The message of type `kind` in data[start:end], without the bytes of large tensors in it."""
        if depth > _MAX_DEPTH:
            raise ModelError(f"{self.path}: graphs are nested more than {_MAX_DEPTH} deep")
        if kind == "tensor":
            return self._slim_tensor(start, end)
        children = _CHILDREN[kind]
        parts: list[bytes] = []
        copied = position = start
        while position < end:
            field_start = position
            number, wire_type, body, position = self._field(position, end)
            child = children.get(number)
            if child is None or wire_type != _BYTES or position - body <= LARGE_BYTES:
                continue
            message = self.slim(child, body, position, depth + 1)
            parts += [self.data[copied:field_start], _varint(number << 3 | _BYTES), _varint(len(message)), message]
            copied = position
        parts.append(self.data[copied:end])
        return b"".join(parts)

    def _slim_tensor(self, start: int, end: int) -> bytes:
        """A TensorProto; its data are cut out only if they are one large field, as the spec asks of writers."""
        large: list[tuple[int, int, int]] = []
        others = 0
        position = start
        while position < end:
            field_start = position
            number, wire_type, body, position = self._field(position, end)
            if number in _DATA_FIELDS and wire_type == _BYTES and position - body > LARGE_BYTES:
                large.append((field_start, body, position))
            elif number in _DATA_FIELDS or (number == _DATA_LOCATION and self.data[body] != 0):
                others += 1
        if len(large) != 1 or others:
            return self.data[start:end]
        field_start, body, field_end = large[0]
        return b"".join((self.data[start:field_start], self.data[field_end:end], _reference(body, field_end - body)))

    def _field(self, position: int, end: int) -> tuple[int, int, int, int]:
        """Field number, wire type, start of its value and end of the field that begins at `position`."""
        field_start = position
        key, position = self._read_varint(position, end)
        number, wire_type = key >> 3, key & 7
        body = position
        if wire_type == _BYTES:
            length, body = self._read_varint(position, end)
            position = body + length
        elif wire_type == _VARINT:
            _, position = self._read_varint(position, end)
        elif wire_type == _FIXED64:
            position += 8
        elif wire_type == _FIXED32:
            position += 4
        else:
            self._damaged(position)
        if position > end or number == 0:
            self._damaged(body if position > end else field_start, position)
        return number, wire_type, body, position

    def _read_varint(self, position: int, end: int) -> tuple[int, int]:
        value = shift = 0
        data = self.data
        while True:
            if position >= end or shift >= 70:
                self._damaged(position)
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
            shift += 7

    def _damaged(self, position: int, wanted_end: int = 0) -> NoReturn:
        size = len(self.data)
        what = f"unreadable at byte {min(position, size)} of {size}"
        if wanted_end > size:
            what = f"it ends {wanted_end - size} bytes too early, after {size}"
        raise ModelError(f"{self.path}: is damaged, or not an ONNX file: {what}", _HINT)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _reference(offset: int, length: int) -> bytes:
    """The fields of a TensorProto that say where its bytes lie; appended to the others, protobuf merges them."""
    entries = {"location": SELF, "offset": str(offset), "length": str(length)}
    external = [StringStringEntryProto(key=key, value=value) for key, value in entries.items()]
    return bytes(TensorProto(external_data=external, data_location=TensorProto.EXTERNAL).SerializeToString())
