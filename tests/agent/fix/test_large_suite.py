"""Test whole fixes in a repository whose tests take longer than verification may take."""

from __future__ import annotations

import pytest

from tests.agent.scripted import BUGGY, DONE, FIX, Fixes, calls

pytestmark = pytest.mark.integration

SLOW = "import time\nimport calc\n\n\n" + "".join(
    f"def test_double_{number}():\n    assert calc.double({number}) == {2 * number}\n    time.sleep(1.4)\n\n\n"
    for number in range(12)
)
FILES = {
    "calc.py": BUGGY["calc.py"],
    "test_add.py": "import calc\n\n\ndef test_add():\n    assert calc.add(2, 3) == 5\n",
    "test_double.py": SLOW,
}
ADD = calls("test_runner", test_file="test_add.py")


@pytest.mark.slow  # quick: tests/agent/verify/test_scope.py and test_a_large_suite in test_verify_sandboxes.py
def test_the_tests_that_execute_the_change_decide(fixes: Fixes) -> None:
    done = fixes(FILES, [FIX, ADD, DONE], "--verify-minutes", "0.2", "--reruns", "1")
    assert "waiting for" in done.stderr
    [baseline] = fixes.of_type("baseline")
    assert (baseline["complete"], baseline["failed"]) == (True, ["test_add.py::test_add"])
    assert baseline["seconds"] > 12
    [verify] = fixes.of_type("verify")
    scope = verify["scope"]
    assert (scope["tests"], scope["everything"], scope["complete"]) == (13, "", True)
    assert 1 < scope["selected"] == scope["ran"] < 8, "also those that ran before the recording began"
    assert scope["selected"] + scope["others"] < 13, "not all had time"
    assert "13 tests execute the change or may do so: all ran" in done.stderr


@pytest.mark.slow
def test_a_baseline_without_time_for_all(fixes: Fixes) -> None:
    done = fixes(
        FILES, [FIX, ADD, DONE], "--verify-minutes", "0.2", "--baseline-minutes", "0.1", "--reruns", "0"
    )
    [baseline] = fixes.of_type("baseline")
    assert not baseline["complete"]
    assert 0 < len(baseline["passed"]) < 12
    assert "there was no time for more tests" in done.stderr
    [verify] = fixes.of_type("verify")
    assert not verify["scope"]["complete"]
    assert verify["fixed"] == ["test_add.py::test_add"]
