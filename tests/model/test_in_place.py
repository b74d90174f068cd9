"""Every operator of the in-place whitelist, run with its output on its input's own pointer, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from remat_cli.model.element_types import tensor_bytes
from remat_cli.model.graph import TensorInfo
from remat_cli.model.operators import IN_PLACE_OPERATORS, in_place_positions
from remat_cli.ort_session import Device, make_session

DTYPES = {
    np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.float64): TensorProto.DOUBLE, np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64, np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.uint32): TensorProto.UINT32, np.dtype(np.uint64): TensorProto.UINT64, np.dtype(bool): TensorProto.BOOL,
}  # fmt: skip
SHAPES = [(1,), (7,), (1000,), (3, 5), (128, 257), (2, 3, 16, 17), (1, 1, 300, 300), (2, 100003), (3, 0, 4)]
FLOATS = [np.float32, np.float16, np.float64]
NUMBERS = [*FLOATS, np.int32, np.int64, np.uint8]
BROADCASTING = {"Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Where", "Sum", "Min", "Max"}
# Pairs of operand shapes of which at least one is the shape of the result.
BROADCASTS = [
    ((4, 5), (4, 5)), ((128, 257), ()), ((128, 257), (257,)), ((128, 257), (128, 1)), ((2, 3, 40, 17), (3, 1, 1)),
    ((2, 3, 40, 17), (1, 40, 1)), ((2, 100003), (2, 1)), ((70000,), (1,)), ((1, 6), (1, 1, 6)), ((2, 0), (1, 1)),
]  # fmt: skip


@dataclass
class Case:
    """One operator on given inputs; `out_type` where it differs from the input's."""

    op_type: str
    inputs: list[np.ndarray]
    attributes: dict[str, Any] = field(default_factory=dict)
    out_type: np.dtype[Any] | None = None
    opset: int = 21

    def __str__(self) -> str:
        return f"{self.op_type} {[(a.dtype.name, a.shape) for a in self.inputs]} {self.attributes}"


def value(dtype: Any, shape: Sequence[int], seed: int = 0) -> np.ndarray:
    random = np.random.default_rng([seed, *shape])
    dtype = np.dtype(dtype)
    if dtype.kind in "iub":
        return np.asarray(random.integers(0 if dtype.kind == "b" else 1, 9, shape)).astype(dtype)
    return np.asarray(random.standard_normal(shape) * 3).astype(dtype)


def unary_cases() -> Iterator[Case]:
    others = BROADCASTING | {"Cast", "Softmax", "LogSoftmax", "LayerNormalization", "BatchNormalization"}
    plain = IN_PLACE_OPERATORS - others
    for op_type in sorted(plain):
        for shape in SHAPES:
            for dtype in [*NUMBERS, bool]:
                yield Case(op_type, [value(dtype, shape)])
                if op_type == "Clip" and dtype is not bool:
                    yield Case(op_type, [value(dtype, shape), np.array(2, dtype), np.array(5, dtype)])


def cast_cases() -> Iterator[Case]:
    for source in DTYPES:
        for target in DTYPES:
            if source.itemsize == target.itemsize and source != target:
                for shape in SHAPES:
                    yield Case("Cast", [value(source, shape)], {"to": DTYPES[target]}, target)


def row_cases() -> Iterator[Case]:
    for shape in SHAPES[:-1]:
        for dtype in FLOATS:
            for axis in range(-1, len(shape) - 1):
                yield Case("Softmax", [value(dtype, shape)], {"axis": axis})
                yield Case("LogSoftmax", [value(dtype, shape)], {"axis": axis})
                yield Case("Softmax", [value(dtype, shape)], {"axis": axis}, opset=11)
                yield Case("LogSoftmax", [value(dtype, shape)], {"axis": axis}, opset=11)
                scale = value(dtype, shape[axis:] if axis >= 0 else shape[-1:], 1)
                yield Case("LayerNormalization", [value(dtype, shape), scale], {"axis": axis})
                yield Case("LayerNormalization", [value(dtype, shape), scale, scale], {"axis": axis})
    for shape in [(2, 3, 16, 17), (1, 5, 9), (4, 64), (2, 3, 4, 5, 6)]:
        for dtype in FLOATS:
            for opset in (9, 14, 21):
                statistics = [np.abs(value(dtype, shape[1:2], seed)) + 1 for seed in range(4)]
                yield Case("BatchNormalization", [value(dtype, shape), *statistics], opset=opset)


def binary_cases() -> Iterator[Case]:
    for op_type in ("Add", "Sub", "Mul", "Div", "Pow", "Sum", "Min", "Max", "And", "Or", "Xor"):
        for dtype in [bool] if op_type in ("And", "Or", "Xor") else NUMBERS:
            for big, small in BROADCASTS:
                for shapes in {(big, small), (small, big)}:
                    yield Case(op_type, [value(dtype, shape, seed) for seed, shape in enumerate(shapes)])
    for shapes in BROADCASTS:
        yield Case("Pow", [value(np.float32, shapes[0]), value(np.int32, shapes[1])])
        yield Case("Pow", [value(np.int32, shapes[1]), value(np.float32, shapes[0])])


