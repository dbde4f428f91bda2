"""Test the lines on standard error, which no text from a repository or an answer can use to control the terminal."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.loop.inbox import NO_ADVICE, Inbox
from m3agent.agent.repo.snapshot import TREES
from m3agent.agent.session import events
from m3agent.agent.session.events import Event
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.session import Session
from m3agent.agent.ui.event_printer import Detail, Screen
from m3agent.sandbox.store.git import TreeEntry, TreeStore
from m3agent.util.sanitize import printable_line
from tests.agent.session.an_event import an_event

HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]x[/] :smile:\r\nnext\x9b \u202e\udcff end"
TAMED = "[2J ]0;owned [bold red]x[/] :smile: next    end"

Show = Callable[..., str]


@pytest.fixture
def show(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Show:
    """Return a function that prints events and returns the text on standard error."""

    def run(*written: Event, **options: Any) -> str:
        with Screen(state=tmp_path, **options) as screen:
            session = Session.create(tmp_path, [screen.on_line])
            for event in written:
                session.write(event)
            session.close()
        captured = capfd.readouterr()
        assert captured.out == "", "standard output is the patch's"
        return captured.err

    return run


def started(title: str = "It is broken", **changes: Any) -> events.SessionStarted:
    repository = {"root": "/code/shop", "head": "0123456789abcdef" * 2, "branch": "main", "dirty": 0}
    return an_event(
        events.SessionStarted,
        repository={**repository, **changes},
        issue={"title": title},
        endpoint={"description": "embedded", "source": "embedded"},
        sandbox={"backend": "docker"},
    )


PROBED = an_event(
    events.EndpointProbed, model="MiniMax-M3", flavour="vllm", version="0.33", max_model_len=100_000
)
FIRST_TURN = an_event(events.TurnStarted, turn=1)


def packed(files: int = 1, tokens: int = 10, **values: Any) -> events.ContextPacked:
    return an_event(events.ContextPacked, files=files, tokens=tokens, **{"exact": True, **values})


def call_started(
    arguments: dict[str, Any] | None, name: str = "code_exec", **values: Any
) -> events.CallStarted:
    return an_event(events.CallStarted, turn=2, call=1, name=name, arguments=arguments, **values)


def finished_call(
    content: str = "exit code: 0\nstdout:\nx", status: str = "done", **changes: Any
) -> events.CallFinished:
    values = {"name": "code_exec", "exit_code": 0, "seconds": 1.25, **changes}
    return an_event(events.CallFinished, turn=2, call=1, status=status, content=content, **values)


def ended(status: str = "verified", **changes: Any) -> events.SessionFinished:
    values = {"reason": "1 test red before, green after", "turns": 4, "seconds": 12.34, **changes}
    return an_event(events.SessionFinished, status=status, **values)


def turn_ended(**changes: Any) -> events.TurnFinished:
    values: dict[str, Any] = {
        "turn": 2, "prompt_tokens": 500_000, "cached_tokens": 499_000, "completion_tokens": 312, "reasoning_tokens": 40,
        "cached_share": 0.998, "tokens_per_second": 61.2, "first_token_seconds": 0.44, "seconds": 5.5, **changes,
    }  # fmt: skip
    return an_event(events.TurnFinished, **values)


def network(verdict: str, reason: str = "") -> events.NetworkRequest:
    return an_event(
        events.NetworkRequest, method="GET", host="x.example", port=80, verdict=verdict, reason=reason
    )


def verdict(verdict: str = "verified", reason: str = "why", **values: Any) -> events.Verify:
    return an_event(events.Verify, verdict=verdict, reason=reason, seconds=2.0, **values)


def suite(where: str, passed: list[str], failed: list[str]) -> events.TestFinished:
    return an_event(events.TestFinished, where=where, passed=passed, failed=failed, complete=True)


@pytest.mark.parametrize(
    ("event", "lines"),
    [
        (
            started(),
            [
                "issue      It is broken",
                "repository /code/shop at 0123456789ab (main)",
                "model      embedded",
                "sandbox    docker",
                "session    SESSION",
            ],
        ),
        (
            started(branch=None, dirty=3),
            [
                "issue      It is broken",
                "repository /code/shop at 0123456789ab (detached), 3 uncommitted files included",
                "model      embedded",
                "sandbox    docker",
                "session    SESSION",
            ],
        ),
        (an_event(events.SessionResumed, messages=7), ["resumed    after 7 messages"]),
        (events.Message(turn=3, reasoning="r", text="I see.\n\nNow.", calls=[{}]), ["• I see. Now."]),
        (
            events.Message(turn=3, reasoning="r", text="It is mended.\nBut not tested.\n", calls=[]),
            ["• It is mended.", "  But not tested."],
        ),
        (an_event(events.FileChanged, changes=[("M", "a.py"), ("A", "b.py")]), ["  M a.py, A b.py"]),
        (
            events.Stall(turn=1, rule="r", count=3, action="told", text="three times"),
            ["! no progress: three times (the model was told)"],
        ),
        (events.Gate(turn=1, missing="run the tests", asked=0), ["! not done yet: run the tests"]),
        (
            network("refused", "x.example:80 is not open"),
            ["! network: refused GET x.example:80: x.example:80 is not open"],
        ),
        (events.Retry(attempt=1, wait=2.4, reason="busy"), ["! asking again in 2 s: busy"]),
        (
            events.TokensDiffer(turn=2, kept=1000, expected=2000),
            [
                (
                    "! the prompt repeats 1,000 of the 2,000 tokens so far: a trainer cannot use this turn and the last one "
                    "as one sequence"
                )
            ],
        ),
        (
            verdict(fixed=[f"t{n}" for n in range(7)], broken=["b"], flaky=["f"], added_red=["a"]),
            [
                "tests      before after  in fresh sandboxes, 2.0 s",
                *(f"           red    green  t{n}" for n in range(5)),
                "           red    green  2 more",
                "           green  red    b",
                "           -      red    a",
                "           varies varies f",
            ],
        ),
        (
            verdict(
                tampering=["it lies"], review=[{"path": "a.py", "line": 3, "what": "frames", "text": "x"}]
            ),
            [
                "tests      before after  in fresh sandboxes, 2.0 s",
                "tampering  it lies",
                "review     a.py:3 frames: x",
            ],
        ),
        (events.Error(kind="ImageMissing", text="there is no image", exit=3), ["✗ there is no image"]),
        (turn_ended(), []),
        (turn_ended(cached_share=0.01), []),
        (
            events.CacheLost(3, 21_000, 128, 20_872, 2.5, ""),
            [
                (
                    "! 20,872 of 21,000 tokens had left the cache and were read again, first token after 2.5 s: another server "
                    "answered, or the cache was full"
                )
            ],
        ),
        (
            events.PriceStep(3, 479_310, 512_000, 2.0),
            [
                (
                    "! the conversation has 479,310 tokens: above 512,000, a request costs 2 times as much; a lower "
                    "--context-budget leaves more room"
                )
            ],
        ),
        (
            events.CacheLost(3, 21_000, 0, 21_000, None, "it answers 502"),
            [
                "! 21,000 of 21,000 tokens had left the cache and were read again: a request failed (it answers 502)"
            ],
        ),
        (
            ended(notes=["read conftest.py"], patch="/s/patch.diff", paths=["a.py", "b.py", "c.py", "d.py"]),
            [
                "✓ verified 1 test red before, green after",
                "cost       12 s, 4 turns",
                "note       read conftest.py",
                "patch      /s/patch.diff (a.py, b.py, c.py and 1 more)",
                "next       m3agent apply  writes it into your work tree",
                "           m3agent sessions fork last --tell TEXT  continues with your advice",
            ],
        ),
        (
            ended("empty", reason="nothing was changed", turns=1),
            [
                "! empty    nothing was changed",
                "cost       12 s, 1 turn",
                "next       m3agent sessions fork last --tell TEXT  continues with your advice",
                "           m3agent report  shows each step",
            ],
        ),
        (
            ended("interrupted", reason="interrupted", prompt_tokens=3000, completion_tokens=70, price=0.02),
            [
                "! interrupted",
                "cost       12 s, 4 turns, 3,000 tokens in, 70 out, $0.0200",
                "next       m3agent sessions resume last  continues here",
            ],
        ),
        (
            ended("interrupted", reason="interrupted", turns=0),
            ["! interrupted", "next       type the same command again  no model was asked yet"],
        ),
        (ended("error", reason="no such image", turns=0), ["✗ error    no such image"]),
    ],
)
def test_events_as_lines(show: Show, event: Event, lines: list[str]) -> None:
    output = re.sub(r"\d{8}-\d{6}-\w{6}", "SESSION", show(event))
    assert output.splitlines() == lines


def test_a_resumed_session_says_again_what_it_is_about(capfd: pytest.CaptureFixture[str]) -> None:
    begun = {"type": "session.started", "session": "s", **vars(started())}
    with Screen(rows=False) as screen:
        screen.read([begun])
        screen.on_line({"type": "session.resumed", "session": "s", "messages": 5, "interrupted": []})
    assert capfd.readouterr().err.splitlines() == [
        "issue      It is broken",
        "repository /code/shop at 0123456789ab (main)",
        "model      embedded",
        "sandbox    docker",
        "session    s",
        "resumed    after 5 messages",
    ]


@pytest.mark.parametrize("resumes", [0, 1])
def test_a_forked_session_says_what_it_continues(resumes: int, capfd: pytest.CaptureFixture[str]) -> None:
    resumed = {"type": "session.resumed", "session": "s", "messages": 5, "interrupted": []}
    forked = {"type": "session.forked", "session": "s", "source": "first", "turn": 4}
    with Screen(rows=False) as screen:
        screen.read([forked, *[resumed] * resumes])
        screen.on_line(resumed)
    expected = "resumed    after 5 messages" if resumes else "forked     from first, after turn 4"
    assert capfd.readouterr().err.splitlines() == [expected]


def test_the_engine_embedded_has_no_tokens_whoever_started_it(show: Show) -> None:
    served = dataclasses.replace(PROBED, flavour="embedded")
    end = ended(prompt_tokens=3000, completion_tokens=70)
    lines = show(served, packed(), turn_ended(), end, detail=Detail.VERBOSE).splitlines()
    assert lines == [
        "context    1 file, 10 tokens",
        "✓ verified 1 test red before, green after",
        "cost       12 s, 4 turns",
    ]


@pytest.mark.parametrize(("failed", "first"), [([], "add a test that fails"), (["t"], "m3agent fix ISSUE")])
def test_the_engine_embedded_asks_for_a_test_that_fails(show: Show, failed: list[str], first: str) -> None:
    before = an_event(events.Baseline, passed=["a"], failed=failed, complete=True)
    output = show(started(), before, ended("empty", reason="nothing was changed", turns=1))
    assert f"\nnext       {first}" in output


def test_a_fix_without_a_patch_has_next_steps_although_it_was_to_be_applied(show: Show) -> None:
    output = show(ended("empty", exit=1, reason="nothing was changed"), shown_by="git diff")
    assert "next       m3agent sessions fork last --tell TEXT" in output


def test_encoded_data_is_not_shown_in_the_details(show: Show) -> None:
    output = show(
        call_started({"code": "x"}),
        finished_call(f'exit code: 0\nstdout:\nM3-REPAIR {{"packed":"{"eNq1" * 100}"}}'),
        detail=Detail.VERBOSE,
    )
    assert '    M3-REPAIR {"packed":"(400 characters of data)"}' in output.splitlines()


def test_the_engine_embedded_is_not_offered_advice_that_it_cannot_take(show: Show) -> None:
    output = show(started(), ended("empty", reason="nothing was changed", turns=1)).splitlines()
    assert output[-2:] == [
        "next       m3agent fix ISSUE --endpoint URL  asks a language model; this engine makes small repairs only",
        "           m3agent report  shows each step",
    ]


def test_the_share_of_the_window_is_shown_when_the_window_is_known(show: Show) -> None:
    partly = packed(12, 34567, exact=False, dropped={"a": 2, "b": 1}, redacted=["x", "y"])
    said = "context    12 files, ≈34,567 tokens, 3 left out, secrets redacted in 2"
    assert show(partly) == ""
    assert show(partly, FIRST_TURN) == f"{said}\n"
    assert show(partly, PROBED).splitlines() == [
        "model      MiniMax-M3 (vllm 0.33)",
        f"{said}, 34.6% of the model's window",
    ]
    assert show(PROBED, partly).endswith(f"{said}, 34.6% of the model's window\n")
    assert show(packed(), FIRST_TURN) == "context    1 file, 10 tokens\n"


def test_a_step_is_one_line_with_its_outcome(show: Show) -> None:
    tests = {"passed": ["a", "b"], "failed": ["c"], "errored": [], "skipped": []}
    output = show(
        call_started({"path": "a.py", "old": "x", "new": "y"}, "file_edit"),
        finished_call("edited a.py from line 1", name="file_edit"),
        call_started({"path": "a.py"}, "file_read"),
        finished_call("1\tx\n2\ty", name="file_read", exit_code=None),
        call_started({"code": "\n\nimport os\n# list the files\nprint(1)", "timeout": 5}),
        finished_call("exit code: 0\nstdout:\na\nsetup.py", seconds=0.2),
        call_started({"code": "make"}),
        finished_call("exit code: 2\nstderr:\nno rule", is_error=True, exit_code=2),
        call_started({"code": "x"}),
        finished_call(f"exit code: 0\nstdout:\n{'x' * 999}", seconds=0.2),
        call_started({"test_file": "."}, "test_runner"),
        finished_call("2 passed", name="test_runner", is_error=True, exit_code=1, data=tests),
        call_started(None),
        finished_call("error: no arguments", "refused"),
        call_started({"query": "x"}, "web.search"),
        finished_call("3 pages", name="web.search", exit_code=None),
    )
    assert output.splitlines() == [
        "✓ edit a.py  1.2 s",
        "✓ read a.py  2 lines, 1.2 s",
        "✓ list the files  setup.py",
        "✗ run make  exit 2: no rule, 1.2 s",
        "✓ run x",
        "✗ test everything  2 passed, 1 failed, 1.2 s",
        "✗ run  refused: no arguments, 1.2 s",
        "✓ web.search  3 pages, 1.2 s",
    ]


def test_the_details_have_times_rates_and_output(show: Show) -> None:
    output = show(
        call_started({"code": "make"}),
        finished_call("exit code: 0\n" + "".join(f"line {n}\n" for n in range(12)), seconds=0.04),
        turn_ended(),
        detail=Detail.VERBOSE,
    )
    assert output.splitlines() == [
        "✓ run make  line 11, 40 ms",
        "    exit code: 0",
        *(f"    line {n}" for n in range(5)),
        "    … 3 more lines",
        *(f"    line {n}" for n in range(8, 12)),
        "turn 2     500,000 tokens in (99.8% cached), 312 out (40 thinking), 61 tokens/s, first after 0.4 s",
    ]
    assert "61 tokens/s" not in show(started(), turn_ended(), detail=Detail.VERBOSE)


def test_a_quiet_screen_shows_errors_and_the_end(show: Show) -> None:
    written = (
        started(),
        turn_ended(),
        call_started({"code": "x"}),
        finished_call(),
        verdict(),
        events.Error(kind="x", text="the server is gone", exit=4),
        ended("error", reason="the server is gone", turns=2, patch="/s/patch.diff"),
    )
    assert show(*written, detail=Detail.QUIET).splitlines() == [
        "✗ the server is gone",
        "patch      /s/patch.diff",
        "next       m3agent sessions resume last  continues here",
    ]
    assert show(*written).count("the server is gone") == 1, "a reason is said once"


def test_the_tests_that_decide_are_shown_before_and_after(show: Show) -> None:
    before, after = suite("before", ["a", "b"], ["c"]), suite("after", ["a", "b", "c"], [])
    judged = verdict(reason="1 test", fixed=["c"], repeats=6, own_only=True, left_out=["go:tool"])
    assert show(before, after, judged, ended(reason="1 test")).splitlines() == [
        "tests      before after  in fresh sandboxes, 2.0 s",
        "           red    green  c",
        "           green  green  2 other tests",
        "✓ verified 1 test",
        "evidence   3 tests with and without the patch, in fresh sandboxes; 6 more runs of the tests near the change",
        "           not run, as the patch does not affect them: go:tool",
        "cost       12 s, 4 turns",
    ]


def test_a_verdict_that_goes_back_is_given_once(show: Show) -> None:
    back = an_event(events.Feedback, turn=2, round=1, kinds=["broken"], text="long", tests=["b"])
    failed = verdict("failed", "1 test broke", broken=["b"])
    assert show(failed, back).splitlines() == [
        "tests      before after  in fresh sandboxes, 2.0 s",
        "           green  red    b",
        "! 1 test broke; this goes back to the model (message 1)",
    ]


@pytest.mark.parametrize(
    ("spent", "option"),
    [
        ({"turns": 11}, " --max-turns 20"),
        ({"seconds": 90.0}, " --max-minutes 3"),
        ({"completion_tokens": 700}, " --max-tokens 1000"),
        ({"price": 0.5}, " --max-cost 1"),
        ({}, ""),
    ],
)
def test_after_a_limit_the_next_step_raises_it(show: Show, spent: dict[str, Any], option: str) -> None:
    limits = {"max_turns": 10, "max_minutes": 1.5, "max_tokens": 500, "max_cost": 0.5}
    begun = dataclasses.replace(started(), settings=limits)
    output = show(begun, ended("limit", **spent))
    assert f"next       m3agent sessions resume last{option}  continues here\n" in output
    assert ("11 turns (the last one for a summary)" in output) == ("turns" in spent)


def test_what_was_handed_over_is_not_offered_again(show: Show) -> None:
    patched = ended(patch="/s/patch.diff")
    refused = dataclasses.replace(patched, exit=5)
    undo = "           m3agent apply --undo  takes it back\n"
    assert show(patched, shown_by="git diff").endswith(f"\nnext       git diff  shows the change\n{undo}")
    elsewhere = f"\nnext       git -C /code/shop diff  shows the change\n{undo}"
    assert show(started(), patched, shown_by="git diff").endswith(elsewhere)
    assert show(patched, shown_by="git show x").endswith("\nnext       git show x  shows the change\n")
    assert "next" not in show(patched, shown_by="")
    again = "\nnext       git apply /s/patch.diff  applies it if its lines did not change\n"
    assert show(refused, shown_by="git diff").endswith(again), "m3agent apply would be refused as well"


def test_a_patch_on_uncommitted_changes_is_for_git(show: Show) -> None:
    shown = show(started(dirty=1), ended(patch="/s/patch.diff", uncommitted=("a.py",)))
    assert shown.endswith(
        "\nnext       git -C /code/shop apply /s/patch.diff  read the patch first; then this writes it into your work tree, beside your uncommitted changes\n"
    )


def of_attempt(number: int, event: Event, **changes: Any) -> Line:
    return {"session": f"s{number}", "type": event.type, **dataclasses.asdict(event), **changes}


def test_a_change_is_shown_as_a_diff(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sessions" / "s1").mkdir(parents=True)
    store = TreeStore(tmp_path / "sessions" / "s1" / TREES)

    def show(*written: Event) -> list[str]:
        with Screen(state=tmp_path) as screen:
            for event in written:
                screen.on_line(of_attempt(1, event))
        return capfd.readouterr().err.splitlines()

    def tree(**files: str) -> str:
        return store.write_tree(
            TreeEntry(f"{name}.py", 0o100644, store.put_blob(text.encode())) for name, text in files.items()
        )

    old = "".join(f"line {n}\n" for n in range(30))
    before = tree(a=old, b="same\n")
    one = tree(a=old.replace("line 5\n", "line five\n"), b="same\n")
    two = tree(a="".join(f"other {n}\n" for n in range(30)), c="new\n")
    edit = call_started({"path": "a.py"}, "file_edit", tree=before)
    done = finished_call("edited", name="file_edit", seconds=0.1)
    changed = events.FileChanged(turn=2, call=1, changes=[("M", "a.py")], tree=one)
    assert show(edit, done, changed) == [
        "✓ edit a.py",
        "      5  line 4",
        "      6 -line 5",
        "      6 +line five",
        "      7  line 6",
    ]
    run = call_started({"code": "make"}, tree=before)
    every = [("M", "a.py"), ("D", "b.py"), ("A", "c.py")]
    output = show(run, events.FileChanged(turn=2, call=1, changes=every, tree=two))
    assert output[:3] == ["  a.py  +30 -30", "      1 -line 0", "      2 -line 1"]
    assert output[13:] == [
        "        48 more lines (+30 -30)",
        "  b.py  +0 -1",
        "      1 -same",
        "  c.py  +1 -0",
        "      1 +new",
    ]


def test_attempts_say_once_what_they_have_in_common_and_else_their_number(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Screen() as screen:
        for number in (1, 2):
            attempt = {"number": number, "of": 10}
            screen.on_line(of_attempt(number, started(), attempt=attempt))
        for number in (1, 2):
            screen.on_line(of_attempt(number, packed(number, 9)))
        for number, path in ((1, "a.py"), (2, "b.py")):
            screen.on_line(of_attempt(number, FIRST_TURN))
            screen.on_line(of_attempt(number, call_started({"path": path}, "file_edit")))
        for number in (1, 2):
            screen.on_line(of_attempt(number, finished_call("done", name="file_edit")))
        last = events.Message(turn=3, reasoning="", text="Done.\nNot tested.", calls=[])
        screen.on_line(of_attempt(2, last))
        for number in (1, 2):
            screen.on_line(of_attempt(number, events.AttemptChosen(chosen=2, ranking=[])))
        for number, status, patch in ((1, "failed", None), (2, "verified", "/s/patch.diff")):
            screen.on_line(of_attempt(number, ended(status, patch=patch)))
        screen.say("all are done")
    assert capfd.readouterr().err.splitlines() == [
        "issue      It is broken",
        "repository /code/shop at 0123456789ab (main)",
        "model      embedded",
        "sandbox    docker",
        " 1│ session    s1",
        " 2│ session    s2",
        "context    1 file, 9 tokens",
        " 2│ context    2 files, 9 tokens",
        " 1│ ✓ edit a.py  1.2 s",
        " 2│ ✓ edit b.py  1.2 s",
        " 2│ • Done.",
        " 2│   Not tested.",
        " 1│ ✗ failed   1 test red before, green after",
        " 2│ ✓ verified 1 test red before, green after",
        " 2│ cost       12 s, 4 turns",
        " 2│ patch      /s/patch.diff",
        " 2│ next       m3agent apply s2  read the patch first; then this writes it into your work tree",
        "note: all are done",
    ]


@pytest.mark.parametrize("attempt", [None, {"number": 1, "of": 1}])
def test_a_single_attempt_has_no_number(capfd: pytest.CaptureFixture[str], attempt: object) -> None:
    Screen().on_line(of_attempt(1, started(), attempt=attempt))
    assert capfd.readouterr().err.endswith("\nsession    s1\n")


def test_a_quiet_screen_offers_the_chosen_attempt_only(capfd: pytest.CaptureFixture[str]) -> None:
    with Screen(rows=False, detail=Detail.QUIET) as screen:
        for number in (1, 2):
            screen.on_line(of_attempt(number, started(), attempt={"number": number, "of": 2}))
        for number in (1, 2):
            screen.on_line(of_attempt(number, events.AttemptChosen(chosen=2, ranking=[])))
            screen.on_line(of_attempt(number, ended(patch="/s/patch.diff")))
    assert [line for line in capfd.readouterr().err.splitlines() if "next" in line] == [
        "2│ next       m3agent apply s2  read the patch first; then this writes it into your work tree"
    ]


def test_a_cold_cache_is_no_fault_of_the_first_turn(show: Show) -> None:
    assert show(turn_ended(turn=1, cached_share=0.0)) == ""
    assert show(turn_ended(cached_share=0.0, prompt_tokens=900)) == ""


def test_events_that_say_nothing_to_a_person(show: Show) -> None:
    silent = (
        FIRST_TURN,
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
        an_event(events.FileChanged, changes=[("A", HOSTILE)]),
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
    named, finished = call_started({"code": "x"}, HOSTILE), finished_call(name=HOSTILE)
    for written in ((named, finished), (finished,)):
        output = show(*written)
        assert "✓ " in output
        assert not any(ord(char) < 32 and char != "\n" for char in output)
        assert not set(output) & {"\x9b", "\u202e", "\x7f", "\udcff"}


def test_a_note_is_always_shown(capfd: pytest.CaptureFixture[str]) -> None:
    Screen(detail=Detail.QUIET).say(f"first {HOSTILE}")
    output = capfd.readouterr().err
    assert output.startswith("note: first")
    assert "\x1b" not in output
    assert output.count("\n") == 1


@pytest.mark.parametrize("typed", ["", "use a set"])
def test_what_was_typed_before_the_engine_embedded_was_known_is_not_lost_silently(
    typed: str, capfd: pytest.CaptureFixture[str]
) -> None:
    inbox = Inbox()
    screen = Screen(detail=Detail.QUIET, inbox=inbox)
    if typed:
        screen.pass_on(typed)
    screen.on_line(of_attempt(1, started()))
    assert (NO_ADVICE in capfd.readouterr().err) == bool(typed)
    heard: list[str] = []
    with inbox.heard_by(heard.append):
        assert heard == []


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
    runs = [suite(where, ["a"], []) for where in ("before", "after")]
    shown = show(begun, *runs, verdict(fixed=["a"]), ended())
    assert "before after  in fresh copies, 2.0 s" in shown
    assert "1 test with and without the patch, in fresh copies" in shown and "sandboxes" not in shown
    assert "not isolated" not in show(started(), ended())
