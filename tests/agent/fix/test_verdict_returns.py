"""Test whole fixes in which the verdict goes back to the model: what the server receives, and killed sessions."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.agent.scripted import BUGGY, DONE, FIX, TEST, Fixes, calls, kill, of_type, run_there, says, start
from tests.conftest import one_kind
from tests.servers.misbehaving import MisbehavingServer, history_faults

pytestmark = pytest.mark.integration

BREAK = calls("file_edit", path="calc.py", old="return a * 2", new="return a * 3")
MEND = calls("file_edit", path="calc.py", old="return a * 3", new="return a * 2")
RIGHT = {"calc.py": BUGGY["calc.py"].replace("a - b", "a + b"), "test_calc.py": BUGGY["test_calc.py"]}
RED_TEST = calls(
    "file_write",
    path="test_new.py",
    content="from calc import add\n\ndef test_new():\n    assert add(1, 1) == 3\n",
)
GOOD_TEST = calls(
    "file_write",
    path="test_new.py",
    content="from calc import triple\n\ndef test_new():\n    assert triple(1) == 3\n",
)
TRIPLE = calls(
    "file_edit",
    path="calc.py",
    old="    return a * 2\n",
    new="    return a * 2\n\n\ndef triple(a):\n    return a * 3\n",
)
SOME = calls("test_runner", test_file="test_calc.py::test_add")
"""Runs one test only. So the session does not know what else is broken, and the completion gate cannot tell."""
WITH_OLD_TEST = {
    **BUGGY,
    "test_old.py": "from calc import add\n\n\ndef test_old():\n    assert add(1, 1) == 0\n",
}
"""Its test `test_old` states what the issue changes."""
PINNED = says("Pinned: test_old.py::test_old: it states the wrong sum.")
WRONG = calls("file_edit", path="calc.py", old="return a - b", new="return a * b")
CORRECT = calls("file_edit", path="calc.py", old="return a * b", new="return a + b")


@pytest.mark.parametrize(
    ("files", "answers", "kinds", "words"),
    [
        pytest.param(BUGGY, [FIX, BREAK, SOME, DONE, MEND, TEST, DONE], ["broken"], "- test_calc.py::test_double\n", id="broken", marks=pytest.mark.slow),
        pytest.param(BUGGY, [WRONG, TEST, DONE, CORRECT, TEST, DONE], ["still_red"], "assert 6 == 5", id="still red", marks=pytest.mark.slow),
        pytest.param(RIGHT, [TRIPLE, TEST, DONE, GOOD_TEST, TEST, DONE], ["no_red_test"], "Write a test that fails without", id="no red test"),
    ],
)  # fmt: skip
def test_the_verdict_goes_back_and_the_change_is_corrected(
    fixes: Fixes, files: dict[str, str], answers: list[Any], kinds: list[str], words: str
) -> None:
    done = fixes(files, list(answers))
    [told] = fixes.of_type("feedback")
    assert (told["round"], told["kinds"]) == (1, kinds)
    sent = [message["content"] for message in fixes.chats[-1].json["messages"]]
    assert sent.count(told["text"]) == 1
    assert words in told["text"]
    assert history_faults([chat.body for chat in fixes.chats]) == []
    assert [(line["by"], line["round"]) for line in fixes.of_type("verify")] == [("gate", 1), ("gate", 2)]
    assert "; this goes back to the model (message 1)" in done.stderr
    for kind in ("atif", "sft"):
        exported = run_there("sessions", "export", "last", "--format", kind)
        assert exported.returncode == 0
        assert json.dumps(told["text"])[1:40] in exported.stdout
    assert run_there("report", "last", "-o", str(fixes.home / "page.html")).returncode == 0
    assert "goes back to the model" in (fixes.home / "page.html").read_text()


@pytest.mark.slow  # quick: test_verify.py and test_verify_rounds.py
def test_a_test_that_states_what_the_issue_changes_can_be_named(fixes: Fixes) -> None:
    """The model learns of it from the first verdict, and the session ends after its answer: no message comes twice."""
    fixes(WITH_OLD_TEST, [FIX, SOME, DONE, PINNED], code=1)
    [back] = fixes.of_type("feedback")
    assert "Pinned: test_old.py::test_old: <why>" in back["text"]
    [first, last] = fixes.of_type("verify")
    assert (first["verdict"], last["verdict"], last["broken"]) == ("failed", "unverified", [])


@pytest.mark.slow  # quick: test_completion_gate.py
def test_a_resumed_session_knows_which_tests_were_named(fixes: Fixes) -> None:
    fixes.killed(WITH_OLD_TEST, [FIX, RED_TEST, SOME, PINNED])
    [told] = fixes.of_type("feedback")
    assert told["kinds"] == ["added_red"]
    green = "from calc import add\n\n\ndef test_new():\n    assert add(2, 2) == 4\n"
    done = fixes.resume([calls("file_write", path="test_new.py", content=green), SOME, DONE], code=1)
    last = fixes.of_type("verify")[-1]
    assert (last["verdict"], last["broken"]) == ("unverified", []), done.stderr


@pytest.mark.slow
def test_a_red_test_of_the_patch_fails_it(fixes: Fixes) -> None:
    done = fixes(BUGGY, [FIX, RED_TEST, SOME, DONE], code=1)
    [told] = fixes.of_type("feedback")
    assert told["kinds"] == ["added_red"]
    assert told["tests"] == ["test_new.py::test_new"]
    assert fixes.events()[-1]["status"] == "failed"
    rows = [line.split() for line in done.stderr.splitlines() if line.endswith(" test_new.py::test_new")]
    assert rows == [["red", "red", "test_new.py::test_new"]]


def resumed_ends_verified(model: MisbehavingServer, home: Path) -> None:
    """Resume the session, and check that its requests form one conversation with one message for the verdict."""
    model.answers = [MEND, TEST, DONE]
    done = run_there("sessions", "resume", "last")
    assert done.returncode == 0, done.stderr
    [told] = of_type(home, "feedback")
    messages = model.chats[-1].json["messages"]
    assert [message["content"] for message in messages].count(told["text"]) == 1
    assert not any("The session was interrupted" in str(message["content"]) for message in messages)
    assert history_faults([chat.body for chat in model.chats]) == []


@pytest.mark.slow  # quick: test_killed_in_a_call and test_verify_rounds.py
def test_killed_while_it_verifies(fixes: Fixes) -> None:
    fixes.model.answers = [FIX, BREAK, SOME, DONE]
    process = start(fixes.make_repo(BUGGY), fixes.model.url, one_kind())
    wait_for_event(fixes.home, "gate")
    kill(process)
    resumed_ends_verified(fixes.model, fixes.home)


@pytest.mark.slow  # quick: test_verify_rounds.py
def test_killed_between_the_verdict_and_the_message(fixes: Fixes) -> None:
    fixes(BUGGY, [FIX, BREAK, SOME, DONE], code=1)
    # the state that a kill leaves behind: the log has the feedback, the conversation does not
    [log] = (fixes.home / "state" / "sessions").glob("*/events.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    end = next(n for n, line in enumerate(lines, 1) if json.loads(line)["type"] == "feedback")
    log.write_text("".join(lines[:end]))
    told = log.with_name("messages.jsonl")
    messages = told.read_text().splitlines(keepends=True)
    position = next(
        n
        for n, line in enumerate(messages)
        if json.loads(line)["content"] == json.loads(lines[end - 1])["text"]
    )
    told.write_text("".join(messages[:position]))
    del fixes.model.requests[:]
    resumed_ends_verified(fixes.model, fixes.home)


def wait_for_event(home: Path, kind: str) -> None:
    """Wait until the log of the only session has an event of this type."""
    deadline = time.monotonic() + 60
    while not (list((home / "state" / "sessions").glob("*/events.jsonl")) and of_type(home, kind)):
        assert time.monotonic() < deadline, f"no {kind} in the log"
        time.sleep(0.005)  # the log is written by another process
