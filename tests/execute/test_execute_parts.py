"""Blocks, measured peaks, values and output files, each by itself."""

from __future__ import annotations

import ctypes
import math
import sys
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from execute_plans import load, save, value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

from remat_cli.errors import DeviceError, InputError
from remat_cli.execute.blocks import HostBlock
from remat_cli.execute.feed_file import read_into, write_feeds
from remat_cli.execute.measure import PeakMeter
from remat_cli.execute.outputs import digest, keep, largest_difference, write_npz
from remat_cli.execute.residents import Residents
from remat_cli.execute.values import RawTensor, Value, array_of, bytes_of, parts_of
from remat_cli.model.graph import Graph, TensorInfo

MIB = 2**20


def test_a_block_is_zeroed_page_aligned_and_at_its_address() -> None:
    block = HostBlock(10_000, "a test")
    assert block.address % 4096 == 0
    view = block.view(100, 50)
    assert bytes(view) == bytes(50)
    view[3] = 77
    assert ctypes.c_ubyte.from_address(block.address + 103).value == 77
    view.release()
    block.close()


def test_a_block_gives_no_view_outside_itself() -> None:
    block = HostBlock(10_000, "a test")
    for offset, length in ((-1, 5), (9_999, 2), (10_001, 0), (5, -1)):
        with pytest.raises(ValueError, match="outside a block of 10000"):
            block.view(offset, length)
    assert block.view(10_000, 0).nbytes == 0


def test_an_empty_block_has_an_address() -> None:
    assert HostBlock(0, "a test").address != 0


def test_a_block_that_is_too_large_says_how_much() -> None:
    with pytest.raises(DeviceError, match=r"out of memory: the system refused 1152921504606846976 bytes .* for a test"):
        HostBlock(2**60, "a test")


def touched(size: int) -> HostBlock:
    """A block whose pages are all there."""
    block = HostBlock(size, "a test")
    for page in range(0, size, 4096):
        block.view(page, 1)[0] = 1
    return block


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/clear_refs")
def test_the_peak_is_what_was_touched_and_nothing_before() -> None:
    before = touched(64 * MIB)
    meter = PeakMeter()
    assert meter.measured_by == "VmHWM"
    untouched = HostBlock(256 * MIB, "a test")
    touched(48 * MIB).close()
    assert 47 * MIB <= meter.sample() <= 50 * MIB
    meter.reset()
    assert 47 * MIB <= meter.sample() <= 50 * MIB
    untouched.close()
    before.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/clear_refs")
def test_work_between_reset_and_sample_alone_counts() -> None:
    meter = PeakMeter()
    touched(48 * MIB).close()
    meter.reset()
    assert meter.sample() <= 2 * MIB


def info(elem_type: int, shape: tuple[int, ...], size: int) -> TensorInfo:
    return TensorInfo("t", elem_type, shape, size)


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_, np.complex64]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    )
)
def test_arrays_survive_the_way_through_bytes(array: np.ndarray) -> None:
    elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    data = bytes_of(info(elem_type, array.shape, array.nbytes), array)
    assert data.nbytes == array.nbytes
    back = array_of(RawTensor(elem_type, array.shape, data))
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert back.flags.writeable
    assert digest(RawTensor(elem_type, array.shape, data)) == digest(array)


def test_types_that_numpy_lacks() -> None:
    array = np.array([1.5, -2, 3], ml_dtypes.bfloat16)
    data = bytes_of(info(TensorProto.BFLOAT16, (3,), 6), array.view("V2"))
    assert np.array_equal(array_of(RawTensor(TensorProto.BFLOAT16, (3,), data)), array)
    nibbles = np.array([1, -2, 7], ml_dtypes.int4)
    data = bytes_of(info(TensorProto.INT4, (3,), 2), nibbles)
    assert bytes(data) == bytes([0xE1, 0x07])
    assert np.array_equal(array_of(RawTensor(TensorProto.INT4, (3,), data)), nibbles)


def test_bytes_of_the_wrong_type_or_shape_are_refused() -> None:
    with pytest.raises(InputError, match="input t is float64, the graph wants float"):
        bytes_of(info(TensorProto.FLOAT, (2,), 8), np.zeros(2))
    with pytest.raises(InputError, match=r"output t has shape \[3\], the graph wants \[2\]"):
        bytes_of(info(TensorProto.FLOAT, (2,), 8), np.zeros(3, np.float32), "output")


def test_digests_tell_types_shapes_and_elements_apart() -> None:
    values: list[Value] = [
        np.zeros(4, np.float32), np.zeros(4, np.int32), np.zeros((2, 2), np.float32), -np.zeros(4, np.float32),
        np.array(["a", "b"], dtype=object), np.array(["ab", ""], dtype=object),
        [np.zeros(4, np.float32)] * 2, [np.zeros(8, np.float32)], None, [],
    ]  # fmt: skip
    digests = [digest(v) for v in values]
    assert len(set(digests[:8])) == 8
    # An empty sequence and an empty optional hold the same nothing.
    assert digests[8] == digests[9]
    assert digest(np.array(["a", "b"])) == digests[4]


