"""Device files: the built-in ones, and what is refused."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.errors import FileFormatError, InputError
from remat_cli.profile.devices import (
    DeviceSpec,
    Efficiency,
    PeakRates,
    built_in_names,
    dump_device_model,
    load_device_model,
    parse_device_model,
)

CHECKOUT_DEVICES = Path(__file__).parents[2] / "configs" / "devices"
GOOD = b"""name: toy
kind: cuda
source: "a test"
memory_bytes: 8e9
memory_bandwidth_bytes_per_s: 100e9
peak_flops_per_s:
  fp32: 1e12
efficiency_percent: {matmul: 50, conv: 40, other: 10}
launch_overhead_ns: 1000
"""


def test_every_file_in_the_checkout_is_built_in_and_valid() -> None:
    assert built_in_names() == sorted(path.stem for path in CHECKOUT_DEVICES.glob("*.yaml"))
    assert built_in_names() == ["a100-80gb", "cpu", "h100-80gb", "h200", "rtx4090", "v100-16gb"]
    for name in built_in_names():
        model = load_device_model(name)
        assert model.spec is not None
        assert model.spec.name == name
        assert model.kind == ("cpu" if name == "cpu" else "cuda")
        assert model.file == f"{name}.yaml"
        assert model.sha256 == hashlib.sha256((CHECKOUT_DEVICES / model.file).read_bytes()).hexdigest()


def test_figures_of_the_datasheets() -> None:
    spec = load_device_model("a100-80gb").spec
    assert spec is not None
    assert spec.peak_flops_per_s == PeakRates(fp32=19.5e12, fp64=9.7e12, fp16=312e12, bf16=312e12, int8=624e12)
    assert (spec.memory_bytes, spec.memory_bandwidth_bytes_per_s) == (80e9, 2039e9)
    v100 = load_device_model("v100-16gb").spec
    assert v100 is not None
    assert v100.peak_flops_per_s.of("bf16") == 15_700_000_000_000  # has none: fp32's


def test_unit_has_no_figures() -> None:
    model = load_device_model("unit")
    assert (model.file, model.spec, model.kind) == ("unit", None, "cpu")


def test_a_path_is_read_from_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(GOOD)
    model = load_device_model(path)
    assert (model.file, model.kind, model.sha256) == ("mine.yaml", "cuda", hashlib.sha256(GOOD).hexdigest())


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        (b"kind: cuda", b"kind: tpu", "line 2", "kind: "),
        (b"fp32: 1e12", b"fp33: 1e12", "line 7", "peak_flops_per_s.fp33: unknown key"),
        (b"fp32: 1e12", b"fp16: 1e12", "line 6", "missing required field `fp32`"),
        (b"fp32: 1e12", b"fp32: fast", "line 7", "peak_flops_per_s.fp32: expected `float`"),
        (b"fp32: 1e12", b"fp32: -1", "line 7", "peak_flops_per_s.fp32: expected `float` >= 1"),
        (b"other: 10", b"other: 101", "line 8", "efficiency_percent.other: expected `int` <= 100"),
        (b"launch_overhead_ns: 1000", b"launch_overhead_ns: 1.5", "line 9", "launch_overhead_ns: expected `int`"),
        (b"launch_overhead_ns: 1000", b"launch_overhead_ns: 1\nname: b", "line 10", "'name' is given twice"),
        (b"launch_overhead_ns: 1000", b"launch: 1", "line 9", "launch: unknown key"),
        (b"8e9", b"8_000_000_000", "line 4", "memory_bytes: 8_000_000_000 is doubtful"),
        (b"name: toy", b"name: !!str toy", "line 1, column 7", "tag"),
        (GOOD, b"", "line 1", "missing required field"),
    ],
)
def test_faults_are_named_by_key_and_line(old: bytes, new: bytes, where: str, message: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        parse_device_model(GOOD.replace(old, new), "toy.yaml")
    assert caught.value.where == where
    assert message in caught.value.message


def test_names_and_paths_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_device_model("h300")
    assert "h200" in (caught.value.hint or "")
    with pytest.raises(InputError, match="No such file"):
        load_device_model(tmp_path / "missing.yaml")


RATES = st.integers(1, 10**18).map(float)


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f\x85\xa0"), min_size=1),
       RATES, RATES, st.none() | RATES, st.integers(0, 10**9))  # fmt: skip
def test_what_is_written_is_read_back(
    name: str, fp32: float, bandwidth: float, fp16: float | None, launch: int
) -> None:
    name = "".join(letter for letter in name if letter.isprintable()) or "x"
    spec = DeviceSpec(
        name, "cpu", f"by {name}", 1e9, bandwidth, PeakRates(fp32=fp32, fp16=fp16), Efficiency(1, 50, 100), launch
    )
    assert parse_device_model(dump_device_model(spec), "f").spec == spec


def test_installed_packages_hold_the_device_files(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    checkout = Path(__file__).parents[2]
    build = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run([*build, "build_py", "--build-lib", str(tmp_path)], cwd=checkout, check=True, capture_output=True)
    installed = tmp_path / "remat_cli"
    assert sorted(path.stem for path in (installed / "configs" / "devices").glob("*.yaml")) == built_in_names()
    assert (installed / "profile" / "profile.schema.json").exists()
    names = "from remat_cli.profile import devices as d; print(d.__file__, *d.built_in_names())"
    run = subprocess.run([sys.executable, "-c", names], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(installed / "profile" / "devices.py"), *built_in_names()]
