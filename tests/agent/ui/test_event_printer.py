"""Test the lines on standard error, which no text from a repository or an answer can use to control the terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.session import events
from m3agent.agent.session.events import Event
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.session import Session
from m3agent.agent.ui.event_printer import Screen
from m3agent.agent.util.sanitize import printable_line

HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]x[/] :smile:\r\nnext\x9b \u202e\udcff end"
TAMED = "[2J ]0;owned [bold red]x[/] :smile: next    end"

Show = Callable[..., str]


@pytest.fixture
def show(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Show:
    """Return a function that prints events and returns the text on standard error."""

    def run(*written: Event, quiet: bool = False) -> str:
        with Screen(quiet=quiet) as screen:
            session = Session.create(tmp_path, [screen.on_line])
            for event in written:
                session.write(event)
            session.close()
        captured = capfd.readouterr()
        assert captured.out == "", "standard output is the patch's"
        return captured.err

    return run


def started(**changes: Any) -> events.SessionStarted:
    repository = {"head": "0123456789abcdef" * 2, "branch": "main", "dirty": 0}
    values: dict[str, Any] = {
        "m3agent": "0",
        "repository": {**repository, **changes},
        "issue": {"title": changes.pop("title", "It is broken")},
        "endpoint": {"description": "embedded"},
        "sandbox": {"backend": "docker"},
        "settings": {},
        "tree": "t",
    }
    return events.SessionStarted(**values)


def call_started(arguments: dict[str, Any] | None) -> events.CallStarted:
    return events.CallStarted(turn=2, call=1, id="c", name="code_exec", arguments=arguments, tree="t")


def finished_call(content: str = "exit code: 0\nstdout:\nx", status: str = "done") -> events.CallFinished:
    values: dict[str, Any] = {
        "turn": 2, "call": 1, "id": "c", "name": "code_exec", "status": status, "content": content, "is_error": False,
        "exit_code": 0, "digest": "", "truncated": False, "full_path": None, "data": {}, "seconds": 1.25, "tree": "t",
    }  # fmt: skip
    return events.CallFinished(**values)


def ended(status: str = "verified", **changes: Any) -> events.SessionFinished:
    values: dict[str, Any] = {
        "status": status, "exit": 0, "reason": "1 test red before, green after", "patch": None, "paths": [],
        "notes": [], "pull_request": None, "turns": 4, "calls": 7, "prompt_tokens": None, "cached_tokens": None,
        "completion_tokens": None, "reasoning_tokens": None, "cached_share": None, "tokens_per_second": None, "price": None, "seconds": 12.34,
        **changes,
    }  # fmt: skip
    return events.SessionFinished(**values)


def turn_ended(**changes: Any) -> events.TurnFinished:
    values: dict[str, Any] = {
        "turn": 2, "finish": "stop", "prompt_tokens": 500_000, "cached_tokens": 499_000, "completion_tokens": 312,
        "reasoning_tokens": 40, "cached_share": 0.998, "tokens_per_second": 61.2, "first_token_seconds": 0.44,
        "seconds": 5.5, "price": None, **changes,
    }  # fmt: skip
    return events.TurnFinished(**values)


def network(verdict: str, reason: str = "", host: str = "x.example") -> events.NetworkRequest:
    values: dict[str, Any] = {
        "where": "session",
        "method": "GET",
        "host": host,
        "port": 80,
        "sent": 0,
        "received": 0,
    }
    return events.NetworkRequest(**values, verdict=verdict, reason=reason, seconds=0.1)  # type: ignore[arg-type]


def verdict(verdict: str = "verified", **sets: list[str]) -> events.Verify:
    values: dict[str, Any] = {
        "verdict": verdict, "reason": "why", "fixed": [], "broken": [], "still_red": [], "new": [], "flaky": [],
        "seconds": 2.0, **sets,
    }  # fmt: skip
    return events.Verify(**values)


@pytest.mark.parametrize(
    ("event", "lines"),
    [
        (
            started(),
            ["issue    It is broken", "commit   0123456789ab (main)", "engine   embedded", "sandbox  docker"],
        ),
        (started(branch=None, dirty=3), ["commit   0123456789ab (detached), 3 uncommitted changes included"]),
        (
            events.ContextPacked(
                files=12,
                tokens=34567,
                exact=False,
                dropped={"a": 2, "b": 1},
                redacted=["x", "y"],
                digest="",
                seconds=1,
            ),
            ["context  12 files, ≈34,567 tokens, 3 left out, secrets redacted in 2"],
        ),
        (
            events.ContextPacked(
                files=1, tokens=10, exact=True, dropped={}, redacted=[], digest="", seconds=1
            ),
            ["context  1 file, 10 tokens"],
        ),
        (
            events.SessionResumed(m3agent="0", messages=7, tree="t", interrupted=[]),
            ["resumed  the session resumes after 7 messages"],
        ),
        (events.Message(turn=3, reasoning="r", text="I see.\n\nNow.", calls=[]), ["turn 3   I see. Now."]),
        (
            events.FileChanged(turn=1, call=1, changes=[("M", "a.py"), ("A", "b.py")], tree="t"),
            ["changed  a.py, b.py"],
        ),
        (
            events.Stall(turn=1, rule="r", count=3, action="told", text="three times"),
            ["stall    three times (told)"],
        ),
        (events.Gate(turn=1, missing="run the tests", asked=0), ["gate     run the tests"]),
        (
            network("refused", "x.example:80 is not open"),
            ["network  refused GET x.example:80: x.example:80 is not open"],
        ),
        (events.Retry(attempt=1, wait=2.4, reason="busy"), ["retry    busy (in 2 s)"]),
        (
            verdict(fixed=[f"t{n}" for n in range(7)], broken=["b"], flaky=["f"]),
            [
                "verify   why (2.0 s)",
                "         fixed: t0",
                "         fixed: 2 more",
                "         broken: b",
                "         flaky: f",
            ],
        ),
        (events.Error(kind="ImageMissing", text="there is no image", exit=3), ["error    there is no image"]),
        (
            ended(notes=["read conftest.py"], patch="/s/patch.diff"),
            [
                "note     read conftest.py",
                "verified 1 test red before, green after  (12.3 s, 4 turns)",
                "patch    /s/patch.diff",
            ],
        ),
        (
            turn_ended(),
            ["turn 2   500,000 tokens in (99.8% cached), 312 out (40 thinking), 61/s, first after 0.4 s"],
        ),
        (
            turn_ended(cached_share=0.01, reasoning_tokens=None, tokens_per_second=None, price=0.3),
            [
                "turn 2   500,000 tokens in (1.0% cached), 312 out, first after 0.4 s, $0.3000",
                "cache    the server's cache had 1% of a prompt that only grew: the rest is computed again",
            ],
        ),
        (
            ended(prompt_tokens=3000, completion_tokens=70, tokens_per_second=10.4, price=0.02),
            ["used     3,000 tokens in, 70 out, 10/s, $0.0200"],
        ),
        (ended("interrupted"), ["interrupted 1 test red before, green after  (12.3 s, 4 turns)"]),
    ],
)
def test_events_as_lines(show: Show, event: Event, lines: list[str]) -> None:
    output = show(event).splitlines()
    for line in lines:
        assert any(
            each.startswith(line.rstrip()) or " ".join(each.split()) == " ".join(line.split())
            for each in output
        )
    assert show(event, quiet=True) == ""


def test_a_call_is_shown_with_the_argument_that_tells_most(show: Show) -> None:
    output = show(
        call_started({"path": "a.py", "old": "x", "new": "y"}),
        finished_call("edited a.py from line 1"),
        call_started({"code": "\n\nimport os\nprint(1)", "timeout": 5}),
        finished_call("exit code: 0\nstdout:\n1"),
        call_started(None),
        finished_call("", "refused"),
    )
    assert output.splitlines() == [
        "turn 2   code_exec a.py: edited a.py from line 1  (1.2 s)",
        "turn 2   code_exec import os: exit code: 0  (1.2 s)",
        "turn 2   code_exec:   (1.2 s)",
    ]


def of_attempt(number: int, event: Event, **changes: Any) -> Line:
    return {"session": f"s{number}", "type": event.type, **dataclasses.asdict(event), **changes}


def test_attempts_say_once_what_they_have_in_common_and_else_their_number(
    capfd: pytest.CaptureFixture[str],
) -> None:
    packed = {"exact": True, "dropped": {}, "redacted": [], "digest": "", "seconds": 1}
    with Screen() as screen:
        for number in (1, 2):
            attempt = {"number": number, "of": 10}
            screen.on_line(of_attempt(number, started(), attempt=attempt))
        for number in (1, 2):
            screen.on_line(of_attempt(number, events.ContextPacked(files=number, tokens=9, **packed)))  # type: ignore[arg-type]
        for number, path in ((1, "a.py"), (2, "b.py")):
            screen.on_line(of_attempt(number, call_started({"path": path})))
        for number in (1, 2):
            screen.on_line(of_attempt(number, finished_call("done")))
        for number, status in ((2, "verified"), (1, "failed")):
            screen.on_line(of_attempt(number, ended(status)))
        screen.say("all are done")
    assert capfd.readouterr().err.splitlines() == [
        "issue    It is broken",
        "commit   0123456789ab (main)",
        "engine   embedded",
        "sandbox  docker",
        " 1│ session  s1",
        " 2│ session  s2",
        "context  1 file, 9 tokens",
        " 2│ context  2 files, 9 tokens",
        " 1│ turn 2   code_exec a.py: done  (1.2 s)",
        " 2│ turn 2   code_exec b.py: done  (1.2 s)",
        " 2│ verified 1 test red before, green after  (12.3 s, 4 turns)",
        " 1│ failed   1 test red before, green after  (12.3 s, 4 turns)",
        "note: all are done",
    ]


@pytest.mark.parametrize("attempt", [None, {"number": 1, "of": 1}])
def test_a_single_attempt_has_no_number(capfd: pytest.CaptureFixture[str], attempt: object) -> None:
    Screen().on_line(of_attempt(1, started(), attempt=attempt))
    assert capfd.readouterr().err.endswith("\nsession  s1\n")


def test_a_cold_cache_is_no_fault_of_the_first_turn(show: Show) -> None:
    assert "cache " not in show(turn_ended(turn=1, cached_share=0.0))
    assert "cache " not in show(turn_ended(cached_share=0.0, prompt_tokens=900))


def test_events_that_say_nothing_to_a_person(show: Show) -> None:
    silent = (
        events.TurnStarted(turn=1, messages=2, digest="d"),
        events.Message(turn=1, reasoning="thinking", text=" \n", calls=[]),
        events.Gate(turn=1, missing="", asked=1),
        call_started({"path": "\n"}),
        call_started(None),
    )
    assert show(*silent) == ""


def test_requests_to_the_network_do_not_flood_the_screen(show: Show) -> None:
    assert show(network("allowed"), network("refused", "why"), network("refused", "why")).count("\n") == 1
    assert show(*(network("failed", f"reason {n}") for n in range(100))).count("\n") == 20


def test_nothing_drives_the_terminal(show: Show) -> None:
    written = (
        started(title=HOSTILE, branch=HOSTILE),
        events.Message(turn=1, reasoning=HOSTILE, text=HOSTILE, calls=[]),
        call_started({"code": HOSTILE}),
        finished_call(content=HOSTILE),
        events.FileChanged(turn=1, call=1, changes=[("A", HOSTILE)], tree="t"),
        verdict(fixed=[HOSTILE]),
        events.Error(kind="x", text=HOSTILE, exit=3),
        ended(reason=HOSTILE, notes=[HOSTILE], patch=HOSTILE),
    )
    output = show(*written)
    assert not any(ord(char) < 32 and char != "\n" for char in output)
    assert not set(output) & {"\x9b", "\u202e", "\x7f", "\udcff"}
    # square brackets are text and not markup, and colons do not make emoji
    assert output.count("[bold red]x[/] :smile:") >= 6


def test_a_tools_name_does_not_drive_the_terminal(show: Show) -> None:
    """A model may use any string as a tool's name."""
    named = dataclasses.replace(call_started({"code": "x"}), name=HOSTILE)
    finished = dataclasses.replace(finished_call(), name=HOSTILE)
    for written in ((named, finished), (finished,)):
        output = show(*written)
        assert "turn 2" in output
        assert not any(ord(char) < 32 and char != "\n" for char in output)
        assert not set(output) & {"\x9b", "\u202e", "\x7f", "\udcff"}


def test_a_note_is_always_shown(capfd: pytest.CaptureFixture[str]) -> None:
    Screen(quiet=True).say(f"first {HOSTILE}")
    output = capfd.readouterr().err
    assert output.startswith("note: first")
    assert "\x1b" not in output
    assert output.count("\n") == 1


@given(st.text(max_size=300), st.integers(1, 100))
def test_shown_is_one_printable_line(text: str, limit: int) -> None:
    line = printable_line(text, limit)
    assert len(line) <= limit
    assert "\n" not in line
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in line)
    line.encode()


def test_shown_tames(show: Show) -> None:
    assert " ".join(printable_line(HOSTILE).split()) == " ".join(TAMED.split())


def test_an_end_without_isolation_says_so(show: Show) -> None:
    begun = dataclasses.replace(started(), sandbox={"backend": "here"})
    assert "verified (not isolated)" in show(begun, ended())
    assert "not isolated" not in show(started(), ended())
