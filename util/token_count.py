"""Read numbers of tokens as people write them: 524288, 512k, 1M."""

from __future__ import annotations

import re

UNITS = {"": 1, "K": 1024, "M": 1024**2}


def token_count(text: str) -> int:
    """Return the number that a text means. K stands for 1,024 and M for 1,048,576, as in the names of context windows.

    Raises:
        ValueError: It is no such number.
    """
    found = re.fullmatch(r"([0-9]{1,15})([KM]?)", text.strip().upper(), re.ASCII)
    if found is None:
        raise ValueError("Input should be a whole number of tokens, like 8192, 512k or 1M")
    return int(found[1]) * UNITS[found[2]]


def some_tokens(text: str) -> int:
    """Return the number that an option's value means. Raises ValueError if it is no such number, or 0."""
    count = token_count(text)
    if not count:
        raise ValueError("Input should be at least 1")
    return count
