"""Sizes that users write, and what they mean."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.errors import InputError
from remat_cli.units import MAX_BYTES, Percent, align, format_bytes, format_ns, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8_000_000_000),
        ("8GiB", 8_589_934_592),
        ("8gb", 8_000_000_000),
        ("8gib", 8_589_934_592),
        ("8 GB", 8_000_000_000),
        (" 8GB ", 8_000_000_000),
        ("1.5GB", 1_500_000_000),
        ("0.5KiB", 512),
        ("500MB", 500_000_000),
        ("123456789", 123_456_789),
        ("1B", 1),
        ("1.9B", 1),
        ("1TiB", 2**40),
        ("0.1GB", 100_000_000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "share"),
    [("80%", Fraction(4, 5)), ("33.3%", Fraction(333, 1000)), ("60 %", Fraction(3, 5)), ("150%", Fraction(3, 2))],
)
def test_percents(text: str, share: Fraction) -> None:
    assert parse_size(text) == Percent(share)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("8G", "write 8GB (powers of 1000) or 8GiB (of 1024)"),
        ("8k", "write 8KB (powers of 1000) or 8KiB (of 1024)"),
        ("8Gb", "write 8GB for bytes"),
        ("0", "write a size"),
        ("0%", "write a size"),
        ("0.0GB", "write a size"),
        ("-1GB", "write a size"),
        ("+1GB", "write a size"),
        ("", "write a size"),
        ("GB", "write a size"),
        ("8GBB", "write a size"),
        ("8 G B", "write a size"),
        ("8,000MB", "write a size"),
        ("8_000MB", "write a size"),
        ("8e9", "write a size"),
        ("1e400GB", "write a size"),
        ("nan", "write a size"),
        ("inf", "write a size"),
        ("0x10GB", "write a size"),
        ("８GB", "write a size"),
        ("٣GB", "write a size"),
        ("9999999999GB", "write a size"),
        ("0.1B", "write a size"),
        ("1.5", "write a size"),
        (".5GB", "write a size"),
        ("8GB\n", "write a size"),
    ],
)
def test_refused_sizes_quote_the_value_and_say_the_fix(text: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_size(text)
    assert repr(text) in caught.value.message
    assert hint in (caught.value.hint or "")
    assert caught.value.exit_code == 2


def test_the_largest_size() -> None:
    assert parse_size(str(MAX_BYTES)) == MAX_BYTES
    with pytest.raises(InputError):
        parse_size(str(MAX_BYTES + 1))


@given(st.text(max_size=12))
def test_any_text_gives_a_positive_size_or_a_refusal(text: str) -> None:
    try:
        size = parse_size(text)
    except InputError:
        return
    assert size.share > 0 if isinstance(size, Percent) else 0 < size <= MAX_BYTES


def test_a_percent_is_rounded_down() -> None:
    assert Percent(Fraction(1, 3)).of(100) == 33
    assert Percent(Fraction(3, 5)).of(100) == 60


def test_formats() -> None:
    assert [format_bytes(n) for n in (0, 999, 1000, 104_300_000, 8 * 10**9, 2 * 10**12)] == [
        "0 B", "999 B", "1.0 KB", "104.3 MB", "8.0 GB", "2.0 TB",
    ]  # fmt: skip
    assert [format_ns(n) for n in (0, 999, 183_000, 12_400_000, 1_200_000_000)] == [
        "0 ns", "999 ns", "183.0 us", "12.4 ms", "1.20 s",
    ]  # fmt: skip


def test_align() -> None:
    assert [align(n, 64) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]
    assert align(7, 1) == 7
