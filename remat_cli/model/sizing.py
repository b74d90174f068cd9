"""The size of every tensor: by inference where that is enough, else by one run in a child process.

1. ONNX shape inference with data propagation, on types alone: nothing is allocated, and shapes that the file itself
   declares are not believed.
2. What is missing is asked of onnxruntime's own inference, which knows its contrib operators.
3. What is still missing is measured: one run with those tensors exposed, on seeded feeds or the user's.

A shape that hangs on the values of graph inputs is never guessed from seeded feeds: the user has to give values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, TypeProto, ValueInfoProto

from remat_cli.errors import ModelError
from remat_cli.model.dependence import RANDOM, ShapeSources, shape_sources
from remat_cli.model.element_types import ELEMENT_BITS, STRING, tensor_bytes, type_name
from remat_cli.model.feeds import fit_feed
from remat_cli.model.graph import TensorInfo, Weight
from remat_cli.model.loops import loop_types
from remat_cli.model.names import listed, quoted
from remat_cli.model.ort_messages import RuntimeMessage
from remat_cli.model.sizing_run import ChildFailure, Measured, SizingRun
from remat_cli.model.weights import weight_tensor
from remat_cli.reporter import Reporter

# Integer weights up to this many elements may hold shapes, so inference is told their values.
_SHAPE_ELEMENTS = 1024


def infer_shapes(model: ModelProto) -> dict[str, tuple[int, tuple[int, ...] | None]]:
    """Element type and shape (None where a dim is unknown) of every tensor that inference knows the type of.

    Declared shapes of intermediates and outputs are ignored; those of graph inputs are used. Subgraphs' own tensors
    are left out.
    """
    found = {}
    for name, kind in infer_types(model).items():
        elem_type, shape, _ = _describe(kind)
        found[name] = (elem_type, shape)
    return found


def infer_types(model: ModelProto, declared: Mapping[str, TypeProto] | None = None) -> dict[str, TypeProto]:
    """Types by ONNX shape inference. `declared`: types of intermediates that are believed, instead of the model's."""
    bare = ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    made = {name for node in bare.graph.node for name in node.output}
    for value in bare.graph.output:
        if value.name in made:
            value.ClearField("type")
    _state_types(bare.graph, declared or {})
    while True:
        types = _types(_inferred(bare).graph)
        known = {name: kind for name, kind in loop_types(bare, types, infer_types).items() if kind != types.get(name)}
        if not known:
            return types
        _state_types(bare.graph, known)


def _types(graph: GraphProto) -> dict[str, TypeProto]:
    stated = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: value.type for value in stated if value.type.WhichOneof("value")}
    for tensor in graph.initializer:
        types.setdefault(tensor.name, onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims)))
    return types


def _state_types(graph: GraphProto, known: Mapping[str, TypeProto]) -> None:
    """Write types into the model, which inference then takes as given."""
    for value in (*graph.value_info, *graph.output):
        if value.name in known:
            value.type.CopyFrom(known[value.name])
    stated = {value.name for value in (*graph.value_info, *graph.output)}
    graph.value_info.extend(ValueInfoProto(name=name, type=kind) for name, kind in known.items() if name not in stated)


def _inferred(model: ModelProto) -> ModelProto:
    """Data propagation can trip over odd shape arithmetic; plain inference still tells most."""
    for data_prop in (True, False):
        try:
            return onnx.shape_inference.infer_shapes(model, check_type=False, strict_mode=False, data_prop=data_prop)
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError, IndexError):
            continue
    return model


def size_tensors(
    model: ModelProto,
    weights: Mapping[str, Weight],
    feeds: Mapping[str, np.ndarray] | None = None,
    reporter: Reporter | None = None,
    declared: Mapping[str, TypeProto] | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, TensorInfo]:
    """Type and size of every input, weight, constant and node output of a normalised model (sorted, named, inlined).

    `model` carries no weight values: weights are typed graph inputs, or are added as such. `feeds`: values that the
    user gave for graph inputs. `declared`: types that the file states for other tensors, used only where nothing here
    can load their operators. `labels`: first output of a node -> how messages name the node.
    Raises ModelError when a shape hangs on values that were not given, or the run fails.
    """
    typed = _with_weights(model, weights)
    types = infer_types(_with_shape_values(typed, weights))
    names = _tensor_names(typed)
    sized = {name: info for name in names if (info := _static_info(name, types.get(name))) is not None}
    missing = [name for name in names if name not in sized]
    if missing:
        given = {name: fit_feed(name, value, sized[name]) for name, value in (feeds or {}).items() if name in sized}
        run = SizingRun(typed, weights, given, labels)
        sized |= _Measuring(run, reporter or Reporter(), sized, declared or {}).measure(missing)
    return {name: sized[name] for name in names}


