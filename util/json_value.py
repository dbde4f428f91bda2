"""Take parts of JSON (or TOML) that somebody else wrote, of which any part may be missing or of another type."""

from __future__ import annotations

from typing import Any


def mapping(value: object, *path: str) -> dict[str, Any]:
    """Return the object at `path` below a value; empty if it is missing or something else."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    """Return the value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def mappings(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; empty if the value is no list."""
    return [item for item in items(value) if isinstance(item, dict)]
