"""Device models: what the analytic cost model knows of a processor, read from small YAML files.

Built-in names are the files of ``configs/devices`` and `unit`, where every node costs 1 ns and takes no
workspace, as in most papers on rematerialization.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from remat_cli.errors import InputError
from remat_cli.strict_json import read_at_most
from remat_cli.strict_yaml import MAX_BYTES, convert_yaml, load_yaml

UNIT = "unit"
_PACKAGE = Path(__file__).parent.parent

Rate = Annotated[float, msgspec.Meta(ge=1, le=1e21)]
Percent = Annotated[int, msgspec.Meta(ge=1, le=100)]


class PeakRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Peak arithmetic per element type: floating-point operations a second (integer operations for int8), without
    sparsity. A multiply-add counts as two. Types that are left out run at the rate of fp32."""

    fp32: Rate
    fp64: Rate | None = None
    fp16: Rate | None = None
    bf16: Rate | None = None
    int8: Rate | None = None

    def of(self, kind: str) -> int:
        """Operations a second for ``fp32``, ``fp16`` and so on."""
        return int(getattr(self, kind, None) or self.fp32)


class Efficiency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What kernels reach of the peak rate, in percent: dense products, convolutions, all others."""

    matmul: Percent
    conv: Percent
    other: Percent


class DeviceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a device file. `source`: where the figures come from."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    kind: Literal["cpu", "cuda"]
    source: str
    memory_bytes: Rate
    memory_bandwidth_bytes_per_s: Rate
    peak_flops_per_s: PeakRates
    efficiency_percent: Efficiency
    launch_overhead_ns: Annotated[int, msgspec.Meta(ge=0, le=10**9)]


@dataclass(frozen=True)
class DeviceModel:
    """A device model and the file it came from. `file`: bare file name; `spec` is None for `unit`."""

    file: str
    sha256: str
    spec: DeviceSpec | None

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        return self.spec.kind if self.spec else "cpu"


def load_device_model(name: str | Path) -> DeviceModel:
    """The device model with the built-in name, or in the YAML file at that path (anything with a dot or slash).

    Raises InputError when there is no such name or file, and FileFormatError with the line for unknown, repeated or
    missing keys and for values of the wrong type.
    """
    text = str(name)
    if text == UNIT:
        return DeviceModel(UNIT, hashlib.sha256(UNIT.encode()).hexdigest(), None)
    path = Path(name)
    if not set(text) & set("./\\"):
        if text not in built_in_names():
            known = ", ".join([*built_in_names(), UNIT])
            raise InputError(f"there is no device model named {text!r}", f"known names: {known}; or give a .yaml file")
        path = _folder() / f"{text}.yaml"
    return parse_device_model(read_at_most(path, MAX_BYTES), path.name)


def parse_device_model(data: bytes, file: str) -> DeviceModel:
    """The device model in the YAML text `data`; `file` names it in messages and plans."""
    document = load_yaml(data, file)
    spec = convert_yaml(document, DeviceSpec)
    return DeviceModel(file, hashlib.sha256(data).hexdigest(), spec)


def dump_device_model(spec: DeviceSpec) -> bytes:
    """The YAML text of a device file."""
    peaks = {name: value for name in spec.peak_flops_per_s.__struct_fields__
             if (value := getattr(spec.peak_flops_per_s, name)) is not None}  # fmt: skip
    efficiency = msgspec.to_builtins(spec.efficiency_percent)
    lines = [
        f"name: {_quoted(spec.name)}",
        f"kind: {spec.kind}",
        f"source: {_quoted(spec.source)}",
        f"memory_bytes: {int(spec.memory_bytes)}",
        f"memory_bandwidth_bytes_per_s: {_rate(spec.memory_bandwidth_bytes_per_s)}",
        "peak_flops_per_s:",
        *(f"  {name}: {_rate(value)}" for name, value in peaks.items()),
        "efficiency_percent:",
        *(f"  {name}: {value}" for name, value in efficiency.items()),
        f"launch_overhead_ns: {spec.launch_overhead_ns}",
    ]
    return ("\n".join(lines) + "\n").encode()


def built_in_names() -> list[str]:
    """The names of the device files that come with remat, sorted."""
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def _folder() -> Path:
    """An installed package holds the device files inside itself; in a checkout they lie beside the package."""
    installed = _PACKAGE / "configs" / "devices"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs" / "devices"


def _rate(value: float) -> str:
    """Such as 19.5e12: the exponent in steps of three, as datasheets have tera and giga."""
    whole = int(value)
    for exponent in (12, 9, 6):
        if whole >= 10**exponent:
            digits, rest = divmod(whole, 10**exponent)
            fraction = f"{rest:0{exponent}d}".rstrip("0")
            return f"{digits}.{fraction}e{exponent}" if fraction else f"{digits}e{exponent}"
    return str(whole)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
