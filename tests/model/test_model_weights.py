"""Reading weights: by chunks, straight into buffers, and as arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.errors import ModelError
from remat_cli.model.graph import Weight
from remat_cli.model.weights import read_weight_into, weight_array, weight_chunks, weight_of, weight_tensor


@pytest.fixture
def on_disk(tmp_path: Path) -> Weight:
    values = np.arange(1000, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(b"head" + values.tobytes())
    return Weight("w", TensorProto.FLOAT, (10, 100), 4000, tmp_path / "w.bin", 4)


def test_into_a_buffer(on_disk: Weight) -> None:
    buffer = np.full((10, 100), -1, np.float32)
    read_weight_into(on_disk, memoryview(buffer))
    assert np.array_equal(buffer.reshape(-1), np.arange(1000))


def test_wrong_buffers(on_disk: Weight) -> None:
    with pytest.raises(ValueError, match="4000 bytes cannot be read into 3999"):
        read_weight_into(on_disk, memoryview(bytearray(3999)))


@pytest.mark.parametrize("chunk", [1, 7, 4000, 9999])
def test_chunks(on_disk: Weight, chunk: int) -> None:
    parts = [bytes(part) for part in weight_chunks(on_disk, chunk)]
    assert b"".join(parts) == np.arange(1000, dtype=np.float32).tobytes()
    assert all(len(part) == chunk for part in parts[:-1])


def test_array_and_tensor(on_disk: Weight) -> None:
    assert np.array_equal(weight_array(on_disk), np.arange(1000, dtype=np.float32).reshape(10, 100))
    assert weight_tensor(on_disk).raw_data == np.arange(1000, dtype=np.float32).tobytes()


def test_cut_and_missing_files(on_disk: Weight) -> None:
    assert on_disk.file is not None
    on_disk.file.write_bytes(bytes(100))
    with pytest.raises(ModelError, match="ends inside weight 'w': it changed since loading"):
        weight_array(on_disk)
    on_disk.file.unlink()
    with pytest.raises(ModelError, match=r"w\.bin: cannot be read"):
        weight_array(on_disk)


@pytest.mark.parametrize(
    ("elem_type", "values"),
    [
        (TensorProto.FLOAT, [0.5, -1, 3]),
        (TensorProto.BFLOAT16, [0.5, -1, 3]),
        (TensorProto.FLOAT16, [0.5, -1, 3]),
        (TensorProto.INT4, [7, -8, 3]),
        (TensorProto.UINT8, [7, 8, 255]),
        (TensorProto.BOOL, [1, 0, 1]),
        (TensorProto.INT64, [2**40, -1, 0]),
        (TensorProto.COMPLEX64, [1 + 2j, 0, -1j]),
        (TensorProto.FLOAT8E4M3FN, [0.5, -1, 2]),
    ],
)
def test_every_encoding_becomes_raw_bytes(elem_type: int, values: list[float], tmp_path: Path) -> None:
    tensor = helper.make_tensor("w", elem_type, [3], values)
    assert not tensor.HasField("raw_data")
    weight = weight_of(tensor, tmp_path / "m.onnx")
    assert weight.inline is not None
    buffer = bytearray(weight.length)
    read_weight_into(weight, memoryview(buffer))
    assert bytes(buffer) == weight.inline.raw_data
    assert numpy_helper.to_array(weight.inline).tolist() == values


def test_strings_stay_strings(tmp_path: Path) -> None:
    weight = weight_of(helper.make_tensor("s", TensorProto.STRING, [2], [b"a", b"bc"]), tmp_path / "m.onnx")
    assert weight.length == 0
    assert weight_array(weight).tolist() == ["a", "bc"]
    with pytest.raises(ValueError, match="cannot be read into"):
        read_weight_into(weight, memoryview(bytearray(0)))


def test_empty_weights(tmp_path: Path) -> None:
    weight = weight_of(helper.make_tensor("e", TensorProto.FLOAT, [0, 3], []), tmp_path / "m.onnx")
    read_weight_into(weight, memoryview(bytearray(0)))
    assert weight_array(weight).shape == (0, 3)