def _tensor_names(model: ModelProto) -> list[str]:
    graph = model.graph
    names = dict.fromkeys(value.name for value in graph.input)
    names |= dict.fromkeys(tensor.name for tensor in graph.initializer)
    names |= dict.fromkeys(name for node in graph.node for name in node.output if name)
    return list(names)


def _with_weights(model: ModelProto, weights: Mapping[str, Weight]) -> ModelProto:
    """The model with every weight as a typed input."""
    typed = ModelProto()
    typed.CopyFrom(model)
    present = {value.name for value in typed.graph.input} | {tensor.name for tensor in typed.graph.initializer}
    for name, weight in weights.items():
        if name not in present:
            typed.graph.input.append(onnx.helper.make_tensor_value_info(name, weight.elem_type, weight.shape))
    return typed


def _with_shape_values(model: ModelProto, weights: Mapping[str, Weight]) -> ModelProto:
    """The model with small integer weights as constants: old files list shapes among their inputs."""
    values = [weight_tensor(weight) for weight in weights.values() if _may_be_a_shape(weight)]
    if not values:
        return model
    told = ModelProto()
    told.CopyFrom(model)
    given = {tensor.name for tensor in values}
    kept = [value for value in told.graph.input if value.name not in given]
    del told.graph.input[:]
    told.graph.input.extend(kept)
    told.graph.initializer.extend(values)
    return told


def _may_be_a_shape(weight: Weight) -> bool:
    return (
        weight.elem_type in (TensorProto.INT64, TensorProto.INT32)
        and int(np.prod(weight.shape, dtype=object)) <= _SHAPE_ELEMENTS
    )


def _describe(kind: TypeProto) -> tuple[int, tuple[int, ...] | None, str]:
    """Element type, shape and container of a type."""
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return _describe(kind.sequence_type.elem_type)[0], None, "sequence"
    if which == "optional_type":
        return _describe(kind.optional_type.elem_type)[0], None, "optional"
    if which != "tensor_type":
        return 0, None, "tensor"
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None, "tensor"
    dims = [dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in tensor.shape.dim]
    known = tuple(dim for dim in dims if dim is not None)
    return tensor.elem_type, known if len(known) == len(dims) else None, "tensor"


def _static_info(name: str, kind: TypeProto | None) -> TensorInfo | None:
    """The info that a type alone gives, or None."""
    if kind is None:
        return None
    elem_type, shape, container = _describe(kind)
    if container != "tensor":
        return None
    if elem_type == STRING:
        return TensorInfo(name, elem_type, shape, 0, fixed_size=False)
    if shape is None or elem_type not in ELEMENT_BITS:
        return None
    return TensorInfo(name, elem_type, shape, tensor_bytes(elem_type, shape))


