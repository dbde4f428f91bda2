"""What leaves the machine: no secrets, and nothing that a strict reader of JSON refuses."""

from __future__ import annotations

import math
from typing import Any

from m3agent.agent.context.secrets import redact

DEEPEST = 64
"""Levels of nesting that are kept: far more than a call's arguments have, far fewer than a reader's stack."""


def clean(value: Any, depth: int = 0) -> Any:
    """A copy of a JSON value with markers in place of secrets, halves of surrogate pairs as escapes and no NaN."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, dict | list | tuple):
        return value
    if depth >= DEEPEST:
        return f"[nested more than {DEEPEST} levels deep]"
    if isinstance(value, dict):
        return {clean_text(str(key)): clean(item, depth + 1) for key, item in value.items()}
    return [clean(item, depth + 1) for item in value]


def clean_text(text: str) -> str:
    """A text as UTF-8 can hold it, without secrets."""
    return redact(text.encode("utf-8", "backslashreplace").decode(), "").text
