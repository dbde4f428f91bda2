"""Format tables as text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

Rows = Sequence[Sequence[str]]
LEAST = 20
"""The fewest columns in which text wraps."""


def columns(rows: Rows) -> str:
    """Return rows as lines with aligned columns. All rows must have the same number of cells."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "".join(line.rstrip() + "\n" for line in lines)


def fitting(rows: Rows, width: int, dropped: Sequence[str]) -> tuple[str, list[str]]:
    """Return rows as aligned lines that fit a terminal, and the heads of the columns that were left out.

    Args:
        rows: The rows, the first of them the head. All must have the same number of cells.
        width: Columns of the terminal; 0 for no terminal, which gets all of the table.
        dropped: Heads of the columns to leave out until the lines fit, the least important first. Lines that are too
            long without them are cut.
    """
    kept, left_out = _dropped(
        rows, dropped, lambda kept: not width or max(map(len, columns(kept).splitlines())) <= width
    )
    lines = columns(kept).splitlines()
    cut = (line if not width or len(line) <= width else line[: width - 1] + "…" for line in lines)
    return "".join(f"{line}\n" for line in cut), left_out


def wrapping(rows: Rows, width: int) -> str:
    """Return rows as aligned lines; on a terminal of `width` columns, if it is not 0, the last column wraps."""
    return fitting_wrapped(rows, width, ())[0]


def fitting_wrapped(rows: Rows, width: int, dropped: Sequence[str]) -> tuple[str, list[str]]:
    """Return rows as aligned lines, and the heads of the columns that were left out; on a terminal, the last column wraps.

    Args:
        rows: The rows, the first of them the head. All must have the same number of cells.
        width: Columns of the terminal; 0 for no terminal.
        dropped: Heads of the columns to leave out, in this order, until the last column has room.
    """

    def before(kept: Rows) -> int:
        return sum(max(map(len, column)) + 2 for column in list(zip(*kept, strict=True))[:-1])

    def has_room(kept: Rows) -> bool:
        longest = max(len(row[-1]) for row in kept)
        return not width or before(kept) + min(longest, LEAST) <= width

    kept, left_out = _dropped(rows, dropped, has_room)
    room = width - before(kept)
    lines: list[list[str]] = []
    for *cells, last in kept:
        first, *below = wrapped(last, room)
        lines += [[*cells, first], *([*[""] * len(cells), line] for line in below)]
    return columns(lines), left_out


def without(rows: Rows, head: str) -> list[Sequence[str]]:
    """Return rows without a column, which its head names."""
    at = rows[0].index(head)
    return [(*row[:at], *row[at + 1 :]) for row in rows]


def _dropped(rows: Rows, dropped: Sequence[str], fits: Callable[[Rows], bool]) -> tuple[Rows, list[str]]:
    """Leave out columns, in the order of `dropped`, until the rows fit; return these, and the heads left out."""
    kept, order = rows, list(dropped)
    while not fits(kept) and order:
        kept = without(kept, order.pop(0))
    return kept, [head for head in rows[0] if head not in kept[0]]


def wrapped(text: str, room: int) -> list[str]:
    """Return a text as lines that fit, or as it is if there is little room.

    Args:
        room: Columns for the text; less than `LEAST` also means no terminal.
    """
    if room < LEAST:
        return [text]
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
