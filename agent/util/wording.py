"""Say numbers of things and lists of names in a sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def count(items: Collection[object], noun: str) -> str:
    """Return the number of items with its noun: `1 test`, `3 tests`."""
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def listed(names: Sequence[str], most: int = 1) -> str:
    """Return the first names, and how many more there are: `a, b and 3 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
