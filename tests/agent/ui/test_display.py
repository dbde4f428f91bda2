"""Test the live view on a real terminal: the screen during fixes against a scripted server, and with hostile texts."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m3agent.agent.fix.attempt import REFINE
from m3agent.agent.fix.sandbox_setup import NO_TESTS
from m3agent.agent.ui.typed_line import HINT
from tests.agent.scripted import (
    BUGGY,
    DONE,
    FIX,
    ISSUE,
    NOT_TESTED,
    TEST,
    UNTESTED,
    MakeRepo,
    chunk,
    events,
    says,
)
from tests.agent.ui.test_status_row import NASTY, turn_ended
from tests.command_line import command
from tests.conftest import later
from tests.emulated_terminal import EmulatedTerminal
from tests.servers.misbehaving import MisbehavingServer, Stall, Stream, call, finish, usage

pytestmark = pytest.mark.integration

COUNTED = usage(100_000, 10, prompt_tokens_details={"cached_tokens": 98_000})
FIRST = Stream([call(0, "test_runner", '{"test_file": "."}', "c"), finish("tool_calls"), COUNTED])
SILENT = Stream([chunk({"reasoning": "add() subtracts: \x1b[2J漢字"}), Stall()])
STYLE = rb"\x1b\[[0-9;]*m"
MOVES = rb"\x1b\[\?(25|7)[hl]|\x1b\[2K|\x1b\[1A"
SENT = STYLE + b"|" + MOVES


STARTED = {
    "type": "session.started",
    "issue": {"title": "It is broken"},
    "repository": {"root": "/code/ferry", "head": "0" * 40, "branch": "main", "dirty": 0},
    "endpoint": {"description": "embedded"},
    "sandbox": {"backend": "docker"},
    "settings": {},
}


FixCommand = Callable[..., list[str]]


@pytest.fixture
def fix_command(server: MisbehavingServer, make_repo: MakeRepo) -> FixCommand:
    """Return a function that returns the command of a fix, which the model answers so."""

    def of(*answers: Stream, files: dict[str, str] = BUGGY) -> list[str]:
        server.answers = list(answers)
        return command("fix", ISSUE, "--repo", str(make_repo(files)), "--endpoint", server.url)

    return of


def rows_of(lines: list[str]) -> list[str]:
    """Return the live rows on the screen."""
    return [line for line in lines if re.match("[\u2800-\u28ff] |  [0-9.]+k? in", line)]


def thinks(lines: list[str]) -> bool:
    """Whether both live rows are on the screen. The terminal may show the first one alone for a moment."""
    return len(rows_of(lines)) == 2 and any("turn 2  thinking" in line for line in lines)


def without_spaces(lines: list[str]) -> str:
    return "".join("".join(lines).split())


@pytest.mark.slow  # quick: test_status_row.py
@pytest.mark.parametrize(("columns", "tail"), [(100, "add() subtracts:  [2J漢字"), later(40, None)])
def test_while_the_server_is_silent_the_clock_ticks_until_ctrl_c(
    fix_command: FixCommand, columns: int, tail: str | None
) -> None:
    with EmulatedTerminal(fix_command(FIRST, SILENT), columns=columns) as terminal:
        first, used = rows_of(terminal.until(thinks))
        assert used.startswith("  100k in, 98.0% cached, 10 out")
        assert re.match(r". \d+:\d\d  turn 2  thinking, 23 chars", first)
        assert tail is None or first.endswith(f": {tail}")
        assert not terminal.cursor_is_visible
        clock = first[2:6]
        later = terminal.until(lambda lines: thinks(lines) and f" {clock} " not in rows_of(lines)[0])
        assert len(rows_of(later)) == 2
        terminal.press(b"\x03")
        assert terminal.until_the_end() == 130
        assert rows_of(terminal.lines) == []
        assert "! interrupted" in terminal.lines
        assert any(line.startswith("next ") for line in terminal.lines)
        assert terminal.cursor_is_visible
        assert terminal.screen.cursor.x == 0


def test_a_typed_line_reaches_the_model_and_does_not_disturb_the_rows(
    fix_command: FixCommand, server: MisbehavingServer, own_state: Path
) -> None:
    with EmulatedTerminal(fix_command(FIRST, SILENT), output_too=True) as terminal:
        terminal.until(lambda lines: f"> {HINT}" in lines)
        terminal.press("keep the näme\r".encode())
        terminal.until(lambda lines: "> keep" not in lines[-1] and thinks(lines))
        assert "The user says this while you work" in str(server.chats[-1].json["messages"])
        terminal.press(b"half a mess")
        shown = terminal.until(lambda lines: thinks(lines) and lines[-1] == "> half a mess▏")
        assert [line for line in shown if line.startswith("you ")] == ["you        keep the näme"]
        assert len(rows_of(shown)) == 2
        terminal.press(b"\x03")
        assert terminal.until_the_end() == 130
        assert not any(line.startswith(">") or "half" in line for line in terminal.lines)
        assert terminal.echoes
    assert [line["text"] for line in events(own_state) if line["type"] == "person.message"] == [
        "keep the näme"
    ]


@pytest.mark.slow  # quick: test_a_typed_line_reaches_the_model_and_does_not_disturb_the_rows
def test_at_the_end_the_person_says_what_to_refine(
    fix_command: FixCommand, server: MisbehavingServer, own_state: Path
) -> None:
    answers = (FIX, TEST, DONE, says("I kept it."))
    with EmulatedTerminal(fix_command(*answers), output_too=True) as terminal:
        terminal.until(lambda lines: any(REFINE in line for line in lines))
        terminal.until(lambda lines: not rows_of(lines))  # no row says that something is being done
        terminal.press(b"keep double()\r")
        server.wait_for_chats(4)
        terminal.until(lambda lines: sum(REFINE in line for line in lines) == 2)
        terminal.press(b"\x03")
        assert terminal.until_the_end() == 0, "the verified patch counts, whatever ends the question"
    assert "keep double()" in server.chats[-1].json["messages"][-1]["content"]
    assert events(own_state)[-1]["status"] == "verified"


@pytest.mark.slow  # quick: test_a_crash_gives_the_cursor_back
def test_ctrl_z_gives_the_terminal_to_the_shell_for_a_while(fix_command: FixCommand) -> None:
    with EmulatedTerminal(fix_command(FIRST, SILENT)) as terminal:
        terminal.until(thinks)
        terminal.press(b"\x1a")
        _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        terminal.until(lambda lines: not rows_of(lines))
        assert terminal.cursor_is_visible
        terminal.process.send_signal(signal.SIGCONT)
        assert len(rows_of(terminal.until(thinks))) == 2
        assert not terminal.cursor_is_visible
        terminal.press(b"\x03")
        assert terminal.until_the_end() == 130
        assert rows_of(terminal.lines) == []
        assert terminal.cursor_is_visible


@pytest.mark.slow  # quick: test_what_is_sent_to_terminals
def test_a_terminal_changes_its_size(fix_command: FixCommand) -> None:
    with EmulatedTerminal(fix_command(FIRST, SILENT), columns=100) as terminal:
        before = terminal.until(thinks)
        for columns in (50, 30, 120):
            terminal.resize(columns, 60)
            cut = "…" if columns == 30 else "10 out"

            def drawn(lines: list[str], cut: str = cut) -> bool:
                return len(rows_of(lines)) == 2 and any(cut in row for row in rows_of(lines))

            terminal.until(drawn)
        assert [line[:30].rstrip() for line in terminal.lines[:-3]] == [
            line[:30].rstrip() for line in before[:-3]
        ]
        terminal.process.terminate()
        assert terminal.until_the_end() == 130
        assert rows_of(terminal.lines) == []
        assert terminal.cursor_is_visible


@pytest.mark.slow  # quick: test_while_the_server_is_silent_the_clock_ticks_until_ctrl_c
@pytest.mark.parametrize("columns", [40, later(100)])
def test_after_the_end_there_are_the_lines_of_the_log_and_nothing_else(
    fix_command: FixCommand, own_state: Path, columns: int
) -> None:
    words = fix_command(TEST, FIX, NOT_TESTED, files=UNTESTED)
    repo = words[words.index("--repo") + 1]
    with EmulatedTerminal(words, columns=columns) as terminal:
        assert terminal.until_the_end() == 1
        assert terminal.cursor_is_visible
        assert terminal.process.stdout is not None
        assert b"+    return a + b" in terminal.process.stdout.read()
    again = subprocess.run(
        [sys.executable, "-c", SHOW_LOG, str(own_state / "state"), repo],
        input=json.dumps(events(own_state)).encode(),
        capture_output=True,
        check=True,
    )
    assert b"\x1b" not in again.stderr
    whole = again.stderr.decode().splitlines()
    steps = [line for line in whole if STEP.match(line)]
    assert [line[:20] for line in terminal.lines if STEP.match(line)] == [line[:20] for line in steps]
    texts = without_spaces([line for line in whole if line not in steps])
    note = without_spaces([f"note: {NO_TESTS}"])  # it is no event
    shown = without_spaces([line for line in terminal.lines if not STEP.match(line)])
    assert shown.replace(note, "") == texts


STEP = re.compile("[✓✗] (test|edit|run) ")
SHOW_LOG = """
import json, sys
from pathlib import Path
from m3agent.agent.ui.event_printer import Screen
with Screen(state=Path(sys.argv[1]), repo=sys.argv[2]) as screen:
    for line in json.load(sys.stdin):
        screen.on_line(line)
