"""Read the results in a report of the Test Anything Protocol (TAP), on the host and, with Python 3.5 and later, in sandboxes."""

from __future__ import annotations

import re
from typing import Literal

_TEST = re.compile(r"^(not )?ok\b(?:\s+(\d{1,7})(?=\s|$))?\s*(?:-\s+)?(.*)$")
_DIRECTIVE = re.compile(r"(?<!\\)#\s*(?:(skip|todo)\S*\s*(.*)|time=\S+)$", re.IGNORECASE)
"""What follows a description: why there is no result, or how long the test took, which is no part of its name."""


def tap_result(line: str) -> tuple[int | None, str, Literal["passed", "failed", "skipped"], str] | None:
    """Return a test's number, if it has one, its name, its outcome, and why it was skipped; None for another line.

    A test that is still to do is skipped.
    """
    test = _TEST.match(line)
    if test is None:
        return None
    number = int(test.group(2)) if test.group(2) else None
    description, reason = test.group(3), ""
    outcome: Literal["passed", "failed", "skipped"] = "failed" if test.group(1) else "passed"
    directive = _DIRECTIVE.search(description)
    if directive:
        description = description[: directive.start()]
        if directive.group(1):
            outcome, reason = "skipped", directive.group(2) or directive.group(1).lower()
    return number, description.strip().replace("\\#", "#"), outcome, reason
