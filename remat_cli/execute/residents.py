"""Inputs, weights and constants: the values that stay in memory all the time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from remat_cli.errors import InputError
from remat_cli.execute.blocks import HostBlock
from remat_cli.execute.feed_file import Fed, read_into, read_texts
from remat_cli.execute.values import RawTensor, bytes_of, is_held
from remat_cli.model.weights import read_weight_into, weight_array
from remat_cli.units import align

if TYPE_CHECKING:
    from remat_cli.model.graph import Graph


class Residents:
    """`names` of `graph`, each at a fixed address in one block; strings are held as numpy arrays beside it.

    `fed`: the inputs and weights that have a value by now.
    """

    def __init__(self, graph: Graph, names: Iterable[str], alignment: int) -> None:
        self._graph = graph
        self._offset: dict[str, int] = {}
        self.held: dict[str, Any] = {}
        self.fed: set[str] = set()
        self.names = tuple(names)
        end = 0
        for name in self.names:
            if not is_held(graph.tensors[name]):
                self._offset[name] = end
                end += align(graph.tensors[name].size_bytes, alignment)
        self._block = HostBlock(end, "inputs, weights and constants")

    def address(self, name: str) -> int:
        return self._block.address + self._offset[name]

    def view(self, name: str) -> memoryview:
        """The bytes of `name`, without its padding."""
        return self._block.view(self._offset[name], self._graph.tensors[name].size_bytes)

    def raw(self, name: str) -> RawTensor:
        info = self._graph.tensors[name]
        return RawTensor(info.elem_type, info.shape or (), self.view(name))

    def load(self) -> None:
        """Read weights and constants: weights straight from their files into the block."""
        for name in self.names:
            if name in self._graph.weights:
                weight = self._graph.weights[name]
                if name in self._offset:
                    read_weight_into(weight, self.view(name))
                else:
                    self.held[name] = weight_array(weight)
                self.fed.add(name)
            elif name in self._graph.constants:
                self._put(name, np.asarray(onnx.numpy_helper.to_array(self._graph.constants[name])))

    def feed(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Copy values of inputs and overridable weights into place; `check_feeds` has checked them."""
        for name, value in feeds.items():
            self._put(name, value)

    def read(self, path: Path, rows: Iterable[Fed]) -> None:
        """Take values from a file that `write_feeds` wrote."""
        with path.open("rb", buffering=0) as stream:
            for fed in rows:
                if fed.name in self._offset:
                    read_into(stream, self.view(fed.name))
                else:
                    self.held[fed.name] = read_texts(self._graph, fed, stream)
                self.fed.add(fed.name)

    def require_inputs(self) -> None:
        """InputError that names the first input without a value."""
        for name in self._graph.inputs:
            if name not in self.fed:
                raise InputError(f"input {name!r} has no value", "feed it once; later steps keep the value they have")

    def close(self) -> None:
        self.held.clear()
        self._block.close()

    def _put(self, name: str, value: np.ndarray[Any, Any]) -> None:
        if name in self._offset:
            self.view(name)[:] = bytes_of(self._graph.tensors[name], value)
        else:
            self.held[name] = np.asarray(value)
        self.fed.add(name)