"""


@pytest.mark.slow  # quick: test_a_pipe_gets_lines
@pytest.mark.parametrize("where", ["2>&-", later("2>/dev/full"), later("2>&1 >&3 3>&- | true")])
def test_a_standard_error_that_cannot_be_written_ends_nothing(
    fix_command: FixCommand, own_state: Path, where: str
) -> None:
    script = f'set -o pipefail; exec 3>&1; "$@" {where}'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *fix_command(FIX, NOT_TESTED, files=UNTESTED)],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"+    return a + b" in done.stdout
    assert events(own_state)[-1]["status"] == "unverified"


def full_pipe() -> tuple[int, int]:
    """Return both ends of a full pipe that nobody reads."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * 4096)
    return reader, writer


@pytest.mark.slow
def test_a_standard_error_that_nobody_reads_holds_up_nothing(
    fix_command: FixCommand, own_state: Path
) -> None:
    reader, writer = full_pipe()
    done = subprocess.run(
        fix_command(FIX, TEST, DONE), stdout=subprocess.PIPE, stderr=writer, check=False, timeout=60
    )
    os.close(writer)
    os.close(reader)
    assert done.returncode == 0
    assert b"+    return a + b" in done.stdout
    assert events(own_state)[-1]["status"] == "verified"


@pytest.mark.slow
def test_a_terminal_that_is_stopped_holds_up_nothing(fix_command: FixCommand, own_state: Path) -> None:
    with EmulatedTerminal(fix_command(FIRST, FIX, TEST, DONE)) as terminal:
        terminal.until(lambda lines: any("server" in line for line in lines))
        terminal.press(b"\x13")  # Ctrl-S
        while not (log := events(own_state)) or log[-1]["type"] != "session.finished":
            assert terminal.process.poll() is None
        terminal.press(b"\x11")  # Ctrl-Q
        assert terminal.until_the_end() == 0
        assert any(line.startswith("✓ verified") for line in terminal.lines)
        assert rows_of(terminal.lines) == []
        assert terminal.cursor_is_visible


