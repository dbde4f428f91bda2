"""The completion gate: check that the work is complete when the model ends a turn without a tool call."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from m3agent.agent.context.output import redact_text
from m3agent.agent.verify.feedback import MOST_NAMED, how_to_pin
from m3agent.tools.registry import TOOLS
from m3agent.tools.runners.suites import is_named
from m3agent.tools.test_commands import RULE

Cause = Literal[
    "",
    "call_as_text",
    "announced",
    "empty",
    "question",
    "no_change",
    "no_test",
    "not_counted",
    "unclear",
    "red",
]
"""Why an answer is not the end; empty if it is."""

MOST_ASKED = 2
"""Most times in a row that the model is told what is missing; after that its result is accepted as it is."""
MOST_INTENDED = 4
"""The same for an answer that says what the model wants to do next, because it means to go on."""
INTENDED = frozenset[Cause]({"announced", "call_as_text"})

SAID = 200
"""Most characters of the model's own answer that are quoted back to it."""

NO_CHANGE = "No change:"
NOT_TESTED = "Not tested:"
ANNOUNCED = re.compile(
    r"(?:(?:now|next|then|first|so|ok|okay|good|great|right)\b[,:]?\s+)*"
    r"(?:let me(?! know)|let's|let us|(?:i'll|i will|i'm going to|i am going to|i still need to|i need to|i should)"
    r"(?! (?:note|mention|add|leave|stop)\b)|we'll|we will|we need to|i am about to|i'm about to|going to|time to)\b",
    re.IGNORECASE,
)
"""Start of a last sentence that announces a step. M3 sometimes ends its turn there without taking the step."""
_NAMES = "|".join(tool.name for tool in TOOLS)
WRITTEN = re.compile(
    rf"^[ \t]*({_NAMES})\(|\b(?:name|tool)['\"]?\s*(?:=>|[:=])\s*['\"]({_NAMES})['\"]|<(?:function=)?({_NAMES})>",
    re.MULTILINE,
)
"""A call of a tool that is written as text, in one of the forms that no server reads as a call."""
STATED = re.compile(rf"^[^\w\n]*({NO_CHANGE}|{NOT_TESTED})\s*(\S.*)", re.MULTILINE | re.IGNORECASE)

PINNED = re.compile(r"^[^\w\n]*pinned:\s*(\S.*?(?:\[.*?\])?)`?:\s+\S", re.MULTILINE | re.IGNORECASE)


def why_not_tested(text: str) -> str:
    """Return the reason that an answer gives after "Not tested:"; empty if it gives none."""
    return _reason(text, NOT_TESTED)


def why_no_change(text: str) -> str:
    """Return the reason that an answer gives after "No change:"; empty if it gives none."""
    return _reason(text, NO_CHANGE)


def _reason(text: str, start: str) -> str:
    stated = (match[2] for match in STATED.finditer(text) if match[1].lower() == start.lower())
    return next(stated, "").strip()


def pinned_tests(text: str) -> frozenset[str]:
    """Return the ids of the tests that state what the issue changes, as an answer says: `Pinned: <test id>: <why>`."""
    return frozenset(match[1].strip("`") for match in PINNED.finditer(text))


def listed(idents: Sequence[str]) -> str:
    """Return the first test ids for a message to the model, one a line."""
    more = [f"- and {len(idents) - MOST_NAMED} more"] if len(idents) > MOST_NAMED else []
    return "\n".join([*(f"- {redact_text(ident)}" for ident in idents[:MOST_NAMED]), *more])


@dataclass(frozen=True)
class Missing:
    """Why an answer is not the end, and what the model is told."""

    cause: Cause = ""
    text: str = ""

    def is_accepted(self, asked: int) -> bool:
        """Return whether the result is accepted, given how often in a row the model was told what is missing."""
        return not self.cause or asked >= (MOST_INTENDED if self.cause in INTENDED else MOST_ASKED)


