"""Test the completion gate: which work and which reasons it requires before it accepts the end."""

from __future__ import annotations

import time

import pytest

from m3agent.agent.loop.completion_gate import (
    MOST_ASKED,
    MOST_INTENDED,
    SAID,
    Cause,
    Missing,
    State,
    missing,
    pinned_tests,
)
from m3agent.tools.registry import TOOLS
from m3agent.tools.test_commands import RULE

TESTED = State(changed=True, tested=True)
UNTESTED = State(changed=True, tested=False)
UNCHANGED = State(changed=False, tested=False)


@pytest.mark.parametrize(
    ("text", "state", "cause"),
    [
        ("Done.", TESTED, ""),
        ("", TESTED, ""),
        ("Do you want anything else?", TESTED, ""),
        # announcements
        ("Fixed. Now let me update the tests:", TESTED, "announced"),
        ("I see it.\n\nNext, I'll run the whole suite.", TESTED, "announced"),
        ("- Then I am going to edit `a.py`", TESTED, "announced"),
        ("OK. I still need to handle the empty list", TESTED, "announced"),
        ("Next, we'll run it.", TESTED, "announced"),
        ("Let me look.", UNCHANGED, "announced"),
        ("Now I'll run the tests.", UNTESTED, "announced"),
        ("Fixed and tested. Let me know if you need more.", TESTED, ""),
        ("I will describe it: the bound was off by one. All tests pass.", TESTED, ""),
        ("All pass. I should note that the old name stays.", TESTED, ""),
        ("The letter was wrong; let it be.", TESTED, ""),
        # calls as text
        ("Now:\nfile_edit(path='a.py', old='x', new='y')", UNCHANGED, "call_as_text"),
        ('{"name": "test_runner", "arguments": {"test_file": "."}}', UNTESTED, "call_as_text"),
        ('<invoke name="file_read">\n<path>a.py</path>', TESTED, "call_as_text"),
        ("<function=code_exec><code>ls</code>", UNCHANGED, "call_as_text"),
        ('[TOOL_CALL]\n{tool => "file_write"}', UNCHANGED, "call_as_text"),
        ("I changed it with file_edit (twice), and test_runner(.) passes.", TESTED, ""),
        ('The parser now reads <invoke name="add">.', TESTED, ""),
        # empty answers and questions
        ("", UNCHANGED, "empty"),
        (" \n", UNTESTED, "empty"),
        ("I found it. Shall I change it?", UNCHANGED, "question"),
        ("**Should I run the tests?**", UNTESTED, "question"),
        # reasons
        ("Let me see.\nNot tested: there is no compiler.", UNTESTED, ""),
        ("Done.", UNTESTED, "no_test"),
        ("Done.", UNCHANGED, "no_change"),
        ("Done.", State(changed=False, tested=True), "no_change"),
        ("No change: the code is right.", UNCHANGED, ""),
        ("Looked at it.\n\nNo change: the code is right.", UNCHANGED, ""),
        ("**No change:** it is right", UNCHANGED, ""),
        ("- no change: it is right", UNCHANGED, ""),
        ("> NO CHANGE: right", UNCHANGED, ""),
        ("No change:\nit is right", UNCHANGED, ""),
        ("Not tested: there is no compiler.", UNTESTED, ""),
        ("Not tested: there is no compiler.\n\nNow let me clean up:", UNTESTED, ""),
        ("No change: it is right.\nLet me know. Next, I'll look again:", UNCHANGED, ""),
        # a reason for one omission is no reason for the other
        ("No change: the code is right.", UNTESTED, "no_test"),
        ("Not tested: no compiler.", UNCHANGED, "no_change"),
        ("No change: x\nNot tested: y", UNTESTED, ""),
        # without a reason, or not at the start of a line
        ("No change:", UNCHANGED, "no_change"),
        ("No change:  \n ", UNCHANGED, "no_change"),
        ("There is no change: it is right", UNCHANGED, "no_change"),
        ("No changes needed", UNCHANGED, "no_change"),
        ("Not tested:", UNTESTED, "no_test"),
        # no reason where tests run
        ("Not tested: no mpmath.", State(changed=True, tested=False, passing=171), "no_test"),
        ("Done.", State(changed=True, tested=False, not_counted=True), "not_counted"),
        ("Done.", State(changed=True, tested=False, not_counted=True, unclear="It ended with 1"), "unclear"),
        ("Done.", State(changed=True, tested=True, broken=["a.py::t"]), "red"),
    ],
)
def test_gate_names_the_missing_steps(text: str, state: State, cause: Cause) -> None:
    told = missing(text, state)
    assert told.cause == cause
    assert bool(told.text) == bool(cause)


