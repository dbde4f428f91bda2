"""Describe a tool call for people: what it does, and what its outcome is. The screen, the report page and editors use these words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from m3agent.agent.session.log_reader import Line, items, mapping, text
from m3agent.tools.registry import traits_of, understood
from m3agent.util.counted import counted
from m3agent.util.sanitize import last_line, printable_line

MOST_TITLE = 120  # characters
MOST_OUTCOME = 100  # characters
NO_TESTS = "no tests"
OUTCOMES = ("passed", "failed", "errored", "skipped")


def step_title(name: str, arguments: Mapping[str, Any] | None) -> str:
    """Return what a call does, such as `edit src/deck.py`. The name and the arguments come from the model.

    A program that begins with a comment has the comment as its title, without a verb before it.
    """
    traits, read = understood(name, arguments)
    about = printable_line(traits.title(read), MOST_TITLE)
    if about.startswith("# "):
        return about.removeprefix("# ")
    return f"{traits.verb or printable_line(name, 64)} {'everything' if about == '.' else about}".rstrip()


def step_outcome(finished: Line) -> str:
    """Return the outcome of a call in a few words; empty if success is all there is to say.

    Args:
        finished: The line `call.finished` of the log.
    """
    traits, data = traits_of(text(finished, "name")), mapping(finished, "data")
    counts = {name: len(items(data, name)) for name in OUTCOMES}
    code = finished.get("exit_code")
    is_error = finished.get("is_error") is True
    status, lines = text(finished, "status"), text(finished, "content").splitlines() or [""]
    said = lines[0].removeprefix("error: ")
    if status != "done":
        said = said if said.startswith(status) else f"{status}: {said}".rstrip(": ")
    elif any(counts.values()):
        said = outcome_counts(counts)
    elif said.startswith("0 passed"):
        said = NO_TESTS
    elif not is_error and traits.kind == "read":
        said = counted(len(lines), "line")
    elif not is_error and traits.kind == "edit":
        said = lines[1] if len(lines) > 1 else ""  # the diff says what changed; a second line is a caveat
    elif isinstance(code, int) and not data.get("timed_out") and "passed" not in data:
        output = last_line("\n".join(lines[1:]))
        brief = (
            output if len(output) <= MOST_OUTCOME and '{"' not in output else ""
        )  # the others are for programs
        said = brief if code == 0 else f"exit {code}: {brief}" if brief else f"exit {code}"
    return printable_line(said, MOST_OUTCOME)


def outcome_counts(counts: Mapping[str, int]) -> str:
    """Return the counts of test outcomes that are not zero: `23 passed, 1 failed`."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or NO_TESTS
