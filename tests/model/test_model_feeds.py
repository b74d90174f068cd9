"""Seeded feeds, and feeds from .npz files, hostile ones included."""

from __future__ import annotations

import io
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from model_texts import case, load
from onnx import TensorProto

from remat_cli.errors import InputError, ModelError
from remat_cli.model.feeds import check_feeds, load_feeds, merged_feeds, read_feeds, seeded_feeds, seeded_value
from remat_cli.model.graph import Graph


def graph_of(folder: Path, inputs: str) -> Graph:
    """A graph that takes `inputs` and returns them."""
    names = [part.split()[-1] for part in inputs.split(";")]
    outputs = ", ".join(f"{part.split()[0]} {part.split()[1]}_out" for part in inputs.split(";"))
    body = "\n".join(f"{name}_out = Identity({name})" for name in names)
    return load(folder, f"g ({inputs.replace(';', ',')}) => ({outputs}) {{ {body} }}")


def save(folder: Path, **arrays: np.ndarray) -> Path:
    path = folder / "feeds.npz"
    np.savez(path, **arrays)
    return path


def refusal(path: Path, graph: Graph) -> InputError:
    with pytest.raises(InputError) as caught:
        load_feeds(path, graph)
    return caught.value


# Seeded --------------------------------------------------------------------------------------------------------------


def test_seeded_values_by_type(tmp_path: Path) -> None:
    graph = graph_of(
        tmp_path,
        "float[200] x; int64[200] i; uint8[200] u; bool[200] b; string[2] s; bfloat16[3] h; double d; float16[2,0] e",
    )
    feeds = seeded_feeds(graph)
    assert {name: (value.dtype, value.shape) for name, value in feeds.items()} == {
        "x": (np.float32, (200,)),
        "i": (np.int64, (200,)),
        "u": (np.uint8, (200,)),
        "b": (np.bool_, (200,)),
        "s": (np.dtype(object), (2,)),
        "h": (np.dtype(ml_dtypes.bfloat16), (3,)),
        "d": (np.float64, ()),
        "e": (np.float16, (2, 0)),
    }
    assert set(feeds["i"].tolist()) == {0, 1}
    assert 0.8 < feeds["x"].std() < 1.2
    assert all(isinstance(text, str) for text in feeds["s"])


def test_a_seeded_value_hangs_on_name_and_seed_alone(tmp_path: Path) -> None:
    small = seeded_feeds(graph_of(tmp_path, "float[8] x"))
    large = seeded_feeds(graph_of(tmp_path, "float[8] w; float[8] x"))
    np.testing.assert_array_equal(small["x"], large["x"])
    assert not np.array_equal(large["w"], large["x"])
    assert not np.array_equal(seeded_value("x", TensorProto.FLOAT, (8,), seed=1), small["x"])


@pytest.mark.parametrize("elem_type", [name for name in TensorProto.DataType.values() if name])
def test_every_element_type_can_be_seeded(elem_type: int) -> None:
    assert seeded_value("x", elem_type, (2, 3)).shape == (2, 3)


def test_weights_are_not_fed() -> None:
    assert set(seeded_feeds(case("007"))) == {"x"}


def test_given_feeds_replace_seeded_ones(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, "float[2] x; float[2] w")
    ones = np.ones(2, np.float32)
    merged = merged_feeds(graph, {"w": ones})
    np.testing.assert_array_equal(merged["w"], ones)
    np.testing.assert_array_equal(merged["x"], seeded_feeds(graph)["x"])
    assert set(merged_feeds(graph)) == {"x", "w"}


def test_overridable_weights_may_be_given() -> None:
    graph = case("007")
    shape = graph.tensors["W"].shape
    assert shape is not None
    assert set(merged_feeds(graph, check_feeds({"W": np.ones(shape, np.float32)}, graph))) == {"x", "W"}


# From files ----------------------------------------------------------------------------------------------------------


def test_feeds_that_fit(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, "float[2,3] x; int64 n; string[2] s; bfloat16[3] h")
    half = np.array([1, 2, 3], ml_dtypes.bfloat16)
    arrays = {
        "x": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "n": np.array(7),
        "s": np.array(["ä", "bc"]),
        "h": half,
    }
    feeds = load_feeds(save(tmp_path, **arrays), graph)
    np.testing.assert_array_equal(feeds["x"], arrays["x"])
    assert feeds["x"].flags.c_contiguous
    assert feeds["n"].shape == ()
    assert (feeds["s"].tolist(), feeds["s"].dtype) == (["ä", "bc"], np.dtype(object))
    assert feeds["h"].dtype == half.dtype
    np.testing.assert_array_equal(feeds["h"].view(np.uint16), half.view(np.uint16))