class _Measuring:
    """Sizes for the tensors that ONNX inference left open."""

    def __init__(
        self,
        run: SizingRun,
        reporter: Reporter,
        sized: Mapping[str, TensorInfo],
        declared: Mapping[str, TypeProto],
    ) -> None:
        self.run = run
        self.graph = run.model.graph
        self.reporter = reporter
        self.sized = dict(sized)
        self.declared = declared

    def measure(self, missing: list[str]) -> dict[str, TensorInfo]:
        """TensorInfo of every missing tensor. ModelError when that cannot be."""
        self._refuse_open_inputs(missing)
        try:
            inferred = self.run.infer(missing)
        except ChildFailure as failure:
            return self._as_declared(missing, failure)
        for name, measured in inferred.items():
            self.sized[name] = _measured_info(name, measured, fixed=True)
        still = [name for name in missing if name not in self.sized]
        if still:
            self._measure_by_running(still)
        return {name: self.sized[name] for name in missing}

    def _measure_by_running(self, missing: list[str]) -> None:
        sources = shape_sources(self.graph, self._fed_inputs(), self.sized)
        self._refuse_unknown_values(missing, sources)
        self.reporter.note(f"one run to learn the sizes of {listed(map(quoted, missing), 3)}")
        try:
            found = self.run.measure(missing)
        except ChildFailure as failure:
            raise self._run_error(missing, failure) from None
        for name, measured in found.items():
            self.sized[name] = _measured_info(name, measured, fixed=not sources.of(name))

    def _fed_inputs(self) -> list[str]:
        constants = {tensor.name for tensor in self.graph.initializer} | set(self.run.weights)
        return [value.name for value in self.graph.input if value.name not in constants]

    def _refuse_open_inputs(self, missing: Iterable[str]) -> None:
        declared = {value.name: value.type for value in self.graph.input}
        for name in missing:
            if name in declared:
                _, _, container = _describe(declared[name])
                what = f"is a {container}" if container != "tensor" else "has no fixed shape"
                raise ModelError(
                    f"graph input {quoted(name)} {what}, so it has no size that can be planned",
                    None if container != "tensor" else "fix its dims: --dim NAME=N",
                )

    def _refuse_unknown_values(self, missing: Iterable[str], sources: ShapeSources) -> None:
        for name in missing:
            absent = [source for source in sources.of(name) if source != RANDOM and source not in self.run.feeds]
            if not absent:
                continue
            inputs = ("input " if len(absent) == 1 else "inputs ") + listed(map(quoted, absent))
            raise ModelError(
                f"the shape of {quoted(name)}, made by {self._maker(name)}, hangs on the values of {inputs}: "
                "no static size can be given",
                f"give those values: --inputs feeds.npz, with an array for {listed(absent)}",
            )

    def _maker(self, tensor: str) -> str:
        for index, node in enumerate(self.graph.node):
            if tensor in node.output:
                return self.run.labels[index]
        return "the graph"

    def _as_declared(self, missing: list[str], failure: ChildFailure) -> dict[str, TensorInfo]:
        """Where onnxruntime cannot even load the operators, the file's own declarations are all there is."""
        stated = {name: kind for name, kind in self.declared.items() if name in missing}
        types = infer_types(self.run.model, stated)
        found = {name: info for name in missing if (info := _static_info(name, types.get(name))) is not None}
        if failure.message is None or failure.message.kind != "no kernel" or len(found) < len(missing):
            raise self._run_error([name for name in missing if name not in found] or missing, failure)
        names = listed(map(quoted, missing), 3)
        self.reporter.note(f"sizes of {names} are as the file declares them: {self._describe_failure(failure)}")
        return found

    def _run_error(self, missing: list[str], failure: ChildFailure) -> ModelError:
        hint = "give realistic values: --inputs feeds.npz"
        if failure.message is None or failure.message.kind != "failed":
            hint = "check that plain onnxruntime runs this model"
        return ModelError(
            f"the size of {listed(map(quoted, missing), 3)} cannot be measured: {self._describe_failure(failure)}", hint
        )

    def _describe_failure(self, failure: ChildFailure) -> str:
        message = failure.message or RuntimeMessage("other", failure.text)
        node = failure.node or self._node_of(message)
        return f"{node}: {message.reason}" if node else message.reason

    def _node_of(self, message: RuntimeMessage) -> str:
        for index, node in enumerate(self.graph.node):
            if message.op_type and (node.op_type, node.domain) == (message.op_type, message.domain):
                return self.run.labels[index]
        return ""


def _measured_info(name: str, measured: Measured, fixed: bool) -> TensorInfo:
    if measured.container != "tensor":
        return TensorInfo(name, measured.elem_type, None, measured.size_bytes, measured.container, fixed_size=False)
    if measured.elem_type != STRING and measured.elem_type not in ELEMENT_BITS:
        raise ModelError(f"{quoted(name)} has elements of {type_name(measured.elem_type)}, whose size is unknown")
    if measured.elem_type == STRING or not fixed:
        shape = measured.shape if fixed else None
        return TensorInfo(name, measured.elem_type, shape, measured.size_bytes, fixed_size=False)
    return TensorInfo(name, measured.elem_type, measured.shape, measured.size_bytes)
