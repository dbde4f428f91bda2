"""Take parts of JSON (or TOML) that somebody else wrote, of which any part may be missing or of another type."""

from __future__ import annotations

import json
from typing import Any


def value_at(value: object, *path: str) -> Any:
    """Return what is at `path`, the names of fields in nested objects; None if it is missing."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None  # checking for Mapping is slower
    return value


def mapping(value: object, *path: str) -> dict[str, Any]:
    """Return the object at `path` below a value; empty if it is missing or something else."""
    inner = value_at(value, *path)
    return inner if isinstance(inner, dict) else {}


def items(value: object, *path: str) -> list[Any]:
    """Return the list at `path` below a value; empty if it is missing or something else."""
    inner = value_at(value, *path)
    return inner if isinstance(inner, list) else []


def mappings(value: object, *path: str) -> list[dict[str, Any]]:
    """Return the objects in the list at `path` below a value; empty if there is no list."""
    return [item for item in items(value, *path) if isinstance(item, dict)]


def strings(value: object, *path: str) -> list[str]:
    """Return the strings in the list at `path` below a value; empty if there is no list."""
    return [item for item in items(value, *path) if isinstance(item, str)]


def json_object(text: str | bytes) -> dict[str, Any]:
    """Return the object that a JSON text holds; empty if it holds something else, or is no JSON."""
    try:
        return mapping(json.loads(text))
    except (ValueError, RecursionError):
        return {}
