"""Pieces of plain-text reports: names that are safe and short, aligned tables, sparklines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

NAME_WIDTH = 60
_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-:=+*#"


@dataclass(frozen=True)
class Table:
    """Rows of text under column titles. `right`: indices of columns that hold numbers. `left_out`: rows not shown."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    left_out: int = 0


def shown(name: str, width: int = NAME_WIDTH) -> str:
    """`name` for one cell of a table: no control characters, which could drive a terminal, and at most `width` wide.

    The middle is cut, as names of one graph often share their beginning and tell apart by their end.
    """
    text = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in name)
    if len(text) <= width:
        return text
    tail = (width - 3) // 2
    return f"{text[: width - 3 - tail]}...{text[len(text) - tail :]}"


def table_lines(table: Table) -> list[str]:
    """The table as lines of text, title first; nothing when it has no rows."""
    if not table.rows:
        return []
    cells = [table.columns, *table.rows]
    widths = [max(len(row[c]) for row in cells) for c in range(len(table.columns))]
    lines = [table.title]
    for row in cells:
        padded = [
            text.rjust(width) if c in table.right else text.ljust(width)
            for c, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(("  " + "  ".join(padded)).rstrip())
    if table.left_out:
        lines.append(f"  and {table.left_out} more")
    return lines


def sparkline(values: Sequence[int], width: int = 60, *, ascii_only: bool = False) -> str:
    """`values` (>= 0) as at most `width` bars from 0 to their maximum; each bar is the largest of its stretch."""
    bars = _ASCII_BARS if ascii_only else _BARS
    top = max(values, default=0)
    if not values:
        return ""
    columns = min(width, len(values))
    edges = [c * len(values) // columns for c in range(columns + 1)]
    peaks = [max(values[i:j]) for i, j in pairwise(edges)]
    return "".join(bars[(len(bars) - 1) * peak // top if top else 0] for peak in peaks)
