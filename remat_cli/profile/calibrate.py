"""Measuring a device model: a few micro-benchmarks give the figures that the roofline needs."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from remat_cli import __version__
from remat_cli.device_memory import total_bytes
from remat_cli.errors import ModelError
from remat_cli.model.load import load_graph
from remat_cli.ort_session import Device, versions
from remat_cli.profile.devices import DeviceModel, DeviceSpec, Efficiency, PeakRates, dump_device_model
from remat_cli.profile.entries import distinct_entries
from remat_cli.profile.flops import work_of
from remat_cli.profile.hardware import processor_name
from remat_cli.profile.measure import time_entries
from remat_cli.profile.op_view import OpView
from remat_cli.profile.worker import Job
from remat_cli.reporter import Reporter

_OPSET = 17
_IR_VERSION = 8
_NS = 10**9
_FLOAT = int(TensorProto.FLOAT)
# The peak rates besides fp32: element types of a product's operands and result.
_NARROW: dict[str, tuple[str, int, int]] = {
    "fp64": ("MatMul", TensorProto.DOUBLE, TensorProto.DOUBLE),
    "fp16": ("MatMul", TensorProto.FLOAT16, TensorProto.FLOAT16),
    "bf16": ("MatMul", TensorProto.BFLOAT16, TensorProto.BFLOAT16),
    "int8": ("MatMulInteger", TensorProto.UINT8, TensorProto.INT32),
}


@dataclass(frozen=True)
class _Sizes:
    """Big enough for the device to show its rate, small enough for seconds in all."""

    matmul: int
    image: tuple[int, int, int]
    elements: int


_SIZES = {
    "cpu": _Sizes(matmul=1024, image=(4, 64, 56), elements=2**22),
    "cuda": _Sizes(matmul=4096, image=(32, 128, 56), elements=2**26),
}


def calibrate(device: Device, threads: int = 1, reporter: Reporter | None = None) -> DeviceModel:
    """The device model of this machine's `device`, by micro-benchmarks: products for each element type that has a
    kernel, a convolution, additions of big and of tiny tensors, a special function.

    Peak rates are what products reach, so their efficiency is 100 %. Raises DeviceError when the device is missing.
    """
    reporter = reporter or Reporter()
    sizes = _SIZES[device.kind]
    basics = _rates(_basic_nodes(sizes), device, threads, reporter)
    peaks = {"fp32": basics["matmul"].flops_per_s}
    for name, (operator, operand, result) in _NARROW.items():
        node = _matmul("matmul", operator, operand, result, sizes.matmul)
        try:
            peaks[name] = _rates([node], device, threads, reporter)["matmul"].flops_per_s
        except ModelError as error:
            reporter.note(f"{name} is left out: {error.message}")
    spec = DeviceSpec(
        name=processor_name(device) or device.name,
        kind=device.kind,
        source=f"measured by remat {__version__} with onnxruntime {versions()['onnxruntime']}, threads: {threads}",
        memory_bytes=total_bytes(device),
        memory_bandwidth_bytes_per_s=_three_digits(basics["add"].bytes_per_s),
        peak_flops_per_s=PeakRates(**{name: _three_digits(rate) for name, rate in peaks.items()}),
        efficiency_percent=Efficiency(
            matmul=100,
            conv=_percent(basics["conv"].flops_per_s, peaks["fp32"]),
            other=_percent(basics["tanh"].flops_per_s, peaks["fp32"]),
        ),
        launch_overhead_ns=basics["tiny"].median_ns,
    )
    data = dump_device_model(spec)
    return DeviceModel(f"{device.kind}.yaml", hashlib.sha256(data).hexdigest(), spec)


@dataclass(frozen=True)
class _Rate:
    median_ns: int
    flops_per_s: int
    bytes_per_s: int


@dataclass(frozen=True)
class _Node:
    """A benchmark: one node with inputs of its own. `name` is that of its output."""

    name: str
    op_type: str
    inputs: tuple[tuple[int, tuple[int, ...]], ...]
    output: tuple[int, tuple[int, ...]]
    attributes: tuple[tuple[str, Any], ...] = ()


def _basic_nodes(sizes: _Sizes) -> list[_Node]:
    count, channels, side = sizes.image
    image, elements = (count, channels, side, side), (sizes.elements,)
    kernel = (channels, channels, 3, 3)
    return [
        _matmul("matmul", "MatMul", _FLOAT, _FLOAT, sizes.matmul),
        _Node("conv", "Conv", ((_FLOAT, image), (_FLOAT, kernel)), (_FLOAT, image), (("pads", [1, 1, 1, 1]),)),
        _Node("add", "Add", ((_FLOAT, elements), (_FLOAT, elements)), (_FLOAT, elements)),
        _Node("tanh", "Tanh", ((_FLOAT, elements),), (_FLOAT, elements)),
        _Node("tiny", "Add", ((_FLOAT, (1,)), (_FLOAT, (1,))), (_FLOAT, (1,))),
    ]


def _matmul(name: str, operator: str, operand: int, result: int, size: int) -> _Node:
    shape = (size, size)
    return _Node(name, operator, ((operand, shape), (operand, shape)), (result, shape))


def _rates(nodes: list[_Node], device: Device, threads: int, reporter: Reporter) -> dict[str, _Rate]:
    """Time the nodes as those of one graph; output name -> what it reached."""
    with tempfile.TemporaryDirectory(prefix="remat-calibrate-") as folder:
        path = Path(folder) / "benchmarks.onnx"
        path.write_bytes(_model(nodes).SerializeToString())
        graph = load_graph(path)
        entries, _ = distinct_entries(graph)
        times = time_entries(Job("time", graph, device, threads, {}, 0), entries, reporter)
    rates = {}
    for node in graph.nodes:
        work, median_ns = work_of(OpView(graph, node)), max(times[node.id][0], 1)
        rates[node.id] = _Rate(median_ns, work.flops * _NS // median_ns, work.moved_bytes * _NS // median_ns)
    return rates


def _model(nodes: list[_Node]) -> onnx.ModelProto:
    inputs, protos = [], []
    for node in nodes:
        names = [f"{node.name}_{k}" for k in range(len(node.inputs))]
        inputs += [helper.make_tensor_value_info(name, *info) for name, info in zip(names, node.inputs, strict=True)]
        protos.append(helper.make_node(node.op_type, names, [node.name], **dict(node.attributes)))
    outputs = [helper.make_tensor_value_info(node.name, *node.output) for node in nodes]
    graph = helper.make_graph(protos, "benchmarks", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)


def _percent(rate: int, peak: int) -> int:
    return min(max(100 * rate // peak, 1), 100)


def _three_digits(rate: int) -> float:
    """Rates are not known better than that, and read more easily."""
    return float(f"{rate:.3g}")
