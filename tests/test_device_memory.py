"""Free memory of devices: the kernel's own figure, and clear errors where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_cli.device_memory import free_bytes
from remat_cli.errors import DeviceError
from remat_cli.ort_session import Device


def test_cpu_reads_the_available_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       100 kB\nMemFree:   7 kB\nMemAvailable:   42 kB\n")
    assert free_bytes(Device(), meminfo) == 42 * 1024


def test_systems_that_do_not_tell(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="does not say how much memory is free"):
        free_bytes(Device(), tmp_path / "missing")
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\n")
    with pytest.raises(DeviceError, match="has no line MemAvailable"):
        free_bytes(Device(), tmp_path / "meminfo")


def test_cuda_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        raise OSError("not found")

    monkeypatch.setattr("ctypes.CDLL", missing)
    with pytest.raises(DeviceError, match="cuda:1: no NVIDIA driver was found") as error:
        free_bytes(Device("cuda", 1))
    assert error.value.hint is not None
    assert "remat doctor" in error.value.hint
