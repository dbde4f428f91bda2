"""Format tables as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

LEAST = 20
"""The fewest columns in which text wraps."""


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines with aligned columns. All rows must have the same number of cells."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "".join(line.rstrip() + "\n" for line in lines)


def fitting(rows: Sequence[Sequence[str]], width: int, dropped: Sequence[str]) -> tuple[str, list[str]]:
    """Return rows as aligned lines that fit a terminal, and the heads of the columns that were left out.

    Args:
        rows: The rows, the first of them the head. All must have the same number of cells.
        width: Columns of the terminal; 0 for no terminal, which gets all of the table.
        dropped: Heads of the columns to leave out until the lines fit, the least important first. Lines that are too
            long without them are cut.
    """
    shown = list(range(len(rows[0])))
    order = [rows[0].index(head) for head in dropped]
    while True:
        text = columns([[row[at] for at in shown] for row in rows])
        lines = text.splitlines()
        if not width or max(map(len, lines)) <= width:
            break
        if not order:
            text = "".join(f"{line if len(line) <= width else line[: width - 1] + '…'}\n" for line in lines)
            break
        shown.remove(order.pop(0))
    return text, [head for at, head in enumerate(rows[0]) if at not in shown]


def wrapping(rows: Sequence[Sequence[str]], width: int) -> str:
    """Return rows as aligned lines; on a terminal of `width` columns, if it is not 0, the last column wraps."""
    return fitting_wrapped(rows, width, ())[0]


def fitting_wrapped(
    rows: Sequence[Sequence[str]], width: int, dropped: Sequence[str]
) -> tuple[str, list[str]]:
    """Return rows as aligned lines, and the heads of the columns that were left out; on a terminal, the last column wraps.

    Args:
        rows: The rows, the first of them the head. All must have the same number of cells.
        width: Columns of the terminal; 0 for no terminal.
        dropped: Heads of the columns to leave out, in this order, until the last column has room.
    """
    shown = list(range(len(rows[0])))
    order = [rows[0].index(head) for head in dropped]
    while True:
        kept = [[row[at] for at in shown] for row in rows]
        before = sum(max(map(len, column)) + 2 for column in list(zip(*kept, strict=True))[:-1])
        longest = max(len(row[-1]) for row in kept)
        if not width or not order or before + min(longest, LEAST) <= width:
            break
        shown.remove(order.pop(0))
    lines: list[list[str]] = []
    for *cells, last in kept:
        first, *below = wrapped(last, width - before)
        lines += [[*cells, first], *([*[""] * len(cells), line] for line in below)]
    return columns(lines), [head for at, head in enumerate(rows[0]) if at not in shown]


def wrapped(text: str, room: int) -> list[str]:
    """Return a text as lines that fit, or as it is if there is little room.

    Args:
        room: Columns for the text; less than `LEAST` also means no terminal.
    """
    if room < LEAST:
        return [text]
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
