"""Test the completion gate: which work and which reasons it requires before it accepts the end."""

from __future__ import annotations

import time

import pytest

from m3agent.agent.loop.completion_gate import MOST_ASKED, missing, pinned_tests

STEP = "Your answer announces a last step but does not take it"
CHANGE = "No file of the repository has changed."
TEST = "No test has run since your last change."


@pytest.mark.parametrize(
    ("text", "changed", "tested", "said"),
    [
        ("Done.", True, True, ""),
        ("", True, True, ""),
        ("Fixed. Now let me update the tests:", True, True, STEP),
        ("I see it.\n\nNext, I'll run the whole suite.", True, True, STEP),
        ("- Then I am going to edit `a.py`", True, True, STEP),
        ("OK. I still need to handle the empty list", True, True, STEP),
        ("Fixed and tested. Let me know if you need more.", True, True, ""),
        ("I will describe it: the bound was off by one. All tests pass.", True, True, ""),
        ("All pass. I should note that the old name stays.", True, True, ""),
        ("The letter was wrong; let it be.", True, True, ""),
        ("Let me see.\nNot tested: there is no compiler.", True, False, ""),
        ("Done.", True, False, TEST),
        ("Done.", False, False, CHANGE),
        ("Done.", False, True, CHANGE),
        ("No change: the code is right.", False, False, ""),
        ("Looked at it.\n\nNo change: the code is right.", False, False, ""),
        ("**No change:** it is right", False, False, ""),
        ("- no change: it is right", False, False, ""),
        ("> NO CHANGE: right", False, False, ""),
        ("No change:\nit is right", False, False, ""),
        ("Not tested: there is no compiler.", True, False, ""),
        ("Not tested: there is no compiler.\n\nNow let me clean up:", True, False, ""),
        ("No change: it is right.\nLet me know. Next, I'll look again:", False, False, ""),
        # a reason for one omission is no reason for the other
        ("No change: the code is right.", True, False, TEST),
        ("Not tested: no compiler.", False, False, CHANGE),
        ("No change: x\nNot tested: y", True, False, ""),
        # without a reason, or not at the start of a line
        ("No change:", False, False, CHANGE),
        ("No change:  \n ", False, False, CHANGE),
        ("There is no change: it is right", False, False, CHANGE),
        ("No changes needed", False, False, CHANGE),
        ("Not tested:", True, False, TEST),
    ],
)
def test_gate_names_the_missing_steps(text: str, changed: bool, tested: bool, said: str) -> None:
    answer = missing(text=text, changed=changed, tested_since_change=tested)
    assert answer.startswith(said)
    assert bool(answer) == bool(said)


def test_lines_that_the_gate_requests_are_accepted() -> None:
    for changed, line in ((False, "No change:"), (True, "Not tested:")):
        told = missing(text="", changed=changed, tested_since_change=False)
        assert f"'{line}'" in told
        assert missing(text=f"{line} because", changed=changed, tested_since_change=False) == ""


def test_a_test_that_is_pinned_may_be_red() -> None:
    text = "Done.\n\n- Pinned: `tests/test_a.py::test_b`: it states the old hash.\npinned: test_c.py::test_d[1]: so does it\nPinned: x"
    assert pinned_tests(text) == {"tests/test_a.py::test_b", "test_c.py::test_d[1]"}
    told = missing(
        text=text, changed=True, tested_since_change=True, broken=["tests/test_a.py::test_b[2]", "test_e.py"]
    )
    assert "test_e.py" in told and "test_b" not in told


def test_a_step_that_is_announced_is_quoted_in_part() -> None:
    step = f"Now let me {'look ' * 100}:"
    answer = missing(text=f"Fixed.\n> * {step}", changed=True, tested_since_change=True)
    assert answer == (
        f"{STEP}: '{step[:200]}' If it is still to be done, do it now, with a tool; if all is done, say so in a few "
        "sentences without announcing anything."
    )


def test_the_model_is_asked_twice() -> None:
    assert MOST_ASKED == 2


@pytest.mark.parametrize(
    "piece", ["\n", "-", " ", "- \n", "|---|\n", "No change: \n", "no ", ". ", "now ", "I'll "]
)
def test_a_text_that_goes_round_in_circles_takes_no_time(piece: str) -> None:
    started = time.monotonic()
    missing(text=piece * 200_000, changed=False, tested_since_change=False)
    assert time.monotonic() - started < 60
