"""Read the Test Anything Protocol (TAP), versions 12 to 14. Subtests are indented and count as their parent's text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from m3agent.tools.runners.base import Outcome

MOST_TESTS = 100_000
MOST_TEXT = 4000
_PLAN = re.compile(r"^1\.\.(\d{1,7})(?:\s*#\s*(.*))?$")
_TEST = re.compile(r"^(not )?ok\b(?:\s+(\d{1,7})(?=\s|$))?\s*(?:-\s+)?(.*)$")
_DIRECTIVE = re.compile(r"(?<!\\)#\s*(skip|todo)\S*\s*(.*)$", re.IGNORECASE)


@dataclass(frozen=True)
class Point:
    """A test in a report.

    Attributes:
        number: Its number.
        name: Its description without directive; may be empty.
        outcome: Its outcome; a test that is still to do is skipped.
        text: What was printed after it, or why it was skipped.
    """

    number: int
    name: str
    outcome: Outcome
    text: str = ""


@dataclass
class Tap:
    """What a report says.

    Attributes:
        points: The tests.
        planned: Number of tests that the plan names; None if there is no plan.
        reason: Why all tests are skipped, if the plan says so.
        disorder: What contradicts itself in the report, as sentences.
        bail_out: Why the program gave up.
    """

    points: list[Point] = field(default_factory=list)
    planned: int | None = None
    reason: str = ""
    disorder: list[str] = field(default_factory=list)
    bail_out: str = ""

    @property
    def complete(self) -> bool:
        """Whether each planned test has exactly one result."""
        return (
            self.planned is not None
            and not self.bail_out
            and len({p.number for p in self.points}) == self.planned
        )


def read_tap(text: str) -> Tap:
    """Return what a report says; other lines are text of the test before them."""
    tap = Tap()
    said: list[list[str]] = []
    seen: set[int] = set()
    for line in text.splitlines():
        plan, test = _PLAN.match(line), _TEST.match(line)
        if plan:
            if tap.planned is not None:
                tap.disorder.append("it has two plans")
            tap.planned, tap.reason = int(plan[1]), plan[2] or ""
        elif test and len(tap.points) < MOST_TESTS:
            number = int(test[2]) if test[2] else len(tap.points) + 1
            if number in seen:
                tap.disorder.append(f"test {number} has two results")
            elif seen and number < max(seen):
                tap.disorder.append(f"test {number} is out of order")
            seen.add(number)
            tap.points.append(_point(number, test[1] is None, test[3]))
            said.append([])
        elif line.startswith("Bail out!"):
            tap.bail_out = line.removeprefix("Bail out!").strip() or "without a reason"
        elif said and sum(map(len, said[-1])) < MOST_TEXT:
            said[-1].append(line.removeprefix("# "))
    tap.points = [
        Point(p.number, p.name, p.outcome, p.text or "\n".join(lines).strip()[:MOST_TEXT])
        for p, lines in zip(tap.points, said, strict=True)
    ]
    return tap


def _point(number: int, passed: bool, description: str) -> Point:
    directive = _DIRECTIVE.search(description)
    name = (description[: directive.start()] if directive else description).strip()
    name = name.replace("\\#", "#")
    if directive:
        return Point(number, name, "skipped", directive[2] or directive[1].lower())
    return Point(number, name, "passed" if passed else "failed")
