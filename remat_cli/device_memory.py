"""How much memory a device has free right now (`--budget auto`, `remat doctor`)."""

from __future__ import annotations

import ctypes
from pathlib import Path

from remat_cli.errors import DeviceError
from remat_cli.ort_session import Device

_MEMINFO = Path("/proc/meminfo")


def free_bytes(device: Device, meminfo: Path = _MEMINFO) -> int:
    """Bytes that new allocations can get. CPU: MemAvailable of the kernel; CUDA: NVML's free memory of the card."""
    if device.kind == "cuda":
        return int(_nvml_memory(device).free)
    return _meminfo_bytes(meminfo, "MemAvailable")


def total_bytes(device: Device, meminfo: Path = _MEMINFO) -> int:
    """Bytes that the device has in all. CPU: MemTotal of the kernel; CUDA: NVML's total of the card."""
    if device.kind == "cuda":
        return int(_nvml_memory(device).total)
    return _meminfo_bytes(meminfo, "MemTotal")


def _meminfo_bytes(meminfo: Path, entry: str) -> int:
    try:
        text = meminfo.read_text()
    except OSError:
        raise DeviceError(
            f"this system does not say how much memory is free (no {meminfo})", "write a size: --budget 8GB"
        ) from None
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name == entry:
            return int(rest.split()[0]) * 1024
    raise DeviceError(f"{meminfo} has no line {entry}", "write a size: --budget 8GB")


class _NvmlMemory(ctypes.Structure):
    """nvmlMemory_t of the NVML API: bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _nvml_memory(device: Device) -> _NvmlMemory:
    hint = "run `remat doctor`, or write a size: --budget 8GB"
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        raise DeviceError(f"{device.name}: no NVIDIA driver was found (libnvidia-ml.so.1 is missing)", hint) from None
    handle, memory = ctypes.c_void_p(), _NvmlMemory()
    if nvml.nvmlInit_v2() != 0:
        raise DeviceError(f"{device.name}: the NVIDIA driver does not answer (nvmlInit failed)", hint)
    try:
        if nvml.nvmlDeviceGetHandleByIndex_v2(device.index, ctypes.byref(handle)) != 0:
            raise DeviceError(f"{device.name}: there is no such device", hint)
        if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0:
            raise DeviceError(f"{device.name}: the driver does not tell its memory", hint)
    finally:
        nvml.nvmlShutdown()
    return memory