@dataclass(frozen=True, kw_only=True)
class State:
    """What is known of the change and of its tests when the model ends a turn."""

    changed: bool
    """Whether any file of the repository has changed."""
    may_answer: bool = False
    """Whether an answer without a change is a result, because the user may have asked something."""
    tested: bool
    """Whether a test with a known outcome has run since the last change."""
    unclear: str = ""
    """Why the outcome of the last test run since the change is not known; empty if none ran."""
    not_counted: bool = False
    """Whether a program ran since the last change that counts as no test run."""
    passing: int = 0
    """How many tests are known to pass here; 0 if that is not known."""
    broken: Sequence[str] = ()
    """Tests that passed before the change and were red in their last run since it."""
    added: Sequence[str] = ()
    """Tests that the change adds and that were red in their last run since it."""


def missing(text: str, state: State) -> Missing:
    """Return what the model is told to do before it counts as done.

    Args:
        text: The model's last answer. A line with "No change:" or, where no test runs, "Not tested:", and a reason,
            replaces the change or the test run.
    """
    stated = {match[1].lower() for match in STATED.finditer(text)}
    if not stated and (intended := _intended(text)).cause:
        return intended
    lacking = _lacking(text, state, stated)
    if lacking.cause and not text.strip():
        return Missing("empty", f"Your answer was empty: it had neither text nor a call. {lacking.text}")
    if lacking.cause and text.rstrip("\"'”)*_` \n").endswith("?"):
        told = "You asked a question, but nobody answers while you work: decide yourself, and go on."
        return Missing("question", f"{told} {lacking.text}")
    return lacking


def _intended(text: str) -> Missing:
    """Return what the model is told if its answer says what it does next, and it did not do it."""
    if written := WRITTEN.search(text):
        name = written[written.lastindex or 0]
        told = f"You wrote a call of {name} as text, so nothing ran. Call the tool itself; if all is done, say so without it."
        return Missing("call_as_text", told)
    last = re.split(r"(?<=[.!?])\s+|\n+", text.strip())[-1].lstrip("-*#> ")
    if ANNOUNCED.match(last):
        told = f"You said '{last[:SAID]}' and called no tool: call the tool that does it. If all is done, say so without announcing anything."
        return Missing("announced", told)
    return Missing()


def _lacking(text: str, state: State, stated: Container[str]) -> Missing:
    """Return what the work itself lacks; `stated` has the lines that give a reason for what was left out."""
    if not state.changed:
        told = (
            "No file of the repository has changed. Make the change that fixes the issue, or, if there is nothing to "
            f"change, answer with one line that starts with '{NO_CHANGE}' and says why."
        )
        is_answer = NO_CHANGE.lower() in stated or (state.may_answer and text.strip())
        return Missing() if is_answer else Missing("no_change", told)
    if not state.tested:
        return _untested(state, is_stated=NOT_TESTED.lower() in stated)
    pinned = pinned_tests(text)
    broken = [ident for ident in state.broken if not is_named(ident, pinned)]
    pin = f"\n{redact_text(how_to_pin(broken))}" if broken else ""
    parts = (("passed before your change", broken, pin), ("are new", state.added, ""))
    red = [
        f"These tests {what} and are red now ({len(idents)}):\n{listed(idents)}{more}"
        for what, idents, more in parts
        if idents
    ]
    end = "Correct the code, or a new test if it is wrong, and run them again."
    return Missing("red", "\n".join([*red, end])) if red else Missing()


def _untested(state: State, *, is_stated: bool) -> Missing:
    """Return what the model is told if no test has run; `is_stated` if it gives a reason."""
    if is_stated and not state.passing:
        return Missing()
    ask = "Run the tests that show the issue is fixed, with test_runner"
    if is_stated:
        told = f"Tests run here: {state.passing} passed. So '{NOT_TESTED}' is no reason to run none. {ask}."
        return Missing("no_test", told)
    if not state.passing:
        ask += f", or, if no test can run here, answer with one line that starts with '{NOT_TESTED}' and says why"
    cause: Cause = "no_test"
    told = "No test has run since your last change"
    if state.unclear:
        cause, told = "unclear", state.unclear
    elif state.not_counted:
        cause = "not_counted"
        told += f": the program that you ran counts as no test run. What counts is {RULE}"
    return Missing(cause, f"{told}. {ask}.")


def was_accepted(gate: Mapping[str, Any]) -> bool:
    """Return whether the gate let an answer pass, from its event. Older logs have no cause, and then two reminders at most."""
    return not gate["missing"] or ("cause" not in gate and gate["asked"] >= MOST_ASKED)
