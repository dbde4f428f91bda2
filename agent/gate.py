"""The completion gate: a turn without a tool call is not proof of being done."""

from __future__ import annotations

import re

MOST_ASKED = 2
"""Times the model is told what is missing; then what it has is taken as it is."""

NO_CHANGE = "No change:"
NOT_TESTED = "Not tested:"
STATED = re.compile(rf"^[^\w\n]*({NO_CHANGE}|{NOT_TESTED})\s*\S", re.MULTILINE | re.IGNORECASE)


def missing(*, text: str, changed: bool, tested_since_change: bool) -> str:
    """What the model still owes before its word "done" is taken; empty when nothing.

    `text` is its last answer: a line that starts with "No change:" or "Not tested:" and a reason is accepted.
    """
    stated = {match[1].lower() for match in STATED.finditer(text)}
    if not changed and NO_CHANGE.lower() not in stated:
        return (
            "No file of the repository has changed. Make the change that fixes the issue, or, if there is nothing to "
            f"change, answer with one line that starts with '{NO_CHANGE}' and says why."
        )
    if changed and not tested_since_change and NOT_TESTED.lower() not in stated:
        return (
            "No test has run since your last change. Run the tests that show the issue is fixed, or, if that cannot "
            f"be done here, answer with one line that starts with '{NOT_TESTED}' and says why."
        )
    return ""
