"""The completion gate: check that the work is complete when the model ends a turn without a tool call."""

from __future__ import annotations

import re
from collections.abc import Sequence

from m3agent.agent.context.output import redact_text
from m3agent.agent.verify.feedback import MOST_NAMED
from m3agent.tools.runners.suites import is_named

MOST_ASKED = 2
"""Most times that the model is told what is missing; after that its result is accepted as it is."""

SAID = 200
"""Most characters of the model's own answer that are quoted back to it."""

NO_CHANGE = "No change:"
NOT_TESTED = "Not tested:"
ANNOUNCED = re.compile(
    r"(?:(?:now|next|then|first|so|ok|okay|good|great|right)\b[,:]?\s+)*"
    r"(?:let me(?! know)|let's|let us|(?:i'll|i will|i'm going to|i am going to|i still need to|i need to|i should)"
    r"(?! (?:note|mention|add|leave|stop)\b))\b",
    re.IGNORECASE,
)
"""Start of a last sentence that announces a step. M3 sometimes ends its turn there without taking the step."""
STATED = re.compile(rf"^[^\w\n]*({NO_CHANGE}|{NOT_TESTED})\s*(\S.*)", re.MULTILINE | re.IGNORECASE)

PINNED = re.compile(r"^[^\w\n]*pinned:\s*(\S+?)`?:\s+\S", re.MULTILINE | re.IGNORECASE)


def why_not_tested(text: str) -> str:
    """Return the reason that an answer gives after "Not tested:"; empty if it gives none."""
    stated = (match[2] for match in STATED.finditer(text) if match[1].lower() == NOT_TESTED.lower())
    return next(stated, "").strip()


def pinned_tests(text: str) -> frozenset[str]:
    """Return the ids of the tests that state what the issue changes, as an answer says: `Pinned: <test id>: <why>`."""
    return frozenset(match[1].strip("`") for match in PINNED.finditer(text))


def listed(idents: Sequence[str]) -> str:
    """Return the first test ids for a message to the model, one a line."""
    more = [f"- and {len(idents) - MOST_NAMED} more"] if len(idents) > MOST_NAMED else []
    return "\n".join([*(f"- {redact_text(ident)}" for ident in idents[:MOST_NAMED]), *more])


def accepts(missing: str, asked: int) -> bool:
    """Return whether a result is accepted, given what is missing and how often the model was told so before."""
    return not missing or asked >= MOST_ASKED


def missing(
    *,
    text: str,
    changed: bool,
    may_answer: bool = False,
    tested_since_change: bool,
    unclear: str = "",
    broken: Sequence[str] = (),
    added: Sequence[str] = (),
) -> str:
    """Return what the model is told to do before it counts as done; empty if nothing is missing.

    Args:
        text: The model's last answer. A line with "No change:" or "Not tested:" and a reason replaces the change or
            the test run.
        changed: Whether any file of the repository has changed.
        may_answer: Whether an answer without a change is a result, because the user may have asked something.
        tested_since_change: Whether a test with a known outcome has run since the last change.
        unclear: Why the outcome of the last test run since the change is not known; empty if none ran.
        broken: Tests that passed before the change and were red in their last run since it.
        added: Tests that the change adds and that were red in their last run since it.
    """
    stated = {match[1].lower() for match in STATED.finditer(text)}
    pinned = pinned_tests(text)
    broken = [ident for ident in broken if not is_named(ident, pinned)]
    if not changed and not may_answer and NO_CHANGE.lower() not in stated:
        return (
            "No file of the repository has changed. Make the change that fixes the issue, or, if there is nothing to "
            f"change, answer with one line that starts with '{NO_CHANGE}' and says why."
        )
    if changed and not tested_since_change and NOT_TESTED.lower() not in stated:
        return (
            f"{unclear or 'No test has run since your last change'}. Run the tests that show the issue is fixed, with "
            "test_runner, or, if that cannot be done here, answer with one line that starts with "
            f"'{NOT_TESTED}' and says why."
        )
    if changed and (broken or added):
        parts = (("passed before your change", broken), ("are new", added))
        red = [
            f"These tests {what} and are red now ({len(idents)}):\n{listed(idents)}"
            for what, idents in parts
            if idents
        ]
        return "\n".join([*red, "Correct the code, or a new test if it is wrong, and run them again."])
    last = re.split(r"(?<=[.!?])\s+|\n+", text.strip())[-1].lstrip("-*#> ")
    if not stated and ANNOUNCED.match(last):
        return (
            f"Your answer announces a last step but does not take it: '{last[:SAID]}' If it is still to be done, do "
            "it now, with a tool; if all is done, say so in a few sentences without announcing anything."
        )
    return ""
