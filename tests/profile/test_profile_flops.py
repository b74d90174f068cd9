"""Arithmetic and traffic of operators against counts by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from profile_models import load_text, one_op, view

from remat_cli.profile.flops import DIVIDE, LONE_FILTER, SPECIAL, work_of


@pytest.mark.parametrize(
    ("inputs", "output", "call", "family", "flops"),
    [
        # 512 outputs, each a product over 3 x 3 x 3.
        ("float[2,3,8,8] x, float[4,3,3,3] w", "float[2,4,8,8]", "Conv<pads=[1,1,1,1]>(x, w)", "conv", 512 * 2 * 27),
        # Two groups: each filter sees two of the four channels.
        ("float[1,4,5,5] x, float[4,2,3,3] w", "float[1,4,3,3]", "Conv<group=2>(x, w)", "conv", 36 * 2 * 18),
        # Depthwise.
        ("float[1,4,5,5] x, float[4,1,3,3] w", "float[1,4,3,3]", "Conv<group=4>(x, w)", "other", 36 * 18 * LONE_FILTER),
        # Each of 32 inputs spreads over 3 channels x 2 x 2.
        ("float[1,2,4,4] x, float[2,3,2,2] w", "float[1,3,8,8]", "ConvTranspose<strides=[2,2]>(x, w)", "conv", 768),
        ("float[5,2,3] a, float[3,4] b", "float[5,2,4]", "MatMul(a, b)", "matmul", 5 * 2 * 4 * 2 * 3),
        ("float[3] a, float[3] b", "float", "MatMul(a, b)", "matmul", 6),
        ("float[3,2] a, float[3,4] b, float[4] c", "float[2,4]", "Gemm<transA=1>(a, b, c)", "matmul", 8 * 2 * 3 + 8),
        ("float[2,3,4] a, float[2,4,5] b", "float[2,3,5]", 'Einsum<equation="bij,bjk->bik">(a, b)', "matmul", 2 * 120),
        ("float[2,3,4] a, float[2,4,5] b", "float[2,3,5]", 'Einsum<equation="...ij,...jk">(a, b)', "matmul", 240),
        ("float[3,4] a", "float[4,3]", 'Einsum<equation="ij->ji">(a)', "matmul", 12),
        ("float[2,3] a, float[3] b", "float[2,3]", "Add(a, b)", "other", 6),
        ("float[2,3] a", "float[2,3]", "Exp(a)", "other", 6 * SPECIAL),
        ("float[2,3] a", "float[2,3]", "Sqrt(a)", "other", 6 * DIVIDE),
        ("float[2,3] a, float[2,3] b, float[2,3] c", "float[2,3]", "Sum(a, b, c)", "other", 12),
        ("float[1,2,6,6] a", "float[1,2,3,3]", "AveragePool<kernel_shape=[2,2], strides=[2,2]>(a)", "other", 144),
        ("float[4,6] a", "float[4]", "ReduceMax<axes=[1], keepdims=0>(a)", "other", 24),
        ("float[4,6] a", "float[6,4]", "Transpose(a)", "other", 0),
        (
            "float[2,4,8] q, float[2,6,8] k, float[2,6,8] v",
            "float[2,4,8]",
            "com.microsoft.MultiHeadAttention<num_heads=2>(q, k, v)",
            "matmul",
            2 * 4 * 6 * (4 * 8 + (SPECIAL + DIVIDE + 2) * 2),
        ),
    ],
)  # fmt: skip
def test_operations(tmp_path: Path, inputs: str, output: str, call: str, family: str, flops: int) -> None:
    work = work_of(one_op(tmp_path, inputs, output, call))
    assert (work.family, work.flops) == (family, flops)


def test_recurrent_networks_count_all_steps_and_gates(tmp_path: Path) -> None:
    text = """g (float[3,2,4] x, float[1,20,4] w, float[1,20,5] r) => (float[3,1,2,5] y)
        { y = LSTM<hidden_size=5>(x, w, r) }"""
    # 3 steps x batch 2, 4 gates x hidden 5, each a product over input 4 + hidden 5.
    assert work_of(view(load_text(tmp_path, text), "y")).flops == 3 * 2 * 4 * 5 * (2 * (4 + 5) + SPECIAL)


def test_a_pool_with_indices_costs_more(tmp_path: Path) -> None:
    text = """g (float[1,1,4,4] x) => (float[1,1,2,2] y, int64[1,1,2,2] i)
        { y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }"""
    assert work_of(view(load_text(tmp_path, text), "y")).flops == 4 * 4 * SPECIAL


@pytest.mark.parametrize(
    ("inputs", "output", "call", "moved"),
    [
        ("float[10] a, float[10] b", "float[10]", "Add(a, b)", 120),
        # An input that is read twice comes once.
        ("float[10] a", "float[10]", "Mul(a, a)", 80),
        # Two rows of a long table, read and written, and two indices.
        ("float[1000,4] t, int64[2] i", "float[2,4]", "Gather(t, i)", 2 * 32 + 16),
        ("float16[10] a", "float16[10]", "Neg(a)", 40),
        ("float[8] d, int64[2] i, float[2] u", "float[8]", "ScatterElements(d, i, u)", 32 + 16 + 8 + 32 + 8),
    ],
)
def test_traffic(tmp_path: Path, inputs: str, output: str, call: str, moved: int) -> None:
    assert work_of(one_op(tmp_path, inputs, output, call)).moved_bytes == moved


@pytest.mark.parametrize(
    ("inputs", "output", "call", "rate"),
    [
        ("float16[2,2] a, float16[2,2] b", "float16[2,2]", "MatMul(a, b)", "fp16"),
        ("double[2,2] a, double[2,2] b", "double[2,2]", "MatMul(a, b)", "fp64"),
        ("uint8[2,2] a, uint8[2,2] b", "int32[2,2]", "MatMulInteger(a, b)", "int8"),
        # Outside matrix units half precision is no faster, and integers count as fp32.
        ("float16[2] a", "float16[2]", "Exp(a)", "fp32"),
        ("double[2] a", "double[2]", "Exp(a)", "fp64"),
        ("int64[2] a, int64[2] b", "int64[2]", "Add(a, b)", "fp32"),
    ],
)
def test_rates(tmp_path: Path, inputs: str, output: str, call: str, rate: str) -> None:
    assert work_of(one_op(tmp_path, inputs, output, call)).rate == rate