def test_names_with_slashes(tmp_path: Path) -> None:
    assert set(read_feeds(save(tmp_path, **{"grad/x": np.zeros(1), "../y": np.zeros(1)}))) == {"grad/x", "../y"}


def test_other_byte_order_is_converted(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, "float[2] x")
    feeds = load_feeds(save(tmp_path, x=np.array([1, 2], ">f4")), graph)
    assert feeds["x"].dtype == np.float32
    assert feeds["x"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("arrays", "message", "hint"),
    [
        ({"z": np.zeros(2)}, "feeds.npz: the model has no input 'z'", "its inputs are i, x"),
        (
            {"x": np.zeros((2, 3))},
            "feeds.npz: 'x' is float64, but the model's input is float",
            "array.astype('float32')",
        ),
        ({"i": np.zeros(4, np.int32)}, "feeds.npz: 'i' is int32, but the model's input is int64", "astype('int64')"),
        ({"x": np.zeros((3, 2), np.float32)}, "feeds.npz: 'x' has shape 3x2, but the model takes 2x3", None),
        ({"i": np.array(4)}, "feeds.npz: 'i' has shape scalar, but the model takes 4", None),
        ({"x": np.array(["a"])}, "feeds.npz: 'x' is <U1, but the model's input is float", "astype"),
        ({"x": np.zeros(6, np.dtype("V3"))}, "feeds.npz: 'x' is |V3, but the model's input is float", "astype"),
    ],
)
def test_feeds_that_do_not_fit(tmp_path: Path, arrays: dict[str, np.ndarray], message: str, hint: str | None) -> None:
    error = refusal(save(tmp_path, **arrays), graph_of(tmp_path, "float[2,3] x; int64[4] i"))
    assert error.message == message
    assert (hint or "") in (error.hint or "")


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (pytest.fail, ("a pickle was loaded",))

    path = save(tmp_path, x=np.array([Trap()], dtype=object))
    assert "'x' is a pickled object, which is never loaded" in refusal(path, graph_of(tmp_path, "float[1] x")).message


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not a zip", b"\x80\x04K\x01.", b"\x93NUMPY\x01\x00"])
def test_files_that_are_no_archives(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "feeds.npz"
    path.write_bytes(content)
    assert refusal(path, graph_of(tmp_path, "float[1] x")).message.startswith("feeds.npz is not an .npz file")


def test_missing_files_and_folders(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, "float[1] x")
    assert "does not exist" in refusal(tmp_path / "none.npz", graph).message
    assert "is not an .npz file" in refusal(tmp_path, graph).message


def test_single_arrays_are_no_archives(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(1, np.float32))
    assert "holds one array without a name" in refusal(path, graph_of(tmp_path, "float[1] x")).message


def npy(value: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, value)
    return stream.getvalue()


def test_damaged_members_are_named(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, "float[1] x")
    whole = npy(np.zeros(1, np.float32))
    huge = whole.replace(b"'shape': (1,), ", b"'shape': (10000000000000,), ")
    assert len(huge) != len(whole)
    for content, expected in [
        (whole[:-2], "is damaged"),
        (huge, "is damaged"),
        (whole[:6] + b"\x09\x00" + whole[8:], "is damaged"),
        (b"text", "is not an array"),
    ]:
        path = tmp_path / "feeds.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", content)
        assert f"feeds.npz: 'x' {expected}" in refusal(path, graph).message


def test_repeated_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "feeds.npz"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(path, "w") as archive:
            for _ in range(2):
                archive.writestr("x.npy", npy(np.zeros(1, np.float32)))
    with pytest.raises(InputError, match="holds 'x' twice"):
        read_feeds(path)


def test_sequences_cannot_be_fed(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, "float[1] x")
    info = replace(graph.tensors["x"], container="sequence", shape=None, fixed_size=False)
    sequence = replace(graph, tensors={**graph.tensors, "x": info})
    with pytest.raises(ModelError, match="input 'x' is a sequence"):
        seeded_feeds(sequence)
    with pytest.raises(InputError, match="input 'x' is a sequence, which an"):
        check_feeds({"x": np.zeros(1, np.float32)}, sequence)
