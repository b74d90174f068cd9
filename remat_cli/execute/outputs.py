"""Graph outputs on their way out of a child process: digests, files, and the user's ``.npz``."""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from remat_cli.atomic import HEAD_BYTES, write_atomic
from remat_cli.errors import InputError
from remat_cli.execute.job import KeptOutput, Part
from remat_cli.execute.values import Array, RawTensor, Value, array_of, parts_of
from remat_cli.model.element_types import ELEMENT_BITS, STRING, tensor_bytes

if TYPE_CHECKING:
    from remat_cli.model.graph import Graph

# Numbers are compared in pieces, so that big outputs are never in memory twice.
_CHUNK_BYTES = 2**24
_MARK = b"remat run"
# An extra field of a zip entry: an id that no registry has, and the length (APPNOTE 4.5).
_EXTRA = b"Rm" + len(_MARK).to_bytes(2, "little") + _MARK
_OLDEST_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def digest(value: Value) -> str:
    """Equal for values that are equal bit for bit, NaNs included."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts_of(value):
        state.update(repr((part.elem_type, part.shape)).encode())
        state.update(part.data)
    return state.hexdigest()


def keep(graph: Graph, outputs: Iterable[tuple[str, Value]], folder: Path, prefix: str) -> tuple[KeptOutput, ...]:
    """Write all outputs to `folder`, straight from where they lie."""
    kept = []
    for number, (name, value) in enumerate(outputs):
        # A tensor's name may hold any character and be longer than file names can.
        file = f"{prefix}{number}.bin"
        parts = parts_of(value)
        with (folder / file).open("wb", buffering=0) as stream:
            for part in parts:
                _write_all(stream, part.data)
        rows = tuple(Part(part.elem_type, part.shape, part.data.nbytes) for part in parts)
        kept.append(KeptOutput(name, graph.tensors[name].container, file, rows))
    return tuple(kept)


def _write_all(stream: Any, data: memoryview) -> None:
    done = 0
    while done < data.nbytes:
        done += stream.write(data[done : done + _CHUNK_BYTES])


def largest_difference(one: Sequence[KeptOutput], one_folder: Path, other: Sequence[KeptOutput], folder: Path) -> float:
    """The largest absolute difference of two sets of the same numeric outputs.

    Two NaNs, or two equal infinities, differ by nothing; inf when one side has a NaN or infinity that the other has
    not, or when types or shapes differ.
    """
    largest = 0.0
    for a, b in zip(one, other, strict=True):
        if a.parts != b.parts:
            return math.inf
        for x, y in zip(_pieces(a, one_folder), _pieces(b, folder), strict=True):
            largest = max(largest, _difference(x, y))
    return largest


def _pieces(kept: KeptOutput, folder: Path) -> Iterator[Array]:
    with (folder / kept.file).open("rb") as stream:
        for part in kept.parts:
            if part.elem_type == STRING:
                yield array_of(RawTensor(STRING, part.shape, memoryview(stream.read(part.length))))
                continue
            elements = math.prod(part.shape)
            # A whole number of elements of any width.
            step = _CHUNK_BYTES * 8 // ELEMENT_BITS[part.elem_type]
            for start in range(0, elements, step):
                count = min(step, elements - start)
                data = stream.read(tensor_bytes(part.elem_type, (count,)))
                yield array_of(RawTensor(part.elem_type, (count,), memoryview(data)))


def _difference(x: Array, y: Array) -> float:
    if x.dtype == object:
        return 0.0 if x.shape == y.shape and x.tolist() == y.tolist() else math.inf
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    a, b = x.astype(wide), y.astype(wide)
    with np.errstate(invalid="ignore"):
        gap = np.abs(a - b)
    same = (a == b) | ((a != a) & (b != b))
    worst = np.where(same, 0.0, np.where(np.isnan(gap), math.inf, gap))
    return float(worst.max(initial=0.0))


def write_npz(kept: Sequence[KeptOutput], folder: Path, path: Path, *, force: bool) -> None:
    """The outputs as an ``.npz``: one array a tensor, ``name.0``, ``name.1``... for a sequence; the same bytes for the
    same values. Types that numpy lacks are saved as bytes of their width. Only an archive of ours is replaced without
    `force` (InputError)."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        for name, array in _named_arrays(kept, folder):
            entry = zipfile.ZipInfo(f"{name}.npy", _OLDEST_ZIP_TIME)
            entry.extra = _EXTRA
            with target.open(entry, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)
    write_atomic(path, archive.getvalue(), force=force, ours=_is_ours)


def require_writable(path: Path, *, force: bool) -> None:
    """InputError now, before a long run, when `write_npz` could not write to `path` after it."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}", "make it first, or name a file elsewhere")
    if path.is_dir():
        raise InputError(f"{path}: is a folder", f"name a file in it, such as {path / 'out.npz'}")
    if not force and path.is_file():
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
        if head and not _is_ours(head):
            raise InputError(f"{path}: exists and was not written by remat", "choose another name, or add --force")


def _is_ours(head: bytes) -> bool:
    """The mark lies in the header of the first entry."""
    return _EXTRA in head


def _named_arrays(kept: Sequence[KeptOutput], folder: Path) -> Iterator[tuple[str, Array]]:
    for output in kept:
        data = (folder / output.file).read_bytes()
        start = 0
        for number, part in enumerate(output.parts):
            piece = memoryview(data)[start : start + part.length]
            start += part.length
            array = array_of(RawTensor(part.elem_type, part.shape, piece))
            if part.elem_type == STRING:
                array = array.astype(str)
            yield (output.name if output.container == "tensor" else f"{output.name}.{number}"), array
