"""Tell bug reports from features, by what the tests show and what the message says.

A feature's tests use names that the base does not have, so they fail for that reason and not for a wrong result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from m3agent.evals.create.mine import MinedCommit
from m3agent.evals.create.statement import first_error

Kind = Literal["bug", "feature", "unclear"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MISSING = re.compile(
    r"(?:E\s+)?(?:[\w.]+\.)?(?:(?:Import|ModuleNotFound|Attribute|Name)Error\b"
    r"|TypeError\b.*(?:unexpected keyword|takes \d+ positional|no arguments|invalid keyword))"
)
"""The error of a test that uses what the base does not have."""
NEW = re.compile(
    r"(?:feat\b|\W*(?:add|implement|introduce|support|allow|provide|enable|new)(?:s|ed|ing)?\b)",
    re.IGNORECASE,
)
"""The start of a title that announces something new."""
FIX = 2
"""A message with at least this score (`m3agent.evals.create.mine.score`) describes a fix."""


def kind_of(candidate: MinedCommit, errors: Mapping[str, str]) -> Kind:
    """Return the kind of a candidate.

    Args:
        candidate: The commit.
        errors: Error text of each failing test before the fix, by test id.
    """
    new = NEW.match(_title(candidate.messages)) is not None
    missing = [any(map(MISSING.match, first_error(text))) for text in errors.values()]
    if missing and all(missing):
        return "feature" if new or candidate.score < FIX else "unclear"
    if candidate.score >= FIX:
        return "bug"
    return "feature" if new else "unclear"


def _title(messages: Iterable[str]) -> str:
    return next((line.strip() for message in messages for line in message.splitlines() if line.strip()), "")
