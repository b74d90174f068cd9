"""Ask a child process for the types and sizes of some tensors: a crash of the runtime must not be ours.

The model and the feeds go through a temporary folder; only element types, shapes and byte counts come back.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from onnx import ModelProto, ValueInfoProto

from remat_cli.model.element_types import STRING
from remat_cli.model.graph import Weight
from remat_cli.model.names import node_labels
from remat_cli.model.ort_messages import RuntimeMessage, parse_message
from remat_cli.model.subgraphs import reads

_CHILD = "remat_cli.model.sizing_child"


@dataclass(frozen=True)
class Measured:
    """What a child saw of one value."""

    elem_type: int
    shape: tuple[int, ...]
    size_bytes: int
    container: Literal["tensor", "sequence", "optional"] = "tensor"


class ChildFailure(Exception):
    """The child could not load or run the model. `message` is None for a crash, `node` a label where it is known."""

    def __init__(self, text: str, message: RuntimeMessage | None, node: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.message = message
        self.node = node


class _Crash(Exception):
    """A signal ended the child."""


class SizingRun:
    """Runs parts of one model in child processes."""

    def __init__(
        self,
        model: ModelProto,
        weights: Mapping[str, Weight],
        feeds: Mapping[str, np.ndarray],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.model = model
        self.weights = weights
        self.feeds = feeds
        own = node_labels(model.graph.node)
        given = labels or {}
        self.labels = [given.get(node.output[0], own[index]) for index, node in enumerate(model.graph.node)]

    def infer(self, names: Sequence[str]) -> dict[str, Measured]:
        """What onnxruntime's own inference knows of `names`, without a run. ChildFailure when it cannot load them."""
        return self._ask("infer", names)

    def measure(self, names: Sequence[str]) -> dict[str, Measured]:
        """Run the part of the model that makes `names`, and see. ChildFailure when the run fails."""
        return self._ask("run", names)

    def _ask(self, mode: str, names: Sequence[str]) -> dict[str, Measured]:
        part = part_of(self.model, names)
        try:
            return self._child(mode, part, names)
        except _Crash as crash:
            culprit = self._find_crash(mode, part)
            raise ChildFailure(f"onnxruntime died ({crash})", None, culprit) from None

    def _find_crash(self, mode: str, part: ModelProto) -> str:
        """Label of the first node that kills the child, by bisection over prefixes of the part."""
        nodes = part.graph.node
        survives, dies = 0, len(nodes)
        while dies - survives > 1:
            middle = (survives + dies) // 2
            made = [name for name in nodes[middle - 1].output if name]
            try:
                self._child(mode, part_of(part, made), made)
                survives = middle
            except ChildFailure:
                survives = middle
            except _Crash:
                dies = middle
        return self.labels[int(nodes[dies - 1].name)]

    def _child(self, mode: str, part: ModelProto, names: Sequence[str]) -> dict[str, Measured]:
        with tempfile.TemporaryDirectory(prefix="remat-sizing-") as name:
            folder = Path(name)
            (folder / "model.onnx").write_bytes(part.SerializeToString())
            feeds = [] if mode == "infer" else [self._feed(value, folder) for value in part.graph.input]
            (folder / "job.json").write_text(json.dumps({"mode": mode, "names": list(names), "feeds": feeds}))
            code = _run_child(folder)
            result = folder / "result.json"
            if code < 0 or not result.exists():
                raise _Crash(_signal_name(code))
            return self._read(json.loads(result.read_text()))

    def _feed(self, value: ValueInfoProto, folder: Path) -> dict[str, Any]:
        """How the child gets the value of one input: a file's bytes, strings, or a seed."""
        name, tensor = value.name, value.type.tensor_type
        entry: dict[str, Any] = {
            "name": name,
            "elem_type": tensor.elem_type,
            "shape": [dim.dim_value for dim in tensor.shape.dim],
        }
        weight = self.weights.get(name)
        if name in self.feeds:
            given = self.feeds[name]
            entry["shape"] = list(given.shape)
            if tensor.elem_type == STRING:
                return entry | {"strings": [str(text) for text in given.reshape(-1).tolist()]}
            return entry | _as_file(given, folder)
        if weight is None:
            return entry | {"seed": 0}
        if weight.inline is not None:
            (folder / f"{len(os.listdir(folder))}.tensor").write_bytes(weight.inline.SerializeToString())
            return entry | {"tensor": str(folder / f"{len(os.listdir(folder)) - 1}.tensor")}
        assert weight.file is not None
        return entry | {"file": str(weight.file.absolute()), "offset": weight.offset, "length": weight.length}

    def _read(self, answer: dict[str, Any]) -> dict[str, Measured]:
        if "error" in answer:
            message = parse_message(answer["error"])
            node = ""
            if message.node.isdecimal() and int(message.node) < len(self.labels):
                node = self.labels[int(message.node)]
            raise ChildFailure(answer["error"], message, node)
        return {
            name: Measured(elem_type, tuple(shape), size, container)
            for name, (elem_type, shape, size, container) in answer["values"].items()
        }


def part_of(model: ModelProto, names: Collection[str]) -> ModelProto:
    """The nodes that `names` need, as a model with `names` as its outputs; a node's name is its index in `model`,
    or stays what it is when `model` is such a part itself."""
    graph = model.graph
    needed, keep = set(names), []
    for index in range(len(graph.node) - 1, -1, -1):
        node = graph.node[index]
        if needed.intersection(node.output):
            keep.append(index)
            needed.update(reads(node))
    part = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    part.graph.name = "part"
    is_part = graph.name == "part"
    for index in reversed(keep):
        copy = part.graph.node.add()
        copy.CopyFrom(graph.node[index])
        copy.name = copy.name if is_part else str(index)
    part.graph.input.extend(value for value in graph.input if value.name in needed)
    part.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in needed)
    part.graph.output.extend(ValueInfoProto(name=name) for name in names)
    return part


def _as_file(value: np.ndarray, folder: Path) -> dict[str, Any]:
    path = folder / f"{len(os.listdir(folder))}.raw"
    path.write_bytes(np.ascontiguousarray(value).tobytes())
    return {"file": str(path), "offset": 0, "length": value.nbytes}


def _run_child(folder: Path) -> int:
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH", ""))))
    command = [sys.executable, "-m", _CHILD, str(folder)]
    finished = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return finished.returncode


def _signal_name(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
    return f"{name}, perhaps out of memory" if name == "SIGKILL" else name