def one_output(tmp_path: Path, elem_type: int = TensorProto.FLOAT) -> Graph:
    nodes = [helper.make_node("Identity", ["x"], ["h"]), helper.make_node("Identity", ["h"], ["y"])]
    return load(save(tmp_path / "m.onnx", nodes, [value("x", [4], elem_type)], [value("y", [4], elem_type)]))


@pytest.mark.parametrize(
    ("a", "b", "difference"),
    [
        ([1, 2, 3], [1, 2, 3], 0.0),
        ([1, 2, 3], [1, 2.5, 3], 0.5),
        ([math.nan, math.inf, -math.inf], [math.nan, math.inf, -math.inf], 0.0),
        ([math.nan, 0, 0], [0, 0, 0], math.inf),
        ([math.inf, 0, 0], [-math.inf, 0, 0], math.inf),
        ([math.inf, 0, 0], [1, 0, 0], math.inf),
        ([1, 2, 3], [1, 2], math.inf),
        ([], [], 0.0),
    ],
)
def test_the_largest_difference(tmp_path: Path, a: list[float], b: list[float], difference: float) -> None:
    graph = one_output(tmp_path)
    kept = []
    for name, items in (("a", a), ("b", b)):
        (tmp_path / name).mkdir()
        kept.append(keep(graph, [("y", np.array(items, np.float32))], tmp_path / name, "k"))
    assert largest_difference(kept[0], tmp_path / "a", kept[1], tmp_path / "b") == difference


def test_differences_of_outputs_that_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat_cli.execute.outputs._CHUNK_BYTES", 64)
    graph = one_output(tmp_path)
    a = np.arange(100, dtype=np.float32)
    b = a.copy()
    b[97] += 3
    kept = [keep(graph, [("y", v)], tmp_path, f"k{k}") for k, v in enumerate((a, b))]
    assert largest_difference(kept[0], tmp_path, kept[1], tmp_path) == 3


def test_the_archive_is_readable_deterministic_and_guarded(tmp_path: Path) -> None:
    graph = one_output(tmp_path)
    values: list[tuple[str, object]] = [
        ("y", np.arange(4, dtype=np.float32)),
        ("h", np.array(["a", "bc"], dtype=object)),
        ("x", np.array([1.5], ml_dtypes.bfloat16)),
    ]
    kept = keep(graph, values, tmp_path, "k")  # type: ignore[arg-type]
    target = tmp_path / "out.npz"
    write_npz(kept, tmp_path, target, force=False)
    first = target.read_bytes()
    write_npz(kept, tmp_path, target, force=False)
    assert target.read_bytes() == first
    with np.load(target, allow_pickle=False) as archive:
        assert np.array_equal(archive["y"], np.arange(4, dtype=np.float32))
        assert archive["h"].tolist() == ["a", "bc"]
        assert archive["x"].view(ml_dtypes.bfloat16).tolist() == [1.5]
    np.savez(target, y=np.zeros(1))
    with pytest.raises(InputError, match="not written by remat"):
        write_npz(kept, tmp_path, target, force=False)
    write_npz(kept, tmp_path, target, force=True)
    assert target.read_bytes() == first
    assert zipfile.ZipFile(target).testzip() is None


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hnp.arrays(np.float32, (4,)))
def test_feeds_reach_their_place_through_the_file(tmp_path: Path, x: np.ndarray) -> None:
    graph = one_output(tmp_path)
    rows = write_feeds(graph, {"x": x}, tmp_path / "feeds")
    residents = Residents(graph, ["x"], 64)
    residents.read(tmp_path / "feeds", rows)
    assert bytes(residents.view("x")) == x.tobytes()
    residents.close()


def test_string_feeds_and_files_that_end_early(tmp_path: Path) -> None:
    graph = one_output(tmp_path, TensorProto.STRING)
    texts = np.array(["", "é", "\n", '"'], dtype=object)
    rows = write_feeds(graph, {"x": texts}, tmp_path / "feeds")
    residents = Residents(graph, ["x"], 64)
    residents.read(tmp_path / "feeds", rows)
    assert residents.held["x"].tolist() == texts.tolist()
    with (tmp_path / "feeds").open("rb", buffering=0) as stream, pytest.raises(Exception, match="ends too early"):
        read_into(stream, memoryview(bytearray(10_000)))


def test_parts_of_values() -> None:
    assert parts_of(None) == []
    assert [part.shape for part in parts_of([np.zeros(2), np.zeros((1, 3))])] == [(2,), (1, 3)]
