"""Calibration: a device file of this machine, made of measurements."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from remat_cli.errors import ModelError
from remat_cli.ort_session import Device
from remat_cli.profile import calibrate as module
from remat_cli.profile.calibrate import calibrate
from remat_cli.profile.devices import dump_device_model, parse_device_model
from remat_cli.reporter import Reporter


class Notes(Reporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._SIZES, "cpu", module._Sizes(matmul=64, image=(1, 8, 8), elements=2**12))


def test_a_calibrated_cpu(quick: None) -> None:
    notes = Notes()
    model = calibrate(Device(), 1, notes)
    assert model.spec is not None
    spec = model.spec
    assert (model.file, spec.kind, spec.efficiency_percent.matmul) == ("cpu.yaml", "cpu", 100)
    # Any machine that runs this does more than 10 million operations and 10 MB a second, and less than 100 T.
    assert 1e7 < spec.peak_flops_per_s.fp32 < 1e14
    assert 1e7 < spec.memory_bandwidth_bytes_per_s < 1e14
    assert 0 < spec.launch_overhead_ns < 10**7
    assert spec.peak_flops_per_s.bf16 is None or not any(note.startswith("bf16") for note in notes.notes)
    assert parse_device_model(dump_device_model(spec), model.file) == model


def test_types_without_a_kernel_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: Iterator[int] = iter(range(10**12, 10**13, 10**12))

    def fake(nodes, device, threads, reporter):  # type: ignore[no-untyped-def]
        if nodes[0].inputs[0][0] == module.TensorProto.BFLOAT16:
            raise ModelError("MatMul: no kernel for bfloat16")
        rate = next(rates)
        return {node.name: module._Rate(5_000, rate // 2 if node.name == "conv" else rate, 10**10) for node in nodes}

    monkeypatch.setattr(module, "_rates", fake)
    notes = Notes()
    spec = calibrate(Device(), 1, notes).spec
    assert spec is not None
    assert (spec.peak_flops_per_s.fp32, spec.peak_flops_per_s.fp64) == (1e12, 2e12)
    assert (spec.peak_flops_per_s.fp16, spec.peak_flops_per_s.bf16, spec.peak_flops_per_s.int8) == (3e12, None, 4e12)
    assert (spec.efficiency_percent.conv, spec.launch_overhead_ns) == (50, 5000)
    assert notes.notes == ["bf16 is left out: MatMul: no kernel for bfloat16"]
