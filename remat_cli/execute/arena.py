"""The arena engine: replays a plan through one-node sessions that read and write one preallocated block.

Every tensor of known size has a fixed place, so the peak is decided before anything runs. A step is one call of a
prebuilt binding on raw pointers, some 2.5 us above its kernel. Views are a second shape for the same pointer and
take no step. Values whose size only the run tells go through onnxruntime's own values (`calls`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import length_hint
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from remat_cli.errors import DeviceError
from remat_cli.execute.blocks import HostBlock
from remat_cli.execute.calls import HeldCall, ObjectCall, bind
from remat_cli.execute.feed_file import Fed
from remat_cli.execute.program import Action, Call, Drop, GiveBack, Held, InArena, Location, Program, Resident
from remat_cli.execute.residents import Residents
from remat_cli.execute.scratch import SharedScratch
from remat_cli.execute.sessions import SessionPool
from remat_cli.execute.values import RawTensor, Value, is_object, raw_of_ort_value
from remat_cli.model.feeds import check_feeds
from remat_cli.model.node_model import node_bindings
from remat_cli.model.ort_messages import parse_message
from remat_cli.ort_session import Device

if TYPE_CHECKING:
    from remat_cli.model.graph import Graph

# One prepared step: a function, and the first of its two arguments (the second is onnxruntime's run options: None).
Prepared = tuple[Callable[[Any, None], object], Any]


class ArenaEngine:
    """`program` on `graph`, ready to run once the residents are loaded and fed.

    Sessions, bindings and blocks are made here; the blocks' pages are not touched before `load` and `run`.
    `seed`: of random operators that have none themselves. `watch`: told what is done, so that a crash can be named.
    """

    def __init__(
        self,
        program: Program,
        graph: Graph,
        device: Device,
        threads: int,
        *,
        seed: int = 0,
        watch: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.graph = graph
        self.values: dict[str, Any] = {}
        self._program = program
        self._device = device
        self._pool = SessionPool(graph, device, threads, seed)
        self._residents = Residents(graph, (*graph.inputs, *graph.weights, *graph.constants), program.alignment)
        self._arena = HostBlock(program.arena_bytes, "the arena")
        self._scratch: SharedScratch | None = None
        self._prepared: list[Prepared] = []
        for call in program.calls:
            if isinstance(call, Call):
                watch(f"making a session for {call.node.label}")
            self._prepared.append(self._prepare(call))
        session = self._pool.any_session()
        if session is not None and program.workspace_bytes:
            self._scratch = SharedScratch(session, program.workspace_bytes)

    def load(self) -> None:
        """Read weights and constants into their places."""
        self._residents.load()

    def feed(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Copy values of inputs into their places; inputs keep their values from one iteration to the next.

        InputError for a name that is no input, or a value of the wrong type or shape.
        """
        self._residents.feed(check_feeds(feeds, self.graph))

    def read_feeds(self, path: Path, rows: Iterable[Fed]) -> None:
        """Take values of inputs from a file that `write_feeds` wrote."""
        self._residents.read(path, rows)

    def run(self) -> None:
        """One iteration. DeviceError naming the node when one fails."""
        self._residents.require_inputs()
        steps = iter(self._prepared)
        try:
            for function, argument in steps:
                function(argument, None)
        except Exception as error:
            # onnxruntime raises classes of its own that share no public base but Exception.
            raise self._failure(len(self._prepared) - length_hint(steps) - 1, error) from error

    def trace(self, watch: Callable[[str], None]) -> None:
        """One iteration that tells `watch` each node before it runs."""
        self._residents.require_inputs()
        for index, (function, argument) in enumerate(self._prepared):
            watch(f"running {self._label(index)}")
            try:
                function(argument, None)
            except Exception as error:
                raise self._failure(index, error) from error

    def outputs(self) -> Iterator[tuple[str, Value]]:
        """The graph's outputs where they lie: valid until `feed_back`, `feed` or `run`."""
        for name, location in self._program.outputs.items():
            yield name, self.value(name, location)

    def feed_back(self) -> None:
        """Make state outputs the inputs of the next iteration; those that were updated in place are there already."""
        copies = [(source, self._program.outputs[source], target) for source, target in self._program.copies]
        # The new state may be another state's old value, which must be read before it is overwritten.
        kept = {
            source: bytes(self.memory(source, location).data)
            for source, location, _ in copies
            if isinstance(location, Resident)
        }
        for source, location, target in copies:
            data = kept[source] if source in kept else self.memory(source, location).data
            self._residents.view(target)[:] = data

    def close(self) -> None:
        """Drop sessions and give the memory back."""
        self._prepared.clear()
        self.values.clear()
        self._scratch = None
        self._pool.close()
        self._residents.close()
        self._arena.close()

    def address(self, location: Location) -> int:
        """Of a tensor that has a place in memory."""
        if isinstance(location, InArena):
            return self._arena.address + location.offset
        return self._residents.address(location.name)

    def memory(self, name: str, location: Location) -> RawTensor:
        """The tensor `name` in its place in memory."""
        info = self.graph.tensors[name]
        if isinstance(location, InArena):
            data = self._arena.view(location.offset, info.size_bytes)
        else:
            data = self._residents.view(location.name)
        return RawTensor(info.elem_type, info.shape or (), data)

    def value(self, name: str, location: Location) -> Value:
        """The tensor `name`, wherever it is."""
        if isinstance(location, Resident) and location.name in self._residents.held:
            held: Value = self._residents.held[location.name]
            return held
        if not isinstance(location, Held):
            return self.memory(name, location)
        value = self.values[location.name]
        return value if is_object(self.graph.tensors[name]) else raw_of_ort_value(value)

    def _prepare(self, call: Action) -> Prepared:
        if isinstance(call, Drop):
            return self._drop, call.name
        if isinstance(call, GiveBack):
            return self._give_back, call.size
        session = self._pool.session(call.node)
        names = node_bindings(self.graph, call.node)
        device = (self._device.kind, self._device.index)
        tensors = [name for _, name in (*names.inputs, *names.outputs)]
        if any(is_object(self.graph.tensors[name]) for name in tensors):
            return ObjectCall(self, session, call, names), None
        if any(isinstance(call.where[name], Held) for name in tensors):
            return HeldCall(self, session, call, names, device), None
        binding = session.io_binding()
        bind(binding, self, call, names, device)
        # The public method checks things for other devices on every call, which costs as much as the call.
        return session._sess.run_with_iobinding, binding._iobinding

    def _drop(self, name: str, options: None) -> None:
        del self.values[name]

    def _give_back(self, size: int, options: None) -> None:
        if self._scratch is not None:
            self._scratch.give_back(size)

    def _label(self, index: int) -> str:
        call = self._program.calls[index]
        if isinstance(call, Call):
            return f"{call.node.label} (step {call.step})"
        return f"the free of {call.name}" if isinstance(call, Drop) else "the return of scratch"

    def _failure(self, index: int, error: Exception) -> DeviceError:
        reason = parse_message(str(error)).reason
        return DeviceError(f"{self._label(index)} failed on {self._device.name}: {reason}")
