"""Test fixes that stop at a plan, or at a red test that states the issue, until a person accepts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.fix.attempt import REFINE
from m3agent.agent.loop import prompt
from tests.agent.scripted import BUGGY, DONE, FIX, ISSUE, TEST, Fixes, calls, one_sentence, run_there, says
from tests.command_line import command, run
from tests.emulated_terminal import EmulatedTerminal
from tests.servers.misbehaving import MisbehavingServer, history_faults

pytestmark = pytest.mark.integration

PLAN = says("Plan: add() has to add.")
UNTESTED = {
    "calc.py": BUGGY["calc.py"],
    "test_calc.py": "from calc import double\n\n\ndef test_double():\n    assert double(2) == 4\n",
}
STATES = "from calc import add\n\n\ndef test_sum():\n    assert add(2, 3) == 5\n"
SPEC = calls("file_write", path="test_sum.py", content=STATES)
GREEN = calls("file_write", path="test_sum.py", content=STATES.replace("5", "-1"))
WEAK = calls("file_write", path="test_sum.py", content=STATES.replace("add(2, 3) == 5", "True"))
READY = says("test_sum states that 2 and 3 are 5.")


def last_told(fixes: Fixes) -> str:
    """Return the last message of the user that the model got."""
    told = [m for m in fixes.chats[-1].json["messages"] if m["role"] == "user"]
    return str(told[-1]["content"])


@pytest.mark.slow  # quick: tests/cli/test_fix_command.py
def test_a_plan_waits_and_is_corrected_accepted_and_carried_out(fixes: Fixes) -> None:
    done = fixes(BUGGY, [FIX, PLAN], "--plan", code=7)
    assert done.stdout == "Plan: add() has to add.\n"
    assert "m3agent sessions resume last" in done.stderr
    assert prompt.PROPOSE["plan"] in str(fixes.chats[0].json["messages"][1]["content"])
    again = fixes.resume([says("Plan: the same, and no new test.")], "--tell", "No <test>.", code=7)
    assert again.stdout == "Plan: the same, and no new test.\n"
    assert last_told(fixes) == prompt.CORRECTED["plan"].format("No <test>.")
    assert "Plan: add() has to add." in again.stderr, "what waits is shown again"
    fixes.resume([FIX, TEST, DONE])
    told = [m["content"] for m in fixes.chats[-1].json["messages"] if m["role"] == "user"]
    assert told.count(prompt.ACCEPTED["plan"]) == 1
    assert history_faults([chat.body for chat in fixes.chats]) == []
    answers = [(line["accepted"], line["text"]) for line in fixes.of_type("proposal.answered")]
    assert answers == [(False, "No <test>."), (True, "")]
    assert fixes.events()[-1]["status"] == "verified", "what the model changed before the plan was undone"


def test_a_test_is_accepted_and_the_verdict_rests_on_it(fixes: Fixes) -> None:
    """A test that is green on the present code goes back, and a change to the accepted test does not count."""
    done = fixes(UNTESTED, [GREEN, READY, SPEC, READY], "--spec", code=7)
    [proposal] = fixes.of_type("proposal")
    assert list(proposal["tests"]) == ["test_sum.py::test_sum"]
    assert "assert -1 == 5" in proposal["tests"]["test_sum.py::test_sum"]
    assert "+++ b/test_sum.py" in done.stdout
    assert "red" in done.stderr
    assert "No test that you added is red" in json.dumps(fixes.chats[2].json["messages"])
    fixes.resume([FIX, TEST, DONE])
    verdict = fixes.of_type("verify")[-1]
    assert (verdict["verdict"], verdict["fixed"], verdict["own_only"]) == (
        "verified",
        ["test_sum.py::test_sum"],
        False,
    )
    patch = Path(fixes.events()[-1]["patch"]).read_text()
    assert "+++ b/test_sum.py" in patch
    assert "+++ b/calc.py" in patch


@pytest.mark.slow
def test_a_certificate_names_the_accepted_test_and_holds(
    server: MisbehavingServer, make_repo: Any, own_state: Path
) -> None:
    """The person accepts at the terminal. A check verifies the patch against the tree without the test."""
    server.answers = [SPEC, READY, FIX, TEST, DONE]
    repo, file = make_repo(UNTESTED), own_state / "certificate.json"
    words = command(
        "fix",
        ISSUE,
        "--repo",
        str(repo),
        "--endpoint",
        server.url,
        "--spec",
        "--apply",
        "--certificate",
        str(file),
    )
    with EmulatedTerminal(words, output_too=True) as terminal:
        terminal.until(lambda lines: any("Enter accepts the test" in line for line in lines))
        assert any("assert -1 == 5" in line for line in terminal.lines)
        terminal.press(b"\r")
        terminal.until(lambda lines: any(REFINE in line for line in lines))
        terminal.press(b"\r")
        assert terminal.until_the_end() == 0
    predicate = json.loads(file.read_text())["predicate"]
    assert (predicate["verdict"], predicate["accepted"]) == ("verified", ["test_sum.py"])
    checked = run("verify", "--repo", str(repo), "--check", str(file))
    assert checked.returncode == 0, checked.stderr + checked.stdout


@pytest.mark.slow  # quick: the tests of each step
def test_each_step_on_a_terminal_says_the_next_one(fixes: Fixes) -> None:
    """Leave a test for later, accept it, refine the fix, apply it, take it back, apply it again."""
    repo = str(fixes.repo(UNTESTED))
    fixes.model.answers = [SPEC, READY, FIX, TEST, DONE, says("The names are clear.")]
    steps = "fix", ISSUE, "--endpoint", fixes.model.url, "--spec"

    def terminal(*words: str) -> EmulatedTerminal:
        return EmulatedTerminal(command(*words, "--repo", repo), output_too=True, columns=200)

    def says_next(shown: EmulatedTerminal, words: str, code: int = 0) -> None:
        assert shown.until_the_end() == code
        assert words in " ".join(line.strip() for line in shown.lines)

    with terminal(*steps) as shown:
        shown.until(lambda lines: any("Enter accepts the test" in line for line in lines))
        shown.press(b"\x03")
        says_next(shown, f"m3agent sessions resume last --repo {repo}", 7)
    with terminal("sessions", "resume", "last") as shown:
        shown.until(lambda lines: any("Enter accepts the test" in line for line in lines))
        shown.press(b"\r")
        shown.until(lambda lines: any(f"The change is verified. {REFINE}" in line for line in lines))
        shown.press(b"Are the names clear?\r")
        shown.until(lambda lines: sum(REFINE in line for line in lines) == 2)
        shown.press(b"\r")
        says_next(shown, f"m3agent apply --repo {repo}")
    with terminal("apply") as shown:
        says_next(shown, f"m3agent apply --undo --repo {repo}")
    [session] = json.loads(run("sessions", "list", "--json", "--repo", repo).stdout)
    with terminal("apply", "--undo") as shown:
        says_next(shown, f"m3agent apply {session['id']} --repo {repo}")
    assert run("apply", session["id"], "--repo", repo).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("pages", [False, True])
def test_nobody_is_asked_who_wants_no_questions_or_reads_in_a_pager(
    server: MisbehavingServer, make_repo: Any, own_state: Path, pages: bool
) -> None:
    """A pager in a pipe reads the same keyboard."""
    server.answers = [PLAN]
    words = command("fix", ISSUE, "--repo", str(make_repo(BUGGY)), "--endpoint", server.url, "--plan")
    with EmulatedTerminal([*words, *([] if pages else ["--yes"])], output_too=not pages) as terminal:
        assert terminal.until_the_end() == 7
        assert not any("Enter accepts" in line or line.startswith(">") for line in terminal.lines)


@pytest.mark.slow
def test_a_fork_from_the_turn_of_a_proposal_has_no_answer_to_it(fixes: Fixes) -> None:
    fixes(UNTESTED, [SPEC, READY], "--spec", code=7)
    fixes.resume([FIX, TEST, DONE])
    fixes.model.answers = [
        calls("file_write", path="test_sum.py", content=STATES.replace("2, 3", "3, 2")),
        READY,
    ]
    turn = str(fixes.of_type("proposal")[0]["turn"])
    done = run_there("sessions", "fork", "last", "--turn", turn, "--tell", "The other way around.")
    assert done.returncode == 7, done.stderr
    assert last_told(fixes) == prompt.CORRECTED["spec"].format("The other way around.")
    assert "add(3, 2)" in done.stdout


@pytest.mark.slow  # quick: test_a_test_is_accepted_and_the_verdict_rests_on_it
def test_weakening_the_accepted_test_is_no_fix(fixes: Fixes) -> None:
    fixes(UNTESTED, [SPEC, READY], "--spec", code=7)
    fixes.resume([WEAK, TEST, DONE, DONE, DONE, DONE, DONE], code=1)
    assert fixes.of_type("verify")[-1]["verdict"] != "verified"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--plan", "--spec"], "--plan and --spec exclude each other"),
        (["--plan", "--result-only"], "--plan and --result-only exclude each other"),
        (["--spec", "--engine", "embedded"], "the embedded engine cannot propose a test"),
        (["--plan", "--attempts", "2"], "--plan is for one attempt"),
    ],
)
def test_what_does_not_go_together(
    options: list[str], sentence: str, server: MisbehavingServer, make_repo: Any, own_state: Any
) -> None:
    where = [] if "--engine" in options else ["--endpoint", server.url]
    done = run("fix", ISSUE, "--repo", str(make_repo(BUGGY)), *where, *options)
    assert done.returncode == 2
    assert sentence in one_sentence(done)
