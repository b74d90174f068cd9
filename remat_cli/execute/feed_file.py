"""Feeds on their way into child processes: one file of raw bytes, which each child reads straight into place.

So all children get the same bytes, and none has arrays of its own that would count as memory of the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np

from remat_cli.errors import InternalError
from remat_cli.execute.values import Array, bytes_of, is_held, texts_of

if TYPE_CHECKING:
    from remat_cli.model.graph import Graph


class Fed(msgspec.Struct, frozen=True):
    """Input `name` takes the next `length` bytes of the file: raw, or a JSON list for strings."""

    name: str
    length: int


def write_feeds(graph: Graph, feeds: Mapping[str, Array], path: Path) -> tuple[Fed, ...]:
    """Write `feeds` to `path`. InputError when a type or shape differs from the graph's."""
    rows = []
    with path.open("wb") as stream:
        for name, value in feeds.items():
            info = graph.tensors[name]
            data = memoryview(json.dumps(texts_of(value)).encode()) if is_held(info) else bytes_of(info, value)
            stream.write(data)
            rows.append(Fed(name, data.nbytes))
    return tuple(rows)


def read_into(stream: BinaryIO, target: memoryview) -> None:
    """Fill `target` from an unbuffered stream."""
    done = 0
    while done < target.nbytes:
        count = stream.readinto(target[done:])  # type: ignore[attr-defined]
        if not count:
            raise InternalError("the file of feeds ends too early")
        done += count


def read_texts(graph: Graph, fed: Fed, stream: BinaryIO) -> np.ndarray[Any, Any]:
    """The strings of a string input."""
    data = bytearray(fed.length)
    read_into(stream, memoryview(data))
    return np.array(json.loads(bytes(data)), dtype=object).reshape(graph.tensors[fed.name].shape or ())
