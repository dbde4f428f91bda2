"""Texts of others on one line of a terminal: what a repository or a model wrote must not drive it."""

from __future__ import annotations

import re

UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
"""Control characters, lone surrogates, what changes the direction of writing, and tags."""


def safe(text: str) -> str:
    """The text, its lines and blanks as they are, with nothing in it that drives a terminal."""
    return "\n".join(UNPRINTABLE.sub(" ", line) for line in text.split("\n"))


def shown(text: object, limit: int = 160) -> str:
    """Anything as one printable line of at most `limit` characters."""
    line = UNPRINTABLE.sub(" ", " ".join(str(text).split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def last_line(text: str) -> str:
    """The last line that says something; empty where there is none."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
