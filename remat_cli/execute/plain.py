"""One ordinary onnxruntime session over the same graph: what the arena engine is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from remat_cli.errors import DeviceError, RematError
from remat_cli.execute.blocks import HostBlock
from remat_cli.execute.feed_file import Fed
from remat_cli.execute.residents import Residents
from remat_cli.execute.sessions import claim_threads, set_seed
from remat_cli.execute.values import RawTensor, Value, array_of, bytes_of, is_held, is_object, raw_of_ort_value
from remat_cli.model.ort_messages import parse_message
from remat_cli.model.whole_model import whole_model
from remat_cli.ort_session import Device, make_session
from remat_cli.units import align

if TYPE_CHECKING:
    from remat_cli.model.graph import Graph

Variant = Literal["plain", "default"]
_ALIGNMENT = Device().alignment


class PlainSession:
    """The graph in one session on the CPU, with the calls of `ArenaEngine`.

    "plain": optimisation off, weights fed as inputs, just as the arena engine's sessions get them. Weights that are
    initialisers get prepacked, and kernels can give other last bits for packed weights (measured on a Gemm with few
    rows); with optimisation and prepacking off, the user's own file gives the bits of "plain".
    "default": the user's file as it is, with onnxruntime's default optimisations and prepacking. For its time alone.
    """

    def __init__(self, graph: Graph, variant: Variant, threads: int, *, seed: int = 0) -> None:
        self._graph = graph
        self._variant = variant
        claim_threads(threads)
        set_seed(seed)
        self._session = self._make(threads)
        fed = (name for name, weight in graph.weights.items() if variant == "plain" or weight.overridable)
        self._residents = Residents(graph, (*graph.inputs, *fed), _ALIGNMENT)
        self._sized = {name: graph.tensors[name] for name in graph.outputs if not is_held(graph.tensors[name])}
        self._offset: dict[str, int] = {}
        end = 0
        for name, info in self._sized.items():
            self._offset[name] = end
            end += align(info.size_bytes, _ALIGNMENT)
        self._results = HostBlock(end, "the plain session's outputs")
        # In the order in which they are bound.
        held = [name for name in graph.outputs if name not in self._sized]
        self._position = {name: position for position, name in enumerate((*self._sized, *held))}
        self._objects: dict[str, Value] = {}
        self._binding: Any = None

    def load(self) -> None:
        """Read weights into their places."""
        self._residents.load()

    def read_feeds(self, path: Path, rows: Iterable[Fed]) -> None:
        """Take values of inputs from a file that `write_feeds` wrote."""
        self._residents.read(path, rows)
        names = (*self._residents.names, *self._graph.outputs)
        if not any(is_object(self._graph.tensors[name]) for name in names):
            self._binding = self._bound()

    def run(self) -> None:
        """One iteration. DeviceError when it fails."""
        try:
            if self._binding is not None:
                self._session._sess.run_with_iobinding(self._binding._iobinding, None)
            else:
                self._run_objects()
        except Exception as error:
            # onnxruntime raises classes of its own that share no public base but Exception.
            reason = parse_message(str(error)).reason
            raise DeviceError(f"the {self._variant} session failed: {reason}") from error

    def trace(self, watch: Callable[[str], None]) -> None:
        """One iteration; `watch` is told that it begins."""
        watch(f"running the {self._variant} session")
        self.run()

    def outputs(self) -> Iterator[tuple[str, Value]]:
        """The graph's outputs where they lie: valid until `feed_back`, `feed` or `run`."""
        for name in self._graph.outputs:
            yield name, self._value(name)

    def feed_back(self) -> None:
        """Make state outputs the inputs of the next iteration."""
        state = self._graph.state
        # An output that is an input lies on it, and must be read before another state overwrites it.
        kept = {source: bytes(self._data(source)) for source in state if source in self._residents.names}
        for source, target in state.items():
            self._residents.view(target)[:] = kept[source] if source in kept else self._data(source)

    def _make(self, threads: int) -> Any:
        plain = self._variant == "plain"
        source: bytes | Path = whole_model(self._graph).SerializeToString() if plain else self._graph.path
        try:
            return make_session(
                source, Device(), threads=threads, optimize="none" if plain else "all", prepack=not plain
            )
        except RematError:
            raise
        except Exception as error:
            reason = parse_message(str(error)).reason
            raise DeviceError(f"the {self._variant} session cannot be made: {reason}") from error

    def _bound(self) -> Any:
        binding = self._session.io_binding()
        for name in self._residents.names:
            info = self._graph.tensors[name]
            address = self._residents.address(name)
            binding.bind_input(name, "cpu", 0, info.elem_type, list(info.shape or ()), address)
        for name, info in self._sized.items():
            address = self._results.address + self._offset[name]
            binding.bind_output(name, "cpu", 0, info.elem_type, list(info.shape or ()), address)
        for name in self._position:
            if name not in self._sized:
                binding.bind_output(name, "cpu")
        return binding

    def _run_objects(self) -> None:
        """Strings and sequences cannot be bound: everything goes through Python objects."""
        residents = self._residents
        feeds = {
            name: residents.held[name] if name in residents.held else array_of(residents.raw(name))
            for name in residents.names
        }
        names = list(self._graph.outputs)
        self._objects = dict(zip(names, self._session.run(names, feeds), strict=True))

    def _data(self, name: str) -> memoryview:
        """The bytes of a state output, whose type and shape are those of an input."""
        value = self._value(name)
        if isinstance(value, RawTensor):
            return value.data
        return bytes_of(self._graph.tensors[name], np.asarray(value), "output")

    def _value(self, name: str) -> Value:
        if self._binding is None:
            return self._objects[name]
        # An output that is an input is not copied to where the output was bound: ask where it is.
        return raw_of_ort_value(self._binding.get_outputs()[self._position[name]])
