"""Test the message that returns a verdict to the model, and the rule for weakened tests."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.verify.feedback import MOST_ERRORS, MOST_NAMED, feedback_on, weakened_tests
from m3agent.agent.verify.verify import Verification
from m3agent.agent.verify.weaker_tests import weakened
from m3agent.tools.test_report import TestReport
from m3agent.tools.test_runner import SAME_ERROR
from tests.fakes.trees import memory_workspace

RUN = TestReport(("a.py::x",), (), (), (), {}, True, False, 1.0, 0, "", False)
FAILED = Verification("failed", "the reason", (), (), (), (), (), RUN, RUN, "old", "new", 1.0)
UNVERIFIED = dataclasses.replace(FAILED, verdict="unverified")


def evidence(base: Verification = FAILED, **values: Any) -> Verification:
    return dataclasses.replace(base, **values)


@pytest.mark.parametrize(
    ("found", "kinds", "words"),
    [
        ({"broken": ("a.py::b",)}, ["broken"], "pass without your change and do not pass with it (1):\n- a.py::b"),
        ({"still_red": ("a.py::b",)}, ["still_red"], "red with and without your change (1):\n- a.py::b"),
        ({"added_red": ("n.py::b",), "broken": ("n.py::b",)}, ["added_red"], "adds or edits are red; if the test itself is wrong, correct the test (1):\n- n.py::b"),
        ({"still_red": ("a.py",)}, ["still_red", "cannot_import"], "- a.py"),
        ({"broken": ("a.py::b",), "undone": ("t.py",)}, ["broken", "undone"], "do not count, because the verification"),
        ({"weakened": ("a.py::b was deleted",)}, ["weakened"], "a.py::b was deleted"),
    ],
)  # fmt: skip
def test_what_the_model_is_told(found: dict[str, Any], kinds: list[str], words: str) -> None:
    told = feedback_on(evidence(**found), 1, 2)
    assert told is not None
    assert list(told.kinds) == kinds
    assert words in told.text
    assert told.text.startswith(
        "Your change was verified in a fresh copy of the repository and is not accepted (message 1 of at most 2): "
        "the reason."
    )


def test_a_red_test_is_asked_for_only_where_tests_ran() -> None:
    told = feedback_on(evidence(UNVERIFIED, rule="no_red_test"), 1, 2)
    assert told is not None
    assert told.kinds == ("no_red_test",)
    for rule in ("nothing_ran", "other_python", "same_obstacle", "no_time_for_further_runs"):
        assert feedback_on(evidence(UNVERIFIED, rule=rule), 1, 2) is None, "no test can show it here"
    assert feedback_on(FAILED, 1, 2) is None, "the run did not finish: the model cannot mend that"


def test_long_lists_and_errors_are_cut() -> None:
    broken = tuple(f"a.py::t{number:03}" for number in range(50))
    errors = {ident: "\n".join(f"line {number} of {ident}" for number in range(40)) for ident in broken}
    told = feedback_on(evidence(broken=broken, errors=errors), 2, 2)
    assert told is not None
    assert told.tests == broken
    assert told.text.count("\n- a.py::t") == MOST_NAMED
    assert f"and {50 - MOST_NAMED} more" in told.text
    assert sum(f"line 39 of {ident}" in told.text for ident in broken) == MOST_ERRORS
    assert len(told.text) < 10_000


def test_an_error_that_is_as_before_is_left_out() -> None:
    """The model has seen it, and it says nothing of the change."""
    red = dataclasses.replace(RUN, failed=("a.py::old", "a.py::other"))
    before = dataclasses.replace(red, errors={"a.py::old": "E   at 0x7f12ab34cd10", "a.py::other": "E   one"})
    errors = {"a.py::old": "E   at 0x7f12ab34ff20", "a.py::other": "E   two"}
    after = dataclasses.replace(red, errors=errors)
    still_red = ("a.py::old", "a.py::other")
    told = feedback_on(evidence(before=before, after=after, still_red=still_red, errors=errors), 1, 2)
    assert told is not None
    assert "0x7f" not in told.text and "two" in told.text
    assert f"- a.py::old ({SAME_ERROR})\n- a.py::other\n" in told.text


def test_secrets_in_errors_are_not_sent() -> None:
    key = "ghp_" + "a1B2c3D4e5F6" * 3
    told = feedback_on(evidence(broken=("a.py::b",), errors={"a.py::b": f"token {key}"}), 1, 2)
    assert told is not None
    assert key not in told.text


EARLIER = b"def test_a():\n    assert f() == 1\n    assert g()\n"
IN_CLASS = b"class TestA:\n    def test_a(self):\n        self.assertEqual(f(), 1)\n"
RAISES = b"def test_a():\n    with pytest.raises(ValueError):\n        f()\n"


@pytest.mark.parametrize(
    ("earlier", "later", "how"),
    [
        (EARLIER, EARLIER, ""),
        (EARLIER, None, "deleted"),
        (EARLIER, b"", "deleted"),
        (EARLIER, b"def test_b():\n    assert f() == 1\n    assert g()\n", "deleted"),
        (EARLIER, b"def test_a(\n", "deleted"),
        (EARLIER, b"def test_a():\n    assert f() == 1\n", "weakened"),
        (EARLIER, b"def test_a():\n    assert f() == 2\n    assert g()\n", "weakened"),
        (EARLIER, b"def test_a():\n    x = 1\n    assert f() == 1\n    assert g()\n    assert h()\n", ""),
        (EARLIER, b"import pytest\n@pytest.mark.skip\n" + EARLIER, "skipped"),
        (EARLIER, b"import pytest\n@pytest.mark.xfail(strict=False)\n" + EARLIER, "skipped"),
        (EARLIER, b"import pytest\npytestmark = pytest.mark.skipif(True, reason='')\n" + EARLIER, "skipped"),
        (EARLIER, b"import pytest\n" + EARLIER + b"    pytest.skip('no')\n", "skipped"),
        (RAISES, b"def test_a():\n    with pytest.raises(Exception):\n        f()\n", "weakened"),
        (RAISES, RAISES + b"        g()\n", ""),
        (b"not python (", b"", ""),
    ],
)  # fmt: skip
def test_a_weakened_test(earlier: bytes, later: bytes | None, how: str) -> None:
    for ident in ("t.py::test_a", "t.py::test_a[1-x]"):
        assert weakened(ident, None, earlier, later) == how
        if b"test_a" in earlier:
            assert weakened(ident, EARLIER, earlier, later) == "", (
                "verification restores a test of the base tree"
            )


def test_a_weakened_test_in_a_class() -> None:
    ident = "t.py::TestA::test_a"
    assert weakened(ident, None, IN_CLASS, IN_CLASS.replace(b"1", b"2")) == "weakened"
    assert weakened(ident, None, IN_CLASS, b"class TestA:\n    pass\n") == "deleted"
    assert weakened(ident, EARLIER, IN_CLASS, None) == "deleted", (
        "the base tree has another test of this file"
    )


def test_the_id_of_a_file_stands_for_all_its_tests() -> None:
    assert weakened("t.py", None, EARLIER, None) == "deleted"
    assert weakened("t.py", None, EARLIER, EARLIER + b"\nx = 1\n") == ""
    assert weakened("t.py", None, EARLIER, b"x = 1\n") == "weakened"


@pytest.mark.parametrize(
    ("earlier", "later", "how"),
    [
        (EARLIER, EARLIER.replace(b"== 1", b"== 2"), ""),
        (EARLIER, EARLIER.replace(b"== 1", b"== None"), "weakened"),
        (EARLIER, EARLIER.replace(b"f()", b"1"), "weakened"),
        (EARLIER, EARLIER.replace(b"    assert g()\n", b""), "weakened"),
        (EARLIER, b"import pytest\n@pytest.mark.skip\n" + EARLIER, "skipped"),
        (RAISES, RAISES.replace(b"ValueError", b"Exception"), "weakened"),
    ],
)
def test_a_test_that_shows_the_fix_may_have_other_values(earlier: bytes, later: bytes, how: str) -> None:
    assert weakened("t.py::test_a", None, earlier, later, shows_fix=True) == how


def test_a_test_that_shows_the_fix_may_move(tmp_path: Path) -> None:
    workspace = memory_workspace(tmp_path, {"calc.py": ""})

    def tree(**texts: str) -> str:
        changed = [(f"{name}.py", 0o100644, text.encode()) for name, text in texts.items()]
        return str(workspace.commit_changes(workspace.base, changed, []))

    named = {"old_test.py::test_a": tree(old_test=EARLIER.decode())}
    moved = tree(new_test=EARLIER.decode())
    shows = evidence(fixed=("new_test.py::test_a",))
    assert weakened_tests(workspace, named, moved, shows) == []
    assert weakened_tests(workspace, named, moved, evidence()) == ["old_test.py::test_a was deleted"]
    less = tree(new_test="def test_a():\n    assert f() == 1\n")
    assert weakened_tests(workspace, named, less, shows) == ["old_test.py::test_a was deleted"]
