"""Parse TOML that strangers wrote, in bounded time."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MOST_PARTS = 200
"""The most parts of a dotted key. `tomllib` needs time that grows with their square: 16,000 parts took 8 s. Honest files
have fewer than ten."""

_LONG_KEY = re.compile(rf"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){{{MOST_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        ValueError: The text is not valid, or no honest file is like it; the message says why, without a full stop.
    """
    if _LONG_KEY.search(text):
        raise ValueError(f"a key has more than {MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(str(error).rstrip(".")) from None
    except ValueError:  # Python refuses to read integers with more than 4,300 digits
        raise ValueError("a number has too many digits") from None