def where_cases() -> Iterator[Case]:
    for dtype in [*NUMBERS, bool]:
        for big, small in BROADCASTS:
            for mask, first, second in [(big, big, small), (small, big, big), (big, small, big), (small, small, big)]:
                yield Case("Where", [value(bool, mask), value(dtype, first, 1), value(dtype, second, 2)])


def infos(case: Case, names: Sequence[str]) -> dict[str, TensorInfo]:
    shape = (
        np.broadcast_shapes(*(a.shape for a in case.inputs)) if case.op_type in BROADCASTING else case.inputs[0].shape
    )
    out_type = case.out_type or (case.inputs[1] if case.op_type == "Where" else case.inputs[0]).dtype
    arrays = [(name, a.dtype, a.shape) for name, a in zip(names, case.inputs, strict=True)]
    return {
        name: TensorInfo(name, DTYPES[dtype], tuple(dims), tensor_bytes(DTYPES[dtype], dims))
        for name, dtype, dims in [*arrays, ("o", out_type, shape)]
    }


def check(case: Case, positions: Sequence[int] | None = None) -> list[bool] | None:
    """For each position that may run in place, whether it gave the plain run's bits; None without a kernel."""
    names = [f"i{k}" for k in range(len(case.inputs))]
    tensors = infos(case, names)
    node = helper.make_node(case.op_type, names, ["o"], **case.attributes)
    if positions is None:
        positions = in_place_positions(node, tensors, case.opset)
    if not positions:
        return None
    declared = [helper.make_tensor_value_info(i.name, i.elem_type, i.shape) for i in tensors.values()]
    graph = helper.make_graph([node], "g", declared[:-1], declared[-1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=10)
    try:
        session = make_session(model.SerializeToString(), Device())
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error) or "INVALID_GRAPH" in str(error):
            return None
        raise
    expected = session.run(["o"], dict(zip(names, case.inputs, strict=True)))[0]
    results = []
    for position in positions:
        buffers = [np.ascontiguousarray(a).reshape(a.shape).copy() for a in case.inputs]
        binding = session.io_binding()
        for name, buffer in zip(names, buffers, strict=True):
            binding.bind_input(name, "cpu", 0, buffer.dtype, buffer.shape, buffer.ctypes.data)
        shared = buffers[position].ctypes.data
        binding.bind_output("o", "cpu", 0, expected.dtype, expected.shape, shared)
        session.run_with_iobinding(binding)
        results.append(buffers[position].tobytes() == expected.tobytes())
    return results


FAMILIES = [unary_cases, cast_cases, row_cases, binary_cases, where_cases]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[str]]:
    """Operator -> the cases that differ; only operators that were really run are keys."""
    found: dict[str, list[str]] = {}
    for family in FAMILIES:
        for case in family():
            results = check(case)
            if results is not None:
                found.setdefault(case.op_type, []).extend([str(case)] * (not all(results)))
    return found


def test_in_place_gives_the_same_bits(outcomes: dict[str, list[str]]) -> None:
    assert {op_type: cases for op_type, cases in outcomes.items() if cases} == {}


def test_every_listed_operator_was_run(outcomes: dict[str, list[str]]) -> None:
    assert set(outcomes) == IN_PLACE_OPERATORS


def test_the_harness_sees_operators_that_are_wrong_in_place() -> None:
    square = value(np.float32, (64, 64))
    assert check(Case("Transpose", [square]), [0]) == [False]
    assert check(Case("MatMul", [square, square.copy()]), [0]) == [False]


def test_double_log_softmax_is_not_offered() -> None:
    info = TensorInfo("x", TensorProto.DOUBLE, (3, 5), 120)
    node = helper.make_node("LogSoftmax", ["x"], ["o"])
    assert in_place_positions(node, {"x": info, "o": info}, 21) == ()


def test_positions_need_equal_shape_width_and_a_single_read() -> None:
    def info(elem_type: int, *shape: int) -> TensorInfo:
        return TensorInfo("", elem_type, shape, tensor_bytes(elem_type, shape))

    f32, i64 = TensorProto.FLOAT, TensorProto.INT64
    tensors = {"a": info(f32, 4, 5), "b": info(f32, 5), "o": info(f32, 4, 5), "w": info(i64, 4, 5)}
    tensors["dynamic"] = TensorInfo("dynamic", f32, None, 80, fixed_size=False)
    make = helper.make_node
    assert in_place_positions(make("Add", ["a", "b"], ["o"]), tensors, 21) == (0,)
    assert in_place_positions(make("Sub", ["b", "a"], ["o"]), tensors, 21) == (1,)
    assert in_place_positions(make("Add", ["a", "a"], ["o"]), tensors, 21) == ()
    assert in_place_positions(make("Cast", ["a"], ["w"], to=i64), tensors, 21) == ()
    assert in_place_positions(make("Sum", ["a", "a", "b"], ["o"]), tensors, 21) == ()
    assert in_place_positions(make("Relu", ["dynamic"], ["o"]), tensors, 21) == ()
    assert in_place_positions(make("Relu", ["a"], ["dynamic"]), tensors, 21) == ()
    assert in_place_positions(make("Relu", ["a"], ["o"], domain="my.domain"), tensors, 21) == ()
    assert in_place_positions(make("Gelu", ["a"], ["o"]), tensors, 21) == ()
