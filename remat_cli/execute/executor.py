"""The in-process API: a plan and its model as an object that takes feeds and gives outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from remat_cli.errors import DeviceError
from remat_cli.execute.arena import ArenaEngine
from remat_cli.execute.prepare import prepare
from remat_cli.execute.values import python_value
from remat_cli.ort_session import Device, parse_device

if TYPE_CHECKING:
    from remat_cli.model.graph import Graph
    from remat_cli.plan.types import Plan


class Executor:
    """A plan over its model, ready to be stepped; a context manager.

    `model`: the ONNX file, or a loaded graph. `device`: default the plan's; another one places the plan anew and checks
    it against the budget again. `threads`: default the plan's; one number a process. `inputs`: values to begin with.
    `seed`: of random operators without a seed. Any number of executors may live at once.

    Raises CheckFailed when the plan is illegal, or is for another model; InputError for bad inputs and for plans of
    problem files; DeviceError when the device is missing or has no memory.
    """

    def __init__(
        self,
        plan: Plan,
        model: Path | Graph,
        *,
        device: Device | str | None = None,
        threads: int | None = None,
        inputs: Mapping[str, np.ndarray[Any, Any]] | None = None,
        seed: int = 0,
    ) -> None:
        device = parse_device(device) if isinstance(device, str) else device
        ready = prepare(plan, model, device, feeds=dict(inputs or {}))
        self.predicted_bytes = ready.program.peak_bytes
        self._closed = False
        self._stepped = False
        self._engine = ArenaEngine(
            ready.program, ready.graph, ready.device, plan.device.threads if threads is None else threads, seed=seed
        )
        try:
            self._engine.load()
            self._engine.feed(inputs or {})
        except BaseException:
            self.close()
            raise

    def step(self, feeds: Mapping[str, np.ndarray[Any, Any]] | None = None) -> dict[str, Any]:
        """One iteration: graph output -> new array (a list for a sequence, None for an empty optional).

        Inputs that `feeds` lacks keep their value, or take the new one of their state. InputError for an input that
        never got a value, or one of the wrong type or shape; DeviceError naming the node that failed, after which the
        executor is closed.
        """
        if self._closed:
            raise DeviceError("this executor is closed", "make another one")
        if self._stepped:
            self._engine.feed_back()
        self._stepped = False
        self._engine.feed(feeds or {})
        try:
            self._engine.run()
        except DeviceError:
            # Some states may hold their new value already and others not.
            self.close()
            raise
        self._stepped = True
        return {name: python_value(value) for name, value in self._engine.outputs()}

    def close(self) -> None:
        """Give the memory back; arrays that `step` returned stay valid."""
        if not self._closed:
            self._closed = True
            self._engine.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
