"""Memory that measured nodes read and write: shared blocks of harmless values, and arrays where values matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from remat_cli.model.element_types import numpy_dtype, type_name
from remat_cli.model.graph import Graph, TensorInfo
from remat_cli.model.weights import weight_array
from remat_cli.ort_session import Device
from remat_cli.profile.entries import Entry, Operand
from remat_cli.profile.hardware import shared_cache_bytes

_ALIGNMENT = 256
_PATTERN_ELEMENTS = 1 << 16
_MOST_PLACES = 8


class Operands:
    """Binds the operands of entries to memory of a device.

    Inputs of one element type share a read-only block: floats uniform in [0.5, 1.5) (no denormals, infinities or
    NaN, which kernels may treat more slowly), booleans either, integers 1 (an integer division by 0 would end the
    process). Outputs share a block that nobody reads. So the memory
    taken is that of the largest node, whatever the graph's size. Indices get values in range, graph inputs the
    user's feeds, integer weights their own values.

    A node's outputs go to a few places of their block in turn, further apart than the last-level cache is large:
    in a step too, a node finds its inputs where they were just made, and writes where nothing was for a while.
    """

    def __init__(
        self,
        graph: Graph,
        entries: Iterable[Entry],
        device: Device,
        feeds: Mapping[str, np.ndarray],
        seed: int,
        *,
        spread: bool,
    ) -> None:
        """`spread`: False keeps each node's outputs in one place."""
        self._graph = graph
        self._device = device
        self._feeds = feeds
        self._random = np.random.Generator(np.random.PCG64(seed))
        output_bytes = 2 * shared_cache_bytes() if spread else 0
        input_bytes: dict[int, int] = {}
        for entry in entries:
            output_bytes = max(output_bytes, sum(_room(operand.tensor) for operand in entry.outputs))
            for elem_type, size in _bytes_by_type(entry.inputs).items():
                input_bytes[elem_type] = max(input_bytes.get(elem_type, 0), size)
        # Filled, not zeros: pages that are touched for the first time must not be part of a measurement.
        self._output = self._on_device(np.full(max(output_bytes, _ALIGNMENT), 1, np.uint8))
        self._output_bytes = output_bytes
        self._inputs = {t: self._on_device(self._pattern(t, size)) for t, size in sorted(input_bytes.items())}

    def bind(self, entry: Entry, session: Any) -> tuple[list[Any], list[Any]]:
        """IOBindings of `session` for `entry`, one for each place of the outputs, and what must be kept alive beside
        this object while they are used."""
        inputs, kept = self._place_inputs(entry)
        size = sum(_room(operand.tensor) for operand in entry.outputs)
        places = max(1, min(_MOST_PLACES, self._output_bytes // max(size, 1)))
        bindings = []
        for place in range(places):
            binding = session.io_binding()
            for operand, address in zip(entry.inputs, inputs, strict=True):
                self._bind(binding.bind_input, operand, address)
            address = self._output.data_ptr() + place * (self._output_bytes // places // _ALIGNMENT * _ALIGNMENT)
            for operand in entry.outputs:
                self._bind(binding.bind_output, operand, address)
                address += _room(operand.tensor)
            bindings.append(binding)
        return bindings, kept

    def _place_inputs(self, entry: Entry) -> tuple[list[int], list[Any]]:
        """The address of each input, and the blocks that are this entry's own."""
        addresses: list[int] = []
        kept: list[Any] = []
        used: dict[int, int] = {}
        for operand in entry.inputs:
            tensor = operand.tensor
            value = self._own_value(entry, operand)
            if value is None:
                address = self._inputs[tensor.elem_type].data_ptr() + used.get(tensor.elem_type, 0)
                used[tensor.elem_type] = used.get(tensor.elem_type, 0) + _room(tensor)
            else:
                block = self._on_device(value)
                kept.append(block)
                address = block.data_ptr()
            addresses.append(address)
        return addresses, kept

    def _bind(self, bind: Any, operand: Operand, address: int) -> None:
        tensor = operand.tensor
        assert tensor.shape is not None
        bind(operand.name, self._device.kind, self._device.index, tensor.elem_type, list(tensor.shape), address)

    def _own_value(self, entry: Entry, operand: Operand) -> np.ndarray | None:
        """The value of an operand whose values matter, as bytes."""
        tensor = operand.tensor
        array = self._feeds.get(tensor.name)
        if array is None and operand.name in entry.bounds:
            assert tensor.shape is not None
            count = max(int(np.prod(tensor.shape)), 1)
            # Spread evenly and in order, as the indices of pooling windows and of sorted tokens are.
            last = max(entry.bounds[operand.name] - 1, 0)
            array = np.linspace(0, last, count).astype(numpy_dtype(tensor.elem_type))
        if array is None and tensor.name in self._graph.weights and type_name(tensor.elem_type) in ("int32", "int64"):
            array = weight_array(self._graph.weights[tensor.name])
        if array is None or array.size == 0:
            return None
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def _pattern(self, elem_type: int, size: int) -> np.ndarray:
        """`size` bytes of values of one element type."""
        dtype = numpy_dtype(elem_type)
        name = type_name(elem_type)
        if dtype.kind == "b":
            values = self._random.integers(0, 2, _PATTERN_ELEMENTS, np.uint8).astype(dtype)
        elif dtype.kind in "iu" or name.startswith(("int", "uint")):
            values = np.ones(_PATTERN_ELEMENTS, dtype)
        else:
            values = (self._random.random(_PATTERN_ELEMENTS, np.float32) + np.float32(0.5)).astype(dtype)
        return np.resize(values.view(np.uint8), max(size, _ALIGNMENT))

    def _on_device(self, data: np.ndarray) -> Any:
        import onnxruntime as ort

        return ort.OrtValue.ortvalue_from_numpy(data, self._device.kind, self._device.index)


def _room(tensor: TensorInfo) -> int:
    return -(-max(tensor.size_bytes, 1) // _ALIGNMENT) * _ALIGNMENT


def _bytes_by_type(operands: Iterable[Operand]) -> dict[int, int]:
    total: dict[int, int] = {}
    for operand in operands:
        total[operand.tensor.elem_type] = total.get(operand.tensor.elem_type, 0) + _room(operand.tensor)
    return total
