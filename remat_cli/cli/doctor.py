"""``remat doctor``: versions, devices that really work, CUDA libraries, memory, and how to mend what is missing."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from remat_cli import __version__
from remat_cli.cli.options import RematCommand, common_options, device_option
from remat_cli.errors import DeviceError, RematError
from remat_cli.ort_session import Device
from remat_cli.units import format_bytes

if TYPE_CHECKING:
    from remat_cli.cli.console import Terminal

_PACKAGES = ("click", "msgspec", "numpy", "onnx", "ortools", "rich")
_MEND_CUDA = "pip install 'remat[cuda]'"


@dataclass(frozen=True)
class DeviceState:
    """`works`: a tiny model ran there. `free_bytes`: memory free now, or None. `reason`, `hint`: when it fails."""

    device: str
    works: bool
    free_bytes: int | None = None
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Library:
    """A shared library that CUDA needs. `found`: "system", a folder, or "" when it is missing."""

    name: str
    found: str
    hint: str


@click.command(
    "doctor",
    cls=RematCommand,
    examples=("remat doctor", "remat doctor --device cpu --format json"),
)
@device_option
@common_options()
def command(device: Device | None, format: str) -> None:
    """Show versions, devices that really work, and memory; say how to mend what is missing.

    Ends with status 5 when --device (by default the CPU) does not work.
    """
    from remat_cli.cli.console import Terminal

    terminal = Terminal(json_output=format == "json")
    asked = device or Device()
    devices = [Device(), asked if asked.kind == "cuda" else Device("cuda")]
    states = [probe(each) for each in devices]
    libraries = cuda_libraries()
    if terminal.json_output:
        terminal.json(
            {
                "versions": versions(),
                "devices": [asdict(state) for state in states],
                "cuda_libraries": [asdict(library) for library in libraries],
            }
        )
    else:
        _print(terminal, states, libraries)
    state = next(s for s in states if s.device == asked.name)
    if not state.works:
        raise DeviceError(state.reason, state.hint or None)


def versions() -> dict[str, str]:
    """Versions of what a plan or a measurement may depend on."""
    found = {"remat": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    import onnxruntime
    from onnxruntime.capi import build_and_package_info as build

    cuda = getattr(build, "cuda_version", "")
    found["onnxruntime"] = str(onnxruntime.__version__) + (f" (CUDA {cuda})" if cuda else " (no CUDA)")
    return dict(sorted(found.items()))


def probe(device: Device) -> DeviceState:
    """Run one Add on `device` through a session like those of the engines."""
    import numpy as np

    from remat_cli.device_memory import free_bytes
    from remat_cli.ort_session import make_session

    try:
        free: int | None = free_bytes(device)
    except RematError:
        free = None
    try:
        session = make_session(_tiny_model(), device)
        (answer,) = session.run(None, {"x": np.array([1.0, 2.0], np.float32)})
    except RematError as fault:
        return DeviceState(device.name, False, free, fault.message, _mend(device))
    except Exception as fault:  # onnxruntime raises its own classes, which share no base with a name
        reason = str(fault).splitlines()[0] if str(fault) else type(fault).__name__
        return DeviceState(device.name, False, free, f"{device.name}: {reason}", _mend(device))
    if answer.tolist() != [2.0, 4.0]:
        reason = f"{device.name}: 1 + 1 and 2 + 2 came out as {answer.tolist()}"
        return DeviceState(device.name, False, free, reason, _mend(device))
    return DeviceState(device.name, True, free)


def _mend(device: Device) -> str:
    if device.kind == "cpu":
        return "pip install --force-reinstall onnxruntime-gpu"
    if not Path("/proc/driver/nvidia/version").exists():
        return "this machine has no NVIDIA driver: install it, or use --device cpu"
    return f"{_MEND_CUDA}, then see the CUDA libraries that `remat doctor` lists as missing"


def _tiny_model() -> bytes:
    from onnx import TensorProto, helper

    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "doctor", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def cuda_libraries() -> list[Library]:
    """Shared libraries that the CUDA provider of the installed onnxruntime loads; none for a CPU-only build."""
    from onnxruntime.capi import build_and_package_info as build

    major = str(getattr(build, "cuda_version", "")).partition(".")[0]
    if not major or os.name != "posix":
        return []
    fft = {"12": "11", "13": "12"}.get(major, major)
    names = ("cudart", major), ("cublas", major), ("cublasLt", major), ("cufft", fft), ("cudnn", "9")
    found = [Library("libcuda.so.1", _locate("libcuda.so.1"), "install the NVIDIA driver")]
    for name, number in names:
        file = f"lib{name}.so.{number}"
        found.append(Library(file, _locate(file), _MEND_CUDA))
    return found


def _locate(file: str) -> str:
    """Where the loader finds `file`: "system", the folder of a pip package, or "" for nowhere."""
    try:
        ctypes.CDLL(file)
        return "system"
    except OSError:
        pass
    import onnxruntime

    packages = Path(onnxruntime.__file__).parent.parent
    found = sorted(packages.glob(f"nvidia/**/{file}"))
    return str(found[0].parent.relative_to(packages)) if found else ""


def _print(terminal: Terminal, states: Sequence[DeviceState], libraries: Sequence[Library]) -> None:
    terminal.table(("package", "version"), list(versions().items()))
    terminal.line()
    rows = []
    for state in states:
        free = format_bytes(state.free_bytes) if state.free_bytes is not None else "unknown"
        rows.append((state.device, "works" if state.works else "does not work", free))
    terminal.table(("device", "state", "free memory"), rows, right=("free memory",))
    if libraries:
        terminal.line()
        terminal.table(("CUDA library", "found"), [(lib.name, lib.found or "missing") for lib in libraries])
    for state in states:
        if not state.works:
            terminal.line()
            terminal.line(state.reason)
            terminal.line(f"  to mend: {state.hint}")
    if any(state.works and state.device.startswith("cuda") for state in states):
        return
    for hint in dict.fromkeys(lib.hint for lib in libraries if not lib.found):
        missing = ", ".join(lib.name for lib in libraries if not lib.found and lib.hint == hint)
        terminal.line(f"  {missing}: {hint}")