def test_each_cause_has_its_own_words() -> None:
    texts = [
        missing("", UNCHANGED).text,
        missing("Done.", UNCHANGED).text,
        missing("Shall I?", UNCHANGED).text,
        missing("Let me look.", UNCHANGED).text,
        missing("file_read(path='a')", UNCHANGED).text,
        missing("Done.", UNTESTED).text,
        missing("Done.", State(changed=True, tested=False, not_counted=True)).text,
        missing("Not tested: x", State(changed=True, tested=False, passing=171)).text,
    ]
    assert len(set(texts)) == len(texts)
    assert RULE in texts[-2]
    assert "Not tested:" not in missing("Done.", State(changed=True, tested=False, passing=1)).text
    assert "171" in texts[-1]
    assert "file_read" in texts[4]


@pytest.mark.parametrize("name", [tool.name for tool in TOOLS])
def test_a_call_of_each_tool_as_text_is_named(name: str) -> None:
    told = missing(f"So:\n  {name}(x)", UNCHANGED)
    assert (told.cause, name in told.text) == ("call_as_text", True)


def test_lines_that_the_gate_requests_are_accepted() -> None:
    for state, line in ((UNCHANGED, "No change:"), (UNTESTED, "Not tested:")):
        assert f"'{line}'" in missing("", state).text
        assert missing(f"{line} because", state) == Missing()


def test_a_test_that_is_pinned_may_be_red() -> None:
    text = "Done.\n\n- Pinned: `tests/test_a.py::test_b`: it states the old hash.\npinned: test_c.py::test_d[1]: so does it\nPinned: x"
    assert pinned_tests(text) == {"tests/test_a.py::test_b", "test_c.py::test_d[1]"}
    spaced = "Pinned: test_a.py::test_b[a b: c]: see [1]: old\nPinned: a.test.js::adds two numbers: old"
    assert pinned_tests(spaced) == {"test_a.py::test_b[a b: c]", "a.test.js::adds two numbers"}
    red = State(changed=True, tested=True, broken=["tests/test_a.py::test_b[2]", "test_e.py"])
    told = missing(text, red).text
    assert "test_e.py" in told and "test_b" not in told
    assert "'Pinned: test_e.py: <why>'" in told, "the model is told what it may do"


def test_a_step_that_is_announced_is_quoted_in_part() -> None:
    step = f"Now let me {'look ' * 100}:"
    told = missing(f"Fixed.\n> * {step}", TESTED).text
    assert step[:SAID] in told and step[: SAID + 1] not in told


def test_how_often_in_a_row_the_model_is_asked() -> None:
    assert (MOST_ASKED, MOST_INTENDED) == (2, 4)
    for cause, most in (("no_test", 2), ("announced", 4), ("call_as_text", 4)):
        told = Missing(cause, "x")  # type: ignore[arg-type]
        assert [told.is_accepted(asked) for asked in (most - 1, most)] == [False, True]
    assert Missing().is_accepted(0)


@pytest.mark.parametrize(
    "piece", ["\n", "-", " ", "- \n", "|---|\n", "No change: \n", "no ", ". ", "now ", "I'll ", "?*"]
)
def test_a_text_that_goes_round_in_circles_takes_no_time(piece: str) -> None:
    started = time.monotonic()
    missing(piece * 200_000, UNCHANGED)
    assert time.monotonic() - started < 60
