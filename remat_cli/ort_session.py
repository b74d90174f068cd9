"""The one place that makes onnxruntime sessions, and the devices they run on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from remat_cli.errors import DeviceError, InputError

if TYPE_CHECKING:
    import onnxruntime as ort

Optimize = Literal["none", "basic", "extended", "all"]
_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


@dataclass(frozen=True)
class Device:
    """`cpu`, or the CUDA device `index`. `alignment`: storage sizes and offsets are multiples of it, in bytes."""

    kind: Literal["cpu", "cuda"] = "cpu"
    index: int = 0

    @property
    def name(self) -> str:
        """As users write it: ``cpu`` or ``cuda:0``."""
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    @property
    def alignment(self) -> int:
        return 64 if self.kind == "cpu" else 256


def parse_device(text: str) -> Device:
    """``cpu``, ``cuda`` or ``cuda:N``; InputError otherwise."""
    if text == "cpu":
        return Device()
    if match := re.fullmatch(r"cuda(?::([0-9]{1,3}))?", text, re.ASCII):
        return Device("cuda", int(match[1] or 0))
    raise InputError(f"{text!r} is not a device", "write cpu, cuda or cuda:N")


@cache
def _runtime() -> Any:
    """onnxruntime, quiet and loaded on first use."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    return ort


@cache
def use_global_threads(threads: int) -> None:
    """One pool for all sessions of this process; the first size stays, as onnxruntime allows no other."""
    _runtime().set_global_thread_pool_sizes(threads, 1)


@cache
def register_scratch_arena() -> None:
    """One scratch allocator for all sessions of this process that ask for `shared_scratch`; it grows by exactly what
    is asked, and keeps what it has."""
    ort = _runtime()
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    same_as_requested = {"arena_extend_strategy": 1, "max_dead_bytes_per_chunk": 256}
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg(same_as_requested))


def make_session(
    model: bytes | Path,
    device: Device,
    *,
    threads: int = 1,
    optimize: Optimize = "none",
    shared_scratch: bool = False,
    memory_arena: bool = True,
    prepack: bool = True,
    config: Sequence[tuple[str, str]] = (),
) -> ort.InferenceSession:
    """A sequential session on `device`.

    `threads` > 1 uses the process' one pool (`use_global_threads`): a pool a session would be far slower.
    `shared_scratch`: kernels take scratch from the allocator that the process registered, not from one a session.
    `memory_arena`: False makes kernels take scratch straight from malloc, which lets it be measured.
    Raises DeviceError when the provider is not really there; lets onnxruntime's own errors about the model pass.
    """
    ort = _runtime()
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVELS[optimize])
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = memory_arena
    if threads > 1:
        use_global_threads(threads)
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
    if shared_scratch:
        options.add_session_config_entry("session.use_env_allocators", "1")
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    for key, value in config:
        options.add_session_config_entry(key, value)
    provider = _PROVIDERS[device.kind]
    check_provider(device)
    source = model if isinstance(model, bytes) else str(model)
    session = ort.InferenceSession(source, options, providers=_provider_options(device))
    if provider not in session.get_providers():
        raise DeviceError(
            f"{device.name}: onnxruntime did not start {provider} and fell back to {session.get_providers()[0]}",
            "run `remat doctor` to see which CUDA libraries are missing",
        )
    return session


def check_provider(device: Device) -> None:
    """DeviceError when onnxruntime has no provider for `device` at all."""
    ort = _runtime()
    provider = _PROVIDERS[device.kind]
    if provider not in ort.get_available_providers():
        raise DeviceError(
            f"{device.name}: this onnxruntime has no {provider}",
            "install onnxruntime-gpu (pip install 'remat[cuda]'), or use --device cpu",
        )


def _provider_options(device: Device) -> list[Any]:
    if device.kind == "cpu":
        return ["CPUExecutionProvider"]
    cuda = {
        "device_id": str(device.index),
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
        "use_tf32": "0",
    }
    return [("CUDAExecutionProvider", cuda), "CPUExecutionProvider"]


def versions() -> dict[str, str]:
    """Versions that profiles record."""
    return {"onnxruntime": str(_runtime().__version__)}
