"""Estimated scratch: hand-computed rules, and never below what is measured here."""

from __future__ import annotations

from pathlib import Path

import pytest
from profile_models import load_text, one_op

from remat_cli.ort_session import Device
from remat_cli.profile.measure import profile_graph
from remat_cli.profile.op_view import OpView
from remat_cli.profile.scratch import missing_feature, rounded_scratch
from remat_cli.profile.workspace import GRANULARITY_BYTES, estimate_workspace

KIB = 1024


@pytest.mark.parametrize(
    ("inputs", "output", "call", "expected"),
    [
        ("float[8,8] a", "float[8,8]", "Relu(a)", 0),
        ("float[2,2] a, float[2,2] b", "float[2,2]", "MatMul(a, b)", 0),
        # More filters (256) than places (64): the columns of one image, 128 x 9 x 64 floats.
        ("float[8,128,8,8] x, float[256,128,3,3] w", "float[8,256,8,8]", "Conv<pads=[1,1,1,1]>(x, w)", 288 * KIB),
        # Fewer: blocks of columns, here all of them.
        ("float[2,3,32,32] x, float[8,3,3,3] w", "float[2,8,32,32]", "Conv<pads=[1,1,1,1]>(x, w)", 112 * KIB),
        ("float[2,64,32,32] x, float[8,64,1,1] w", "float[2,8,32,32]", "Conv(x, w)", 0),
        # 32 x 9 x 1024 floats, and a step of rounding.
        (
            "float[2,16,32,32] x, float[16,32,3,3] w",
            "float[2,32,32,32]",
            "ConvTranspose<pads=[1,1,1,1]>(x, w)",
            (1152 + 16) * KIB,
        ),
        ("bool[64,1024] c, float[64,1024] a, float b", "float[64,1024]", "Where(c, a, b)", 512 * KIB),
        ("float[64,1024] a", "float[64,1024]", "Softmax(a)", 0),
        ("float[4,16,1024] a", "float[4,16,1024]", "Softmax<axis=1>(a)", 512 * KIB),
        # An operator without a rule counts as what it reads and writes.
        ("float[64,1024] a", "float[64,1024]", "Shrink(a)", 512 * KIB),
    ],
)
def test_rules(tmp_path: Path, inputs: str, output: str, call: str, expected: int) -> None:
    assert estimate_workspace(one_op(tmp_path, inputs, output, call)) == expected


def test_cuda_convolutions_may_take_all_columns(tmp_path: Path) -> None:
    op = one_op(tmp_path, "float[2,64,64,64] x, float[8,64,3,3] w", "float[2,8,64,64]", "Conv<pads=[1,1,1,1]>(x, w)")
    assert estimate_workspace(op, "cuda") == 64 * 9 * 4096 * 4
    assert estimate_workspace(op, "cpu") == 1024 * KIB


@pytest.mark.parametrize(
    ("added", "rounded"),
    [(0, 0), (-4096, 0), (8 * KIB, 0), (12 * KIB, 16 * KIB), (20 * KIB, 16 * KIB), (24 * KIB, 32 * KIB)],
)
def test_rounding_of_measured_scratch(added: int, rounded: int) -> None:
    assert rounded_scratch(added) == rounded


HEAVY = """g (float[2,16,32,32] x, float[16,32,3,3] w, float[64,32,3,3] v, bool[2,32,32,32] c, int64[4096] i,
           float[4096] u, float[65536] flat, float[256,1000] scores, int64[256] labels)
    => (float loss, float[2,32,32,32] o, float[65536] s, float[2,64,4,4] q, float[2,16,32,32] m)
    {
        t = ConvTranspose<pads=[1,1,1,1]>(x, w)
        o = Where(c, t, t)
        s = ScatterElements<axis=0, reduction="add">(flat, i, u)
        q = Conv<strides=[8,8]>(o, v)
        m = Softmax<axis=1>(x)
        loss = SoftmaxCrossEntropyLoss<reduction="mean">(scores, labels)
    }"""


def test_estimates_cover_what_is_measured(tmp_path: Path) -> None:
    if reason := missing_feature():
        pytest.skip(f"scratch cannot be measured: {reason}")
    graph = load_text(tmp_path, HEAVY)
    profile = profile_graph(graph, Device())
    assert profile.workspace == "measured"
    measured = {node.id: node.workspace_bytes for node in profile.nodes}
    estimated = {node.id: estimate_workspace(OpView(graph, node)) for node in graph.nodes}
    assert {name for name in measured if measured[name] > estimated[name]} == set()
    # The same bytes on each machine: a kernel's scratch hangs on shapes.
    assert measured["t"] == 32 * 9 * 1024 * 4
    assert measured["o"] == 2 * 32 * 32 * 32 * 2 * 4
    assert measured["s"] == 4096 * 8
    assert measured["m"] == 2 * 16 * 1024 * 2 * 4
    assert all(size % GRANULARITY_BYTES == 0 for size in measured.values())
