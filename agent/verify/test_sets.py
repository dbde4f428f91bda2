"""The sets of tests of a verdict. Each is declared here, and everybody who writes or shows a verdict goes by these rows."""

from __future__ import annotations

from typing import NamedTuple


class SetOfTests(NamedTuple):
    """A set of tests of a verdict, and what its readers call it."""

    field: str
    """The field of `Verification`."""
    event: str
    """The field of the event `verify`, and of results for programs."""
    certificate: str
    """The field of a certificate."""
    has_runs: bool
    """Whether the certificate says how often each test was green and red."""
    label: str
    """The name in tables."""
    title: str = ""
    """The title in a pull request, which leaves out the others."""
    before: str = ""
    """What the tests were without the patch; empty if that says nothing."""
    after: str = ""
    """What they are with it."""


TEST_SETS = (
    SetOfTests("fixed", "fixed", "red_to_green", True, "red to green", "Red before, green with the patch", "red", "green"),
    SetOfTests("broken", "broken", "broken", True, "broken", "Broken", "green", "red"),
    SetOfTests("still_red", "still_red", "still_red", True, "still red", "Red before and still red", "red", "red"),
    SetOfTests("new_tests", "new", "new", False, "new tests", "Tests that the patch adds"),
    SetOfTests("added_red", "added_red", "added_red", False, "added red", "", "-", "red"),
    SetOfTests("flaky", "flaky", "flaky", True, "flaky", "Flaky, not counted", "varies", "varies"),
)  # fmt: skip