CRASH = """
import signal
from m3agent.agent.ui.event_printer import Screen
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
with Screen() as screen:
    screen.listener("s")
    signal.sigwait({signal.SIGUSR1})
    raise RuntimeError("a fault of ours")
"""


def test_a_crash_gives_the_cursor_back() -> None:
    with EmulatedTerminal([sys.executable, "-c", CRASH]) as terminal:
        terminal.until(lambda lines: any("starting" in line for line in lines))
        assert not terminal.cursor_is_visible
        terminal.process.send_signal(signal.SIGUSR1)
        assert terminal.until_the_end() == 1
        assert terminal.cursor_is_visible
        assert terminal.lines[0] == "Traceback (most recent call last):"
        assert terminal.lines[-1] == "RuntimeError: a fault of ours"


# Each line of input has events and deltas of several sessions, and says whether to show them with rows.
SHOW_EXAMPLES = """
import json, os, sys, time
from m3agent.agent.ui import display as live
from m3agent.agent.ui.event_printer import Screen
from m3agent.serving.client.messages import Delta

live.INTERVAL = 0.004
for example in open(int(sys.argv[1])):
    rows, written = json.loads(example)
    with Screen(rows=rows) as screen:
        for session, item in written:
            if isinstance(item, dict):
                screen.on_line({"session": session, **item})
            elif rows:
                screen.listener(session)(Delta(*item))
            time.sleep(0.002)
    print(flush=True)
"""


