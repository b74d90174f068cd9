"""Steps that no prebuilt binding can do: nodes that read or make values of unknown size, strings or sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from remat_cli.execute.program import Call, Held, Location
from remat_cli.execute.values import RawTensor, Value, bytes_of, is_object
from remat_cli.model.element_types import numpy_dtype

if TYPE_CHECKING:
    from remat_cli.model.graph import Graph
    from remat_cli.model.node_model import NodeBindings


class Store(Protocol):
    """Where an engine keeps tensors. `values`: the held ones, as onnxruntime's values or as Python objects."""

    graph: Graph
    values: dict[str, Any]

    def address(self, location: Location) -> int:
        """Of a tensor that has a place in memory."""

    def memory(self, name: str, location: Location) -> RawTensor:
        """The tensor `name` in its place in memory."""

    def value(self, name: str, location: Location) -> Value:
        """The tensor `name`, wherever it is."""


def bind(binding: Any, store: Store, call: Call, names: NodeBindings, device: tuple[str, int]) -> None:
    """Bind all tensors of `call` that have a place, by raw pointer. `device`: onnxruntime's name and index for it."""
    for pairs, bind_one in ((names.inputs, binding.bind_input), (names.outputs, binding.bind_output)):
        for model_name, name in pairs:
            location = call.where[name]
            if isinstance(location, Held):
                continue
            info = store.graph.tensors[name]
            bind_one(model_name, *device, info.elem_type, list(info.shape or ()), store.address(location))


class HeldCall:
    """A node with inputs or outputs whose size only the run tells: those are onnxruntime's own values.

    The binding is made anew each time: one that stays would keep the values alive after the plan frees them.
    """

    def __init__(self, store: Store, session: Any, call: Call, names: NodeBindings, device: tuple[str, int]) -> None:
        self._store = store
        self._session = session
        self._call = call
        self._names = names
        self._device = device

    def __call__(self, argument: None, options: None) -> None:
        binding = self._session.io_binding()
        bind(binding, self._store, self._call, self._names, self._device)
        for model_name, name in self._names.inputs:
            location = self._call.where[name]
            if isinstance(location, Held):
                binding.bind_ortvalue_input(model_name, self._store.values[location.name])
        held = [(m, name) for m, name in self._names.outputs if isinstance(self._call.where[name], Held)]
        for model_name, _ in held:
            binding.bind_output(model_name, *self._device)
        self._session.run_with_iobinding(binding)
        # Outputs come in the order in which they were bound: those of known size first.
        made = binding.get_outputs()
        for (_, name), value in zip(held, made[len(made) - len(held) :], strict=True):
            self._store.values[name] = value


class ObjectCall:
    """A node with strings, sequences or optionals, which onnxruntime takes and gives as Python objects alone."""

    def __init__(self, store: Store, session: Any, call: Call, names: NodeBindings) -> None:
        self._store = store
        self._session = session
        self._call = call
        self._names = names

    def __call__(self, argument: None, options: None) -> None:
        store, where = self._store, self._call.where
        feeds = {m: _as_object(store.value(name, where[name])) for m, name in self._names.inputs}
        results = self._session.run([m for m, _ in self._names.outputs], feeds)
        for (_, name), result in zip(self._names.outputs, results, strict=True):
            info = store.graph.tensors[name]
            if not isinstance(where[name], Held):
                store.memory(name, where[name]).data[:] = bytes_of(info, np.asarray(result), "output")
            elif is_object(info):
                store.values[name] = result
            else:
                store.values[name] = _ort_value(np.asarray(result))


def _as_object(value: Value) -> Any:
    if isinstance(value, RawTensor):
        return np.frombuffer(value.data, numpy_dtype(value.elem_type)).reshape(value.shape)
    return value


def _ort_value(array: np.ndarray[Any, Any]) -> Any:
    import onnxruntime as ort

    return ort.OrtValue.ortvalue_from_numpy(array)
