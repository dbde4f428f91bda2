"""Variables that a repository declares for its tests: the table `env` in the configuration that `command` describes.

    [tests.env]
    SERVICE_URL = "http://localhost:8080"

Commands in the sandbox get them. The tree before the patch declares them, so a patch cannot add one. `variables.toml` has those that may not be set.
"""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

MOST_VARIABLES, MOST_LENGTH = 100, 4096
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@cache
def _reader_of() -> dict[str, str]:
    """Return who reads a variable that may not be set, by the pattern of its name."""
    readers = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    return {name: reader for reader, names in readers.items() for name in names.split()}


def fault_of(table: Any) -> str:
    """Return what is wrong with a table of variables, as a clause; empty if it is right."""
    if not isinstance(table, dict) or len(table) > MOST_VARIABLES:
        return f"must be a table of at most {MOST_VARIABLES} variables"
    for name, value in table.items():
        if _NAME.fullmatch(name) is None:
            return f"has {name!r}, which is not the name of a variable"
        for reader in (
            reader for pattern, reader in _reader_of().items() if fnmatchcase(name.upper(), pattern)
        ):
            return f"may not set {name}, which {reader} reads"
        if not isinstance(value, str) or "\0" in value or len(value) > MOST_LENGTH:
            return f"must give {name} a text of at most {MOST_LENGTH:,} characters"
    return ""
