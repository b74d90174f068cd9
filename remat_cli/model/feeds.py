"""Values for graph inputs: seeded ones, and those of a user's ``feeds.npz``."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from remat_cli.errors import InputError, ModelError
from remat_cli.model.element_types import STRING, numpy_dtype, type_name
from remat_cli.model.graph import Graph, TensorInfo
from remat_cli.model.names import listed, quoted, shape_text

Feeds = dict[str, np.ndarray]


def seeded_value(name: str, elem_type: int, shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """A value for input `name`: floats and complex standard normal, integers 0 or 1 (safe as indices), booleans,
    short strings. It hangs on the name and the seed alone, not on what other inputs there are."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    random = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
    if elem_type == STRING:
        words = random.integers(0, 100, size=shape)
        return np.array([f"text {word}" for word in words.reshape(-1)], dtype=object).reshape(tuple(shape))
    dtype = numpy_dtype(elem_type)
    if dtype.kind in "iub" or type_name(elem_type).startswith(("int", "uint")):
        return random.integers(0, 2, size=shape, dtype=np.uint8).astype(dtype)
    value = random.standard_normal(size=shape, dtype=np.float32)
    if dtype.kind == "c":
        return (value + 1j * random.standard_normal(size=shape, dtype=np.float32)).astype(dtype)
    return value.astype(dtype, copy=False)


def seeded_feeds(graph: Graph, seed: int = 0) -> Feeds:
    """A seeded value for every input that must be fed. ModelError for inputs that are no tensors."""
    feeds: Feeds = {}
    for name in graph.inputs:
        info = graph.tensors[name]
        if info.container != "tensor" or info.shape is None:
            raise ModelError(
                f"input {quoted(name)} is a {info.container}: remat makes and reads values for tensors alone"
            )
        feeds[name] = seeded_value(name, info.elem_type, info.shape, seed)
    return feeds


def merged_feeds(graph: Graph, given: Mapping[str, np.ndarray] | None = None, seed: int = 0) -> Feeds:
    """The given feeds, and seeded ones for inputs that those lack."""
    missing = [name for name in graph.inputs if not given or name not in given]
    seeded = seeded_feeds(graph, seed) if missing else {}
    return {name: seeded[name] for name in missing} | dict(given or {})


def load_feeds(path: Path, graph: Graph) -> Feeds:
    """Read `path` and check it against the graph: `read_feeds` and `check_feeds`."""
    return check_feeds(read_feeds(path), graph, path.name)


def read_feeds(path: Path) -> Feeds:
    """All arrays of an ``.npz`` file, by name. Never unpickles. InputError for anything that is not such a file."""
    hint = "write it with numpy: np.savez('feeds.npz', **{'input name': array})"
    try:
        archive: Any = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", hint) from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path.name} is not an .npz file ({_first_line(error)})", hint) from None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise InputError(f"{path.name} holds one array without a name, not an .npz archive", hint)
    with archive:
        names = list(archive.files)
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise InputError(f"{path.name} holds {quoted(repeated[0])} twice")
        return {name: _read_member(archive, name, path) for name in names}


def _read_member(archive: Any, name: str, path: Path) -> np.ndarray:
    try:
        value = archive[name]
    except ValueError as error:
        if "pickle" in str(error):
            raise InputError(
                f"{path.name}: {quoted(name)} is a pickled object, which is never loaded",
                "save it with a numeric or fixed-width string dtype",
            ) from None
        raise InputError(f"{path.name}: {quoted(name)} is damaged ({_first_line(error)})") from None
    except (OSError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile, MemoryError, KeyError, zlib.error) as error:
        raise InputError(f"{path.name}: {quoted(name)} is damaged ({_first_line(error)})") from None
    if not isinstance(value, np.ndarray):
        raise InputError(f"{path.name}: {quoted(name)} is not an array")
    return value


def check_feeds(feeds: Mapping[str, np.ndarray], graph: Graph, source: str = "feeds") -> Feeds:
    """The feeds as sessions take them: contiguous, of the right type. InputError names the first that does not fit."""
    known = {*graph.inputs, *(name for name, weight in graph.weights.items() if weight.overridable)}
    checked: Feeds = {}
    for name, value in feeds.items():
        if name not in known:
            raise InputError(
                f"{source}: the model has no input {quoted(name)}", f"its inputs are {listed(sorted(known)) or 'none'}"
            )
        checked[name] = fit_feed(name, value, graph.tensors[name], source)
    return checked


def fit_feed(name: str, value: np.ndarray, info: TensorInfo, source: str = "feeds") -> np.ndarray:
    """One feed as sessions take it; InputError when type or shape is not that of the input."""
    if info.container != "tensor" or info.shape is None:
        raise InputError(f"{source}: input {quoted(name)} is a {info.container}, which an .npz file cannot hold")
    value = _typed(value, info.elem_type)
    expected = numpy_dtype(info.elem_type)
    if value.dtype != expected:
        raise InputError(
            f"{source}: {quoted(name)} is {value.dtype}, but the model's input is {type_name(info.elem_type)}",
            f"convert it: array.astype({str(expected)!r})",
        )
    if value.shape != info.shape:
        shapes = f"{shape_text(value.shape)}, but the model takes {shape_text(info.shape)}"
        raise InputError(f"{source}: {quoted(name)} has shape {shapes}")
    return np.ascontiguousarray(value).reshape(info.shape)


def _typed(value: np.ndarray, elem_type: int) -> np.ndarray:
    """Undo what numpy's file format does to types: strings have a fixed width, bfloat16 and the like come as bytes."""
    if elem_type == STRING and value.dtype.kind in "US":
        texts = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in value.reshape(-1).tolist()]
        return np.array(texts, dtype=object).reshape(value.shape)
    if value.dtype.kind == "V" and elem_type != STRING and value.dtype.itemsize == numpy_dtype(elem_type).itemsize:
        return value.view(numpy_dtype(elem_type))
    if value.dtype.byteorder == ">":
        return value.astype(value.dtype.newbyteorder("="))
    return value


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
