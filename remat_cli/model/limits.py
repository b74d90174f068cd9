"""IR and opset versions that the installed onnxruntime reads."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import onnx

from remat_cli.errors import ModelError
from remat_cli.ort_session import Device, make_session

# Every onnxruntime that remat installs with (1.23 and later) reads these, so most files need no question.
_SURE_IR, _SURE_OPSET, _SURE_ML = 10, 21, 3
_ML = "ai.onnx.ml"
# With ALLOW_RELEASED_ONNX_OPSET_ONLY=0 in the environment onnxruntime takes any opset.
_MOST = 99


def check_versions(model: onnx.ModelProto, path: Path) -> None:
    """Raise ModelError when the file is newer than what the installed onnxruntime reads, or states no opset."""
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if not model.opset_import:
        raise ModelError(
            f"{path}: has no opset_import, so its operators have no version",
            "export the model again; every ONNX file since IR 3 states its opset",
        )
    if not opset and any(node.domain in ("", "ai.onnx") for node in model.graph.node):
        raise ModelError(f"{path}: uses standard ONNX operators, but its opset_import has no version for them")
    _check_ml(model, path)
    if model.ir_version <= _SURE_IR and opset <= _SURE_OPSET:
        return
    max_ir, max_opset = runtime_limits()
    if model.ir_version > max_ir or opset > max_opset:
        raise ModelError(
            f"{path}: file is IR {model.ir_version} / opset {opset}, "
            f"installed onnxruntime takes IR <= {max_ir}, opset <= {max_opset}",
            f"export for opset {max_opset} with IR version {max_ir}, or install a newer onnxruntime",
        )


def _check_ml(model: onnx.ModelProto, path: Path) -> None:
    version = max((entry.version for entry in model.opset_import if entry.domain == _ML), default=0)
    if version > _SURE_ML and not _loads(_SURE_IR, _SURE_OPSET, version):
        raise ModelError(
            f"{path}: file uses {_ML} version {version}, which is newer than the installed onnxruntime takes",
            f"export for an older {_ML}, or install a newer onnxruntime",
        )


@cache
def runtime_limits() -> tuple[int, int]:
    """The largest IR version and the largest default-domain opset that the installed onnxruntime takes.

    Found by offering it a trivial model of ever newer versions, since it has no call that says.
    """
    max_ir = _SURE_IR
    while max_ir < _MOST and _loads(max_ir + 1, _SURE_OPSET):
        max_ir += 1
    max_opset = _SURE_OPSET
    while max_opset < _MOST and _loads(_SURE_IR, max_opset + 1):
        max_opset += 1
    return max_ir, max_opset


def _loads(ir_version: int, opset: int, ml_version: int = _SURE_ML) -> bool:
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(_ML, ml_version)]
    )
    model.ir_version = ir_version
    try:
        make_session(model.SerializeToString(), Device())
    except Exception as error:
        # onnxruntime raises classes of its own, and names the version when that is the reason.
        if re.search(r"(?i)opset|ir version", str(error)):
            return False
        raise
    return True
