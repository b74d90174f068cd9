"""Local functions become ordinary nodes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
import onnx.inliner

from remat_cli.errors import ModelError
from remat_cli.model.names import quoted
from remat_cli.model.subgraphs import bodies

_Key = tuple[str, str, str]


def inline_functions(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """`model` with every call of a local function replaced by the function's nodes.

    Functions written for another opset than the model's are converted first. Raises ModelError when a function calls
    itself or cannot be converted.
    """
    if not model.functions:
        return model
    functions = {_key(f.domain, f.name, f.overload): f for f in model.functions}
    _refuse_recursion(functions, path)
    _import_domains(model)
    for convert in (False, True):
        try:
            result: onnx.ModelProto = onnx.inliner.inline_local_functions(model, convert)
        except Exception as error:
            # The inliner throws plain RuntimeErrors and its own classes from C++.
            raise ModelError(f"{path}: its local functions cannot be inlined ({error})") from None
        left = [key for key in _calls(result.graph.node) if key in functions]
        if not left:
            return result
    raise ModelError(
        f"{path}: local function {quoted(':'.join(left[0][:2]))} is for another opset and cannot be converted",
        "export the model with one opset",
    )


def _import_domains(model: onnx.ModelProto) -> None:
    """Import the domains that only functions import: the inliner leaves calls of such functions as they are."""
    present = {entry.domain for entry in model.opset_import}
    wanted: dict[str, int] = {}
    for function in model.functions:
        for entry in function.opset_import:
            wanted[entry.domain] = max(entry.version, wanted.get(entry.domain, 0))
    for domain, version in wanted.items():
        if domain not in present:
            model.opset_import.add(domain=domain, version=version)


def _key(domain: str, name: str, overload: str) -> _Key:
    return ("" if domain == "ai.onnx" else domain), name, overload


def _calls(nodes: Iterable[onnx.NodeProto]) -> dict[_Key, None]:
    found: dict[_Key, None] = {}
    for node in nodes:
        found[_key(node.domain, node.op_type, node.overload)] = None
        for body in bodies(node):
            found.update(_calls(body.node))
    return found


def _refuse_recursion(functions: dict[_Key, onnx.FunctionProto], path: Path) -> None:
    """The inliner would never end on functions that call each other in a circle."""
    calls = {key: [callee for callee in _calls(f.node) if callee in functions] for key, f in functions.items()}
    done: set[_Key] = set()
    while True:
        ready = [key for key, callees in calls.items() if key not in done and done.issuperset(callees)]
        if not ready:
            break
        done.update(ready)
    if left := [key for key in calls if key not in done]:
        raise ModelError(
            f"{path}: local function {quoted(':'.join(left[0][:2]))} calls itself, which ONNX does not allow"
        )