class Shown:
    """Shows examples one after the other on one terminal."""

    def __init__(self, columns: int, env: dict[str, str] | None = None) -> None:
        reader, writer = os.pipe()
        program = [sys.executable, "-c", SHOW_EXAMPLES, str(reader)]
        self.terminal = EmulatedTerminal(program, columns=columns, rows=300, env=env, pass_fds=[reader])
        os.close(reader)
        self._examples = os.fdopen(writer, "w")

    def __call__(self, written: Sequence[tuple[str, Any]], *, rows: bool) -> list[str]:
        """Clear the screen, show an example, and return the lines on the screen."""
        self.terminal.screen.reset()
        self._examples.write(json.dumps([rows, written]) + "\n")
        self._examples.flush()
        self.terminal.until_it_says_so()
        return self.terminal.lines

    def close(self) -> None:
        self._examples.close()
        self.terminal.__exit__()


@pytest.mark.parametrize(
    ("env", "rows", "allowed"),
    [
        ({"TERM": "dumb"}, False, rb"(?!)"),
        ({"NO_COLOR": "1"}, True, rb"\x1b\[[0-3](;[0-3])*m|" + MOVES),
        ({}, True, SENT),
    ],
)
def test_what_is_sent_to_terminals(env: dict[str, str], rows: bool, allowed: bytes) -> None:
    with contextlib.closing(Shown(80, env)) as show:
        lines = show([("a", STARTED), ("a", ["reasoning", "\x1b[31m so"]), ("a", turn_ended())], rows=True)
        assert lines[0] == "issue      It is broken"
        assert b"\x1b" not in re.sub(allowed, b"", show.terminal.written)
        assert bool(re.search("[\u2800-\u28ff] ", show.terminal.written.decode())) == rows


@pytest.mark.parametrize("env", [{}, later({"FORCE_COLOR": "1", "TERM": "xterm-256color"})])
def test_a_pipe_gets_lines(env: dict[str, str]) -> None:
    said = {"type": "message", "turn": 1, "text": "Done.\n" * 30, "calls": []}
    log = [{"session": "a", **STARTED}, {"session": "a", **said}]
    done = subprocess.run(
        [sys.executable, "-c", SHOW_LOG, "/nowhere", ""],
        input=json.dumps(log).encode(),
        env={**os.environ, **env},
        capture_output=True,
        check=True,
    )
    assert (b"\x1b" in done.stderr) == bool(env)
    plain = re.sub(STYLE, b"", done.stderr).decode()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", plain)
    assert plain.count("\n") == 5 + 30


