"""Say how many there are, and name the first of them."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: float, one: str, several: str = "") -> str:
    """Return a number with its noun: `1 file`, `1,200 files`. `several` is for nouns with another plural."""
    return f"{number:,.0f} {one if number == 1 else several or f'{one}s'}"


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many more there are: `a, b and 3 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
