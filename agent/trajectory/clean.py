"""Clean data before it leaves the machine: replace secrets, and values that a strict JSON parser rejects."""

from __future__ import annotations

import math
from typing import Any

from m3agent.agent.context.secrets import redact

DEEPEST = 64
"""Levels of nesting that are kept: far more than a call's arguments have, far fewer than overflow a parser's stack."""


def clean(value: Any, depth: int = 0) -> Any:
    """Copy a JSON value: markers replace secrets, escapes replace lone surrogates, strings replace NaN and infinity.

    Args:
        value: The JSON value.
        depth: Levels of nesting above `value`.
    """
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
    """Return a text that UTF-8 can encode, with secrets replaced."""
    return redact(text.encode("utf-8", "backslashreplace").decode(), "").text