LOG = [
    {**STARTED, "endpoint": {"description": "http://gpu:8000/v1 (named)", "source": "named"}},
    {"type": "context.packed", "files": 12, "tokens": 41943, "exact": False, "dropped": {}, "redacted": []},
    {"type": "endpoint.probed", "model": "MiniMax-M3", "flavour": "vllm", "version": "0.33", "max_model_len": 1048576},
    {"type": "message", "turn": 1, "text": "I look at the lane before I change how it is filled.", "calls": [{}]},
    {"type": "call.started", "call": 1, "name": "code_exec", "arguments": {"code": "grep -rn 'vehicle.length' src tests docs"}},
    {
        "type": "call.finished", "turn": 1, "call": 1, "name": "code_exec", "status": "done", "is_error": True, "exit_code": 1,
        "content": "exit code: 1\nstderr:\ngrep: docs: No such file or directory", "data": {}, "seconds": 1.5,
    },
    {"type": "file.changed", "call": 1, "changes": [["M", "src/ferry/deck.py"]], "tree": "t"},
    {"type": "message", "turn": 2, "text": "The last van fits now.\nNo test covers lorries.", "calls": []},
    {"type": "test.finished", "where": "before", "passed": ["a", "b"], "failed": ["v"], "errored": [], "skipped": []},
    {"type": "test.finished", "where": "after", "passed": ["a", "b", "v"], "failed": [], "errored": [], "skipped": []},
    {
        "type": "verify", "verdict": "verified", "reason": "1 test red before, green after; nothing else turned red",
        "fixed": ["tests/test_sailing.py::test_four_vans_fill_a_lane"], "broken": [], "still_red": [], "flaky": [], "seconds": 3.0,
        "repeats": 6,
    },
    {
        "type": "session.finished", "status": "verified", "exit": 0, "notes": [], "patch": "/state/sessions/a/patch.diff",
        "reason": "1 test red before, green after; nothing else turned red", "paths": ["src/ferry/deck.py"], "turns": 2,
        "prompt_tokens": 84500, "cached_share": 0.991, "completion_tokens": 900, "reasoning_tokens": None, "price": 0.021,
        "tokens_per_second": 71.0, "seconds": 75.0,
    },
]  # fmt: skip
"""A whole fix."""
TOP = """\
issue      It is broken
repository /code/ferry at 000000000000 (main)
server     http://gpu:8000/v1 (named)
sandbox    docker
session    a
model      MiniMax-M3 (vllm 0.33)
"""
AT_60 = """\
context    12 files, ≈41,943 tokens, 4.0% of the model's
           window
• I look at the lane before I change how it is filled.
✗ run grep -rn 'vehicle.lengt…  exit 1: grep: docs: No suc…
  M src/ferry/deck.py
• The last van fits now.
  No test covers lorries.
tests      before after  in fresh sandboxes, 3.0 s
           red    green  tests/test_sailing.py::test_four_v
                         ans_fill_a_lane
           green  green  2 other tests
✓ verified 1 test red before, green after; nothing else
           turned red
evidence   3 tests with and without the patch, in fresh
           sandboxes; 6 more runs of the tests near the
           change
cost       1 min 15 s, 2 turns, 84,500 tokens in (99.1%
           cached), 900 out, 71 tokens/s, $0.0210
patch      /state/sessions/a/patch.diff (src/ferry/deck.py)
next       m3agent apply  writes it into your work tree
           m3agent sessions fork last --tell TEXT
           continues with your advice
"""
AT_80 = """\
context    12 files, ≈41,943 tokens, 4.0% of the model's window
• I look at the lane before I change how it is filled.
✗ run grep -rn 'vehicle.length' src tes…  exit 1: grep: docs: No such file or …
  M src/ferry/deck.py
• The last van fits now.
  No test covers lorries.
tests      before after  in fresh sandboxes, 3.0 s
           red    green  tests/test_sailing.py::test_four_vans_fill_a_lane
           green  green  2 other tests
✓ verified 1 test red before, green after; nothing else turned red
evidence   3 tests with and without the patch, in fresh sandboxes; 6 more runs
           of the tests near the change
cost       1 min 15 s, 2 turns, 84,500 tokens in (99.1% cached), 900 out, 71
           tokens/s, $0.0210
patch      /state/sessions/a/patch.diff (src/ferry/deck.py)
next       m3agent apply  writes it into your work tree
           m3agent sessions fork last --tell TEXT  continues with your advice
"""
AT_120 = """\
context    12 files, ≈41,943 tokens, 4.0% of the model's window
• I look at the lane before I change how it is filled.
✗ run grep -rn 'vehicle.length' src tests docs  exit 1: grep: docs: No such file or directory, 1.5 s
  M src/ferry/deck.py
• The last van fits now.
  No test covers lorries.
tests      before after  in fresh sandboxes, 3.0 s
           red    green  tests/test_sailing.py::test_four_vans_fill_a_lane
           green  green  2 other tests
✓ verified 1 test red before, green after; nothing else turned red
evidence   3 tests with and without the patch, in fresh sandboxes; 6 more runs of the tests near the change
cost       1 min 15 s, 2 turns, 84,500 tokens in (99.1% cached), 900 out, 71 tokens/s, $0.0210
patch      /state/sessions/a/patch.diff (src/ferry/deck.py)
next       m3agent apply  writes it into your work tree
           m3agent sessions fork last --tell TEXT  continues with your advice
"""


