"""What the machine says of its processors."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

from remat_cli.ort_session import Device

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_DEFAULT_PRIVATE_BYTES = 2**20
_DEFAULT_SHARED_BYTES = 2**25
# More than that is several caches of several chips.
_MOST_SHARED_BYTES = 2**27
_NAME_BYTES = 96


def processor_name(device: Device) -> str:
    """The processor's or card's own name; "" where the system does not tell."""
    return _cuda_name(device.index) if device.kind == "cuda" else _cpu_name()


def private_cache_bytes(folder: Path = _CACHES) -> int:
    """Size of the second-level cache of one core, 1 MiB where the system does not tell."""
    return _cache_bytes(folder, "2") or _DEFAULT_PRIVATE_BYTES


def shared_cache_bytes(folder: Path = _CACHES) -> int:
    """Size of the third-level cache, 32 MiB where the system does not tell; at most 128 MiB."""
    return min(_cache_bytes(folder, "3") or _DEFAULT_SHARED_BYTES, _MOST_SHARED_BYTES)


def _cache_bytes(folder: Path, level: str) -> int:
    """0 where the system does not tell."""
    try:
        for index in sorted(folder.glob("index*")):
            if (index / "level").read_text().strip() == level:
                return _size(index / "size")
    except (OSError, ValueError):
        return 0
    return 0


def _size(file: Path) -> int:
    """Such as 1024K."""
    text = file.read_text().strip()
    units = {"K": 2**10, "M": 2**20}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        return platform.processor()
    return platform.processor()


def _cuda_name(index: int) -> str:
    """From NVML, which comes with the driver."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
    if nvml.nvmlInit_v2() != 0:
        return ""
    try:
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
            return ""
        return name.value.decode() if nvml.nvmlDeviceGetName(handle, name, _NAME_BYTES) == 0 else ""
    finally:
        nvml.nvmlShutdown()
