"""Values that loading folds: the same bits as onnxruntime's kernels give."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

from remat_cli.model.fold_ops import MAX_BYTES, OPERATORS, evaluate
from remat_cli.ort_session import Device, make_session

Array = np.ndarray[Any, Any]


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def scalar(value: int) -> Array:
    return np.array(value, np.int64)


def as_type(elem_type: int) -> dict[str, int]:
    return {"to": elem_type}


GRID = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
INT_MAX, INT_MIN = 2**31 - 1, -(2**31) + 1
# (operator, inputs, attributes, opset, outputs)
CASES: list[tuple[str, list[Array | None], dict[str, Any], int, int]] = [
    ("Abs", [i64(-3, 0, 4)], {}, 17, 1),
    ("Add", [i64(1, 2, 3), scalar(2**62)], {}, 17, 1),
    ("Add", [i64(2**62), i64(2**62)], {}, 17, 1),
    ("Add", [f32(0.1, 1e8), f32(0.2, 0.1)], {}, 17, 1),
    ("And", [np.array([True, False]), np.array([True])], {}, 17, 1),
    ("Cast", [f32(1.9, -1.9, 0.0, 2**30)], as_type(TensorProto.INT64), 17, 1),
    ("Cast", [i64(0, 3, -1)], as_type(TensorProto.BOOL), 17, 1),
    ("Cast", [i64(2**40 + 5, -7)], as_type(TensorProto.INT32), 17, 1),
    ("Cast", [i64(16777217, 3)], as_type(TensorProto.FLOAT), 17, 1),
    ("Cast", [f32(0.1, 65520.0, 1e-8)], as_type(TensorProto.FLOAT16), 17, 1),
    ("Cast", [np.array([0.1, 1e300])], as_type(TensorProto.FLOAT), 17, 1),
    ("Ceil", [f32(1.2, -1.2)], {}, 17, 1),
    ("Concat", [i64(1), i64(), i64(2, 3)], {"axis": 0}, 17, 1),
    ("Concat", [GRID, GRID], {"axis": -1}, 17, 1),
    ("ConstantOfShape", [i64(2, 3)], {}, 17, 1),
    ("ConstantOfShape", [i64()], {"value": numpy_helper.from_array(i64(7))}, 17, 1),
    ("ConstantOfShape", [i64(0, 4)], {"value": numpy_helper.from_array(f32(7))}, 17, 1),
    ("Div", [i64(7, -7, 7, -7, 6), i64(2, 2, -2, -2, 3)], {}, 17, 1),
    ("Div", [f32(1, 2, 0), f32(3, 0, 7)], {}, 17, 1),
    ("Equal", [i64(1, 2), i64(1, 3)], {}, 17, 1),
    ("Expand", [i64(1, 2, 3), i64(2, 1, 3)], {}, 17, 1),
    ("Expand", [GRID, i64(1)], {}, 17, 1),
    ("Flatten", [GRID], {"axis": 2}, 17, 1),
    ("Flatten", [GRID], {"axis": -1}, 17, 1),
    ("Flatten", [GRID], {"axis": 0}, 17, 1),
    ("Floor", [f32(1.2, -1.2)], {}, 17, 1),
    ("Gather", [i64(5, 6, 7), scalar(-1)], {}, 17, 1),
    ("Gather", [GRID, i64(2, 0)], {"axis": 1}, 17, 1),
    ("GatherElements", [GRID, GRID[:, :, :2] % 4], {"axis": 2}, 17, 1),
    ("GatherND", [GRID, np.array([[0, 1], [1, 2]], np.int64)], {}, 17, 1),
    ("Greater", [i64(1, 2), i64(1, 1)], {}, 17, 1),
    ("GreaterOrEqual", [i64(1, 2), i64(1, 3)], {}, 17, 1),
    ("Identity", [GRID], {}, 17, 1),
    ("Less", [f32(1, 2), f32(1, 3)], {}, 17, 1),
    ("LessOrEqual", [i64(1, 2), i64(1, 1)], {}, 17, 1),
    ("Max", [i64(1, 5), i64(3), i64(2, 2)], {}, 17, 1),
    ("Max", [i64(1, 5)], {}, 17, 1),
    ("Min", [f32(1, 5), f32(3, 3)], {}, 17, 1),
    ("Mod", [i64(7, -7, 7, -7), i64(3, 3, -3, -3)], {}, 17, 1),
    ("Mod", [i64(7, -7, 7, -7), i64(3, 3, -3, -3)], {"fmod": 1}, 17, 1),
    ("Mod", [f32(5.5, -5.5), f32(2, 2)], {"fmod": 1}, 17, 1),
    ("Mul", [i64(3), i64(5, 6)], {}, 17, 1),
    ("Neg", [i64(3, -4)], {}, 17, 1),
    ("NonZero", [np.array([[1, 0], [0, 2]], np.int64)], {}, 17, 1),
    ("Not", [np.array([True, False])], {}, 17, 1),
    ("Or", [np.array([True, False]), np.array([False, False])], {}, 17, 1),
    ("Range", [scalar(2), scalar(11), scalar(3)], {}, 17, 1),
    ("Range", [scalar(5), scalar(0), scalar(-2)], {}, 17, 1),
    ("Range", [scalar(5), scalar(0), scalar(2)], {}, 17, 1),
    ("ReduceMax", [GRID], {"axes": [1], "keepdims": 0}, 17, 1),
    ("ReduceMin", [GRID, i64(0, 2)], {}, 18, 1),
    ("ReduceProd", [i64(2, 3, 4)], {}, 17, 1),
    ("ReduceProd", [i64(2, 3, 4)], {"keepdims": 0}, 17, 1),
    ("ReduceSum", [GRID, i64(-1)], {"keepdims": 0}, 17, 1),
    ("ReduceSum", [GRID, i64()], {"noop_with_empty_axes": 1}, 17, 1),
    ("ReduceSum", [GRID, i64()], {}, 17, 1),
    ("Reshape", [GRID, i64(0, -1)], {}, 17, 1),
    ("Reshape", [np.zeros((0, 3), np.int64), i64(3, 0)], {"allowzero": 1}, 17, 1),
    ("ScatterND", [i64(1, 2, 3, 4), np.array([[1], [3]], np.int64), i64(9, 8)], {}, 17, 1),
    ("Sign", [i64(-3, 0, 4)], {}, 17, 1),
    ("Slice", [GRID, i64(1), i64(INT_MAX), i64(2)], {}, 17, 1),
    ("Slice", [GRID, i64(-1), i64(INT_MIN), i64(1), i64(-1)], {}, 17, 1),
    ("Slice", [GRID, i64(0, 1), i64(1, 3)], {}, 17, 1),
    ("Slice", [GRID], {"starts": [1], "ends": [3], "axes": [1]}, 9, 1),
    ("Slice", [GRID, i64(5), i64(9), i64(1)], {}, 17, 1),
    ("Split", [GRID], {"axis": 2}, 17, 2),
    ("Split", [GRID, i64(1, 3)], {"axis": 2}, 17, 2),
    ("Split", [i64(*range(7))], {"num_outputs": 3}, 18, 3),
    ("Split", [GRID], {"axis": 1, "split": [2, 1]}, 11, 2),
    ("Sqrt", [f32(2)], {}, 17, 1),
    ("Sqrt", [np.array(3.0)], {}, 17, 1),
    ("Squeeze", [GRID.reshape(1, 24, 1)], {}, 17, 1),
    ("Squeeze", [GRID.reshape(1, 24, 1), i64(-1)], {}, 17, 1),
    ("Squeeze", [GRID.reshape(1, 24, 1)], {"axes": [0]}, 11, 1),
    ("Sub", [i64(3, 4), i64(5)], {}, 17, 1),
    ("Tile", [i64(1, 2), i64(3)], {}, 17, 1),
    ("Transpose", [GRID], {}, 17, 1),
    ("Transpose", [GRID], {"perm": [1, 2, 0]}, 17, 1),
    ("Unsqueeze", [scalar(3), i64(0)], {}, 17, 1),
    ("Unsqueeze", [GRID, i64(-1, 0)], {}, 17, 1),
    ("Unsqueeze", [GRID], {"axes": [1]}, 11, 1),
    ("Where", [np.array([True, False]), i64(1, 2), scalar(9)], {}, 17, 1),
    ("Xor", [np.array([True, False]), np.array([True, True])], {}, 17, 1),
]


def make_node(op_type: str, inputs: list[Array | None], attributes: dict[str, Any], outputs: int) -> onnx.NodeProto:
    names = ["" if value is None else f"i{k}" for k, value in enumerate(inputs)]
    return helper.make_node(op_type, names, [f"o{k}" for k in range(outputs)], **attributes)


def by_kernel(node: onnx.NodeProto, inputs: list[Array | None], opset: int) -> list[Array]:
    feeds = {f"i{k}": value for k, value in enumerate(inputs) if value is not None}
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    results: list[Array] = make_session(model.SerializeToString(), Device()).run(None, feeds)
    return results


def assert_same(found: list[Array] | None, wanted: list[Array]) -> None:
    assert found is not None
    assert len(found) == len(wanted)
    for mine, kernel in zip(found, wanted, strict=True):
        assert (mine.dtype, mine.shape) == (kernel.dtype, kernel.shape)
        assert np.ascontiguousarray(mine).tobytes() == kernel.tobytes()


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[3]}")
def test_same_bits_as_the_kernel(case: tuple[str, list[Array | None], dict[str, Any], int, int]) -> None:
    op_type, inputs, attributes, opset, outputs = case
    node = make_node(op_type, inputs, attributes, outputs)
    assert_same(evaluate(node, inputs, opset), by_kernel(node, inputs, opset))


def test_every_operator_is_tried() -> None:
    assert {case[0] for case in CASES} == set(OPERATORS)


@given(
    op_type=st.sampled_from(["Add", "Sub", "Mul", "Div", "Max", "Min"]),
    shapes=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_float_arithmetic_is_rounded_like_the_kernel(
    op_type: str, shapes: hnp.BroadcastableShapes, data: st.DataObject
) -> None:
    finite = st.floats(width=32, allow_nan=False, allow_subnormal=False)
    a, b = (data.draw(hnp.arrays(np.float32, shape, elements=finite)) for shape in shapes.input_shapes)
    node = make_node(op_type, [a, b], {}, 1)
    found, wanted = evaluate(node, [a, b], 17), by_kernel(node, [a, b], 17)
    assert found is not None
    # Not-a-number has many bit patterns, and the sign of a zero that wins over another zero is open.
    assert np.array_equal(found[0], wanted[0], equal_nan=True)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Exp", [f32(1)], {}),
        ("ReduceSum", [f32(1, 2)], {}),
        ("Sqrt", [f32(1, 2)], {}),
        ("Range", [np.array(0.0), np.array(1.0), np.array(0.1)], {}),
        ("ConstantOfShape", [i64(2**40)], {}),
        ("ConstantOfShape", [i64(-1)], {}),
        ("ConstantOfShape", [i64(MAX_BYTES // 4 + 1)], {}),
        ("Expand", [i64(1), i64(2**33)], {}),
        ("Tile", [i64(1, 2), i64(2**40)], {}),
        ("Range", [scalar(0), scalar(2**62), scalar(1)], {}),
        ("Range", [scalar(0), scalar(5), scalar(0)], {}),
        ("Div", [i64(1), i64(0)], {}),
        ("Mod", [i64(1), i64(0)], {}),
        ("Gather", [i64(1, 2), scalar(2)], {}),
        ("Gather", [i64(1, 2), np.zeros((2**14,), np.int64)], {"axis": 3}),
        ("Reshape", [i64(1, 2), i64(3)], {}),
        ("Cast", [f32(1e30)], {"to": TensorProto.INT64}),
        ("Cast", [f32(np.nan)], {"to": TensorProto.INT32}),
        ("Cast", [f32(1)], {"to": TensorProto.STRING}),
        ("Cast", [f32(1)], {"to": 999}),
        ("Cast", [f32(1)], {}),
        ("Max", [f32(np.nan), f32(1)], {}),
        ("Split", [i64(1, 2, 3), i64(1, 1)], {}),
        ("Squeeze", [i64(1, 2), i64(0)], {}),
        ("Unsqueeze", [i64(1, 2), i64(7)], {}),
        ("Transpose", [i64(1, 2)], {"perm": [0, 1]}),
        ("Concat", [i64(1), GRID], {"axis": 0}),
        ("Slice", [GRID, i64(0), i64(1), i64(0), i64(0)], {}),
        ("Slice", [GRID, i64(0, 1), i64(1)], {}),
        ("ScatterND", [i64(1), np.array([[5]], np.int64), i64(1)], {}),
        ("Clip", [i64(1), None], {}),
        ("Add", [i64(1), None], {}),
    ],
)
def test_not_folded(op_type: str, inputs: list[Array | None], attributes: dict[str, Any]) -> None:
    """Too large, not exact, or wrong: the node stays, and its kernel says what is wrong."""
    assert evaluate(make_node(op_type, inputs, attributes, 1), inputs, 17) is None


def test_old_broadcasting_is_not_folded() -> None:
    node = make_node("Add", [GRID, i64(1, 2, 3)], {"axis": 1, "broadcast": 1}, 1)
    assert evaluate(node, [GRID, i64(1, 2, 3)], 6) is None


@given(op_type=st.sampled_from(sorted(OPERATORS)), data=st.data())
@settings(max_examples=200, deadline=None)
def test_odd_nodes_never_raise_and_never_grow(op_type: str, data: st.DataObject) -> None:
    values = hnp.arrays(
        st.sampled_from([np.int64, np.float32, np.bool_, np.int32]),
        hnp.array_shapes(min_dims=0, max_dims=3, max_side=3),
    )
    inputs = data.draw(st.lists(values | st.none(), min_size=1, max_size=4))
    attributes = data.draw(
        st.dictionaries(
            st.sampled_from(["axis", "axes", "perm", "split", "keepdims", "allowzero", "to", "starts", "ends"]),
            st.integers(-5, 20) | st.lists(st.integers(-9, 9), min_size=1, max_size=4),
        )
    )
    found = evaluate(make_node(op_type, inputs, attributes, data.draw(st.integers(1, 3))), inputs, 17)
    assert found is None or all(array.nbytes <= MAX_BYTES for array in found)