@pytest.mark.parametrize(("columns", "rest"), [later(60, AT_60), (80, AT_80), later(120, AT_120)])
def test_a_whole_fix_at_common_widths(columns: int, rest: str) -> None:
    with contextlib.closing(Shown(columns)) as show:
        lines = show([("a", line) for line in LOG], rows=True)
    assert lines == (TOP + rest).splitlines()


@pytest.mark.skipif(
    not sys.executable.isascii(), reason="without UTF-8, Python does not start in such a folder"
)
def test_a_terminal_without_unicode_gets_ascii() -> None:
    with contextlib.closing(Shown(80, {"LC_ALL": "C", "PYTHONUTF8": "0"})) as show:
        lines = show([("a", line) for line in LOG], rows=True)
        assert show.terminal.written.isascii()
    assert lines[6:10] == [
        "context    12 files, ~41,943 tokens, 4.0% of the model's window",
        "* I look at the lane before I change how it is filled.",
        "x run grep -rn 'vehicle.length' src tes.  exit 1: grep: docs: No such file or .",
        "  M src/ferry/deck.py",
    ]
    assert "+ verified 1 test red before, green after; nothing else turned red" in lines


@pytest.fixture(scope="module", params=[80, 40, 9])
def show(request: pytest.FixtureRequest) -> Iterator[Shown]:
    shown = Shown(request.param)
    yield shown
    shown.close()


LINES = st.one_of(
    st.builds(lambda words: {"type": "message", "turn": 1, "text": words, "calls": []}, NASTY),
    st.builds(lambda code: {"type": "call.started", "name": "code_exec", "arguments": {"code": code}}, NASTY),
    st.builds(
        lambda said: {
            "type": "call.finished", "turn": 1, "name": "x", "status": "done", "content": said, "seconds": 1.0
        },
        NASTY,
    ),
    st.builds(lambda path: {"type": "file.changed", "changes": [["A", path]]}, NASTY),
    st.builds(lambda words: {"type": "stall", "action": "told", "text": words}, NASTY),
    st.builds(lambda words: {"type": "gate", "missing": words}, NASTY),
    st.builds(lambda words: {"type": "error", "text": words}, NASTY),
    st.builds(lambda why: {"type": "retry", "wait": 1.0, "reason": why}, NASTY),
    st.builds(lambda turn: {"type": "turn.started", "turn": turn}, st.integers(1, 99)),
    st.just(turn_ended()),
    st.tuples(st.sampled_from(["reasoning", "text", "call", "reset"]), NASTY),
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), LINES), min_size=1, max_size=12))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_rows_leave_no_trace_whatever_is_written_above_and_in_them(
    show: Shown, written: list[tuple[str, Any]]
) -> None:
    begun = [
        (session, {**STARTED, "attempt": {"number": 1, "of": 8}})
        for session in sorted({s for s, _ in written})
    ]
    before = len(show.terminal.written)
    with_rows = show([*begun, *written], rows=True)
    assert with_rows == show([*begun, *written], rows=False)
    assert b"\x1b" not in re.sub(SENT, b"", show.terminal.written[before:])
    assert show.terminal.cursor_is_visible
