"""Test attempts side by side: one packed prefix, the best patch handed over, no more work than needed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.loop.limits import HINTS
from tests.agent.scripted import (
    BUGGY,
    DONE,
    FIX,
    NOT_TESTED,
    TEST,
    UNTESTED,
    Fixes,
    MakeRepo,
    calls,
    fix,
    kill,
    one_sentence,
    run_there,
    start,
)
from tests.command_line import run
from tests.conftest import git, one_kind
from tests.servers.misbehaving import (
    MisbehavingServer,
    Pause,
    Received,
    Reply,
    Silence,
    Stream,
    history_faults,
    messages_bytes,
)

pytestmark = pytest.mark.integration

WRONG = calls("file_edit", path="calc.py", old="return a - b", new="return a * b")
BREAKS = calls("file_edit", path="calc.py", old="return a * 2", new="return a * 3")
NOTHING = calls("code_exec", code="print('looked')")


def number_of(request: Received) -> int:
    """Return the number of the attempt that made a request, from the hint at the end of its first message."""
    told = request.json["messages"][1]["content"]
    return next((n + 1 for n, hint in enumerate(HINTS) if hint and hint in told), 1)


def scripted(*scripts: list[Any]) -> Callable[[Received], Any]:
    """Return a model that gives each attempt the next answer of its script, the last one for ever."""

    def answer(request: Received) -> Any:
        script = scripts[number_of(request) - 1]
        said = sum(message["role"] == "assistant" for message in request.json["messages"])
        return script[min(said, len(script) - 1)]

    return answer


def logs(home: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the log of each attempt, by its number."""
    found = {}
    for path in (home / "state" / "sessions").glob("*/events.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
        found[lines[0]["attempt"]["number"]] = lines
    return found


def chats_of(model: MisbehavingServer, number: int) -> list[Received]:
    return [chat for chat in model.chats if number_of(chat) == number]


@pytest.mark.slow
def test_the_best_is_handed_over(fixes: Fixes) -> None:
    repo = fixes.make_repo(BUGGY)
    done = fixes(
        repo,
        [scripted([WRONG, TEST, DONE], [TEST, FIX, TEST, DONE], [BREAKS, TEST, DONE])],
        "--attempts",
        "3",
        "--branch",
        "fixed",
    )
    assert "+    return a + b" in done.stdout
    assert "return a + b" in git(repo, "show", "fixed:calc.py"), "the chosen one's patch is on the branch"
    found = logs(fixes.home)
    assert sorted(found) == [1, 2, 3]
    assert found[2][-1]["status"] == "verified"
    group = {lines[0]["attempt"]["group"] for lines in found.values()}
    assert group == {found[1][0]["session"]}
    for number, lines in found.items():
        assert lines[-1]["type"] == "session.finished"
        assert "attempt 2 of 3 was chosen" in lines[-1]["notes"] or lines[-1]["status"] == "interrupted"
        [choice] = [line for line in lines if line["type"] == "attempt.chosen"]
        assert choice["chosen"] == 2
        assert choice["ranking"][0]["session"] == found[2][0]["session"]
        assert history_faults([chat.body for chat in chats_of(fixes.model, number)]) == []
    last = run_there("sessions", "show", "last", "--json")
    assert json.loads(last.stdout)["id"] == found[2][0]["session"], "the last session is the chosen one"


@pytest.mark.slow  # quick: test_attempt.py
def test_all_share_one_prefix_and_the_first_warms_the_cache(fixes: Fixes) -> None:
    asked: dict[int, float] = {}
    slow = Stream([Pause(1.0), *calls("test_runner", test_file=".").events])
    script = scripted([slow, FIX, TEST, DONE], [TEST, FIX, TEST, DONE], [TEST, FIX, TEST, DONE])

    def answer(request: Received) -> Any:
        asked.setdefault(number_of(request), time.monotonic())
        return script(request)

    fixes(BUGGY, [answer], "--attempts", "3")
    assert asked[2] - asked[1] >= 1.0, "it waits for the first one's first token"
    assert asked[3] - asked[1] >= 1.0
    firsts = [messages_bytes(chats_of(fixes.model, number)[0].body) for number in (1, 2, 3)]
    whole = firsts[0].removesuffix(b'"}')
    assert all(other.startswith(whole) for other in firsts), "they differ at the very end only"
    assert len(set(firsts)) == 3
    parameters = [chats_of(fixes.model, number)[0].json for number in (1, 2, 3)]
    assert [each["temperature"] for each in parameters] == [1.0, 0.7, 1.0]
    assert "seed" not in parameters[1], "servers sample slower with one"
    packed = [line["digest"] for lines in logs(fixes.home).values() for line in lines if "redacted" in line]
    assert len(packed) == 3
    assert len(set(packed)) == 1


@pytest.mark.slow  # quick: test_the_best_is_handed_over
def test_the_others_end_as_soon_as_one_is_verified(fixes: Fixes) -> None:
    fixes(BUGGY, [scripted([FIX, TEST, DONE], [NOTHING, Silence()])], "--attempts", "2")
    found = logs(fixes.home)
    assert found[1][-1]["status"] == "verified"
    assert found[2][-1]["status"] == "interrupted"
    assert found[2][-1]["reason"] == "attempt 1 was verified first"


def test_where_all_fail_the_exit_code_says_how(fixes: Fixes) -> None:
    fixes(BUGGY, [Reply(400, {"error": {"message": "no"}})], "--attempts", "2", code=4)
    assert [lines[-1]["status"] for lines in logs(fixes.home).values()] == ["error", "error"]


def test_without_a_server_one_session_says_so(make_repo: MakeRepo, own_state: Path) -> None:
    done = fix(make_repo(BUGGY), "http://127.0.0.1:9/v1", "--attempts", "8")
    assert done.returncode == 4
    [listed] = json.loads(run_there("sessions", "list", "--json").stdout)
    assert (listed["status"], listed["exit"]) == ("error", 4)
    [lines] = logs(own_state).values()
    assert lines[0]["attempt"]["of"] == 8
    assert [line["type"] for line in lines[-2:]] == ["error", "session.finished"]


def test_tokens_are_limited_for_all_together(fixes: Fixes) -> None:
    fixes(BUGGY, [scripted([NOTHING], [NOTHING])], "--attempts", "2", "--max-tokens", "40", code=6)
    used = [lines[-1]["completion_tokens"] or 0 for lines in logs(fixes.home).values()]
    # when the limit is reached, each attempt may have one unfinished answer
    assert 40 <= sum(used) <= 40 + 2 * 10


@pytest.mark.slow  # quick: test_resume.py
def test_killed_attempt_resumes_with_its_parameters(fixes: Fixes, monkeypatch: pytest.MonkeyPatch) -> None:
    fixes.model.answers = [scripted([FIX, Silence()], [FIX, Silence()])]
    monkeypatch.setenv("M3AGENT_ATTEMPTS", "2")
    process = start(fixes.repo(UNTESTED), fixes.model.url, one_kind())
    fixes.model.wait_for_chats(4)
    kill(process)
    before = chats_of(fixes.model, 2)[-1]
    fixes.model.answers = [scripted([FIX, NOT_TESTED], [FIX, NOT_TESTED])]
    done = run_there("sessions", "resume", logs(fixes.home)[2][0]["session"])
    assert done.returncode == 1, done.stderr
    first, second = logs(fixes.home)[1], logs(fixes.home)[2]
    assert second[-1]["status"] == "unverified"
    again = chats_of(fixes.model, 2)[-1]
    assert again.body == before.body, "messages, hint and temperature are those of the attempt"
    assert first[-1]["type"] != "session.finished", "the other one is left alone"


@pytest.mark.slow
def test_the_embedded_engine_searches_in_another_order_each_time(
    make_repo: MakeRepo, own_state: Path
) -> None:
    done = run(
        "fix", "add() is wrong", "--repo", str(make_repo(BUGGY)), "--engine", "embedded", "--attempts", "2"
    )
    assert done.returncode == 0, done.stderr
    started = [lines[0] for _, lines in sorted(logs(own_state).items())]
    assert [line["attempt"]["seed"] for line in started] == [None, 1]


@pytest.mark.parametrize("attempts", ["0", "65", "two"])
def test_an_odd_number_of_attempts_is_refused(make_repo: MakeRepo, attempts: str) -> None:
    done = run("fix", "x", "--repo", str(make_repo(BUGGY)), env={"M3AGENT_ATTEMPTS": attempts})
    assert done.returncode == 2
    assert "M3AGENT_ATTEMPTS" in one_sentence(done)
