"""Sizes and times: reading what users write, writing what users read.

`8GB` is 8 * 10^9 bytes, `8GiB` is 8 * 2^30, a plain integer is bytes, `60%` is a share of the store-all peak.
Anything ambiguous is refused with the fix, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from remat_cli.errors import InputError

_UNITS = {
    "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?: ?([A-Za-z%]+))?", re.ASCII)
_EXAMPLES = "write a size such as 8GB (8*10^9), 8GiB (8*2^30), 500MB, 123456789 (bytes) or 60% (of the store-all peak)"
# Larger sizes than this are typing mistakes, and would not fit the solvers' 64-bit arithmetic.
MAX_BYTES = 2**60


@dataclass(frozen=True)
class Percent:
    """A share of the store-all peak of activations, as an exact fraction (60% is 3/5)."""

    share: Fraction

    def of(self, peak_bytes: int) -> int:
        """The share of `peak_bytes`, rounded down: a budget is never rounded up."""
        return int(self.share * peak_bytes)


def parse_size(text: str) -> int | Percent:
    """Bytes, or a `Percent`. Raises InputError that quotes `text` and says what to write instead."""
    match = _NUMBER.fullmatch(text.strip(" "))
    if match is None:
        raise InputError(f"{text!r} is not a size", _EXAMPLES)
    value, unit = Fraction(match[1]), match[2]
    if value == 0:
        raise InputError(f"{text!r} is not a size: it must be more than zero", _EXAMPLES)
    if unit == "%":
        return Percent(value / 100)
    size = value * _unit_bytes(text, match[1], unit)
    if size.denominator != 1 and size < 1:
        raise InputError(f"{text!r} is less than one byte", _EXAMPLES)
    if size > MAX_BYTES:
        raise InputError(f"{text!r} is more than {MAX_BYTES} bytes (1 EiB)", _EXAMPLES)
    return int(size)


def _unit_bytes(text: str, number: str, unit: str | None) -> int:
    if unit is None:
        if "." in number:
            raise InputError(f"{text!r} has no unit: bytes are whole numbers", _EXAMPLES)
        return 1
    if unit.endswith("b") and unit[:-1].isupper():
        raise InputError(f"{text!r} reads as bits", f"write {number}{unit[:-1]}B for bytes")
    if unit.upper() in _UNITS:
        return _UNITS[unit.upper()]
    letter = unit.upper()
    if letter in ("K", "M", "G", "T"):
        raise InputError(
            f"{text!r} is ambiguous",
            f"write {number}{letter}B (powers of 1000) or {number}{letter}iB (of 1024)",
        )
    raise InputError(f"{text!r} has an unknown unit {unit!r}", _EXAMPLES)


def format_bytes(size: int) -> str:
    """For people: 104.3 MB. Decimal units, as budgets are mostly written."""
    for unit in ("TB", "GB", "MB", "KB"):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.1f} {unit}"
    return f"{size} B"


def format_ns(duration_ns: int) -> str:
    """For people: 183 us, 12.4 ms, 1.20 s."""
    if duration_ns < 1_000:
        return f"{duration_ns} ns"
    if duration_ns < 1_000_000:
        return f"{duration_ns / 1e3:.1f} us"
    if duration_ns < 1_000_000_000:
        return f"{duration_ns / 1e6:.1f} ms"
    return f"{duration_ns / 1e9:.2f} s"


def align(size: int, alignment: int) -> int:
    """`size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment
