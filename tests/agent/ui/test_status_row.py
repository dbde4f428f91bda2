"""Test the rows of running sessions: their text, and that they fit the terminal whatever others wrote."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.ui.status_row import MOST, StatusRow, area, still
from m3agent.serving.client.messages import Delta

PIECES = [
    "\x1b[2J", "\x1b[9A", "\x1b[?1049h", "\x1b]0;owned\x07", "\x1b]52;c;", "\x9b3A", "\x1b", "\r", "\n", "\t", "\x08" * 9,
    "\u202egnp.exe", "\u2066", "\u200f", "\u061c", "\u200d", "\ufe0f", "\u0301" * 9, "\u0e33", "\u115f", "\udcff", "\U000e0041",
    "漢字" * 9, "한", "👩🏽‍🚀", "❤️", "🇩🇪", "שלום", "𓀀", "[bold red]x[/]", "x" * 99, "word ",
]  # fmt: skip
BEGUN = 417.3
"""When the rows' sessions began, on the monotonic clock; with many durations, (BEGUN + duration) - BEGUN is a little less."""
NASTY = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=9)), max_size=30).map("".join)
"""Text as it may occur in an answer, a file's name or a tool's result."""


def started(settings: dict[str, Any] | None = None, number: int = 1, of: int = 1) -> dict[str, Any]:
    attempt = {"number": number, "of": of}
    return {"type": "session.started", "settings": settings or {}, "attempt": attempt}


def turn_ended(**changes: Any) -> dict[str, Any]:
    return {
        "type": "turn.finished", "turn": 1, "finish": "stop", "prompt_tokens": 500_000, "cached_tokens": 499_000,
        "completion_tokens": 3120, "reasoning_tokens": 40, "cached_share": 0.998, "tokens_per_second": 61.2,
        "first_token_seconds": 0.44, "seconds": 5.5, "price": 0.5, **changes,
    }  # fmt: skip


def call_started(**arguments: Any) -> dict[str, Any]:
    return {"type": "call.started", "name": "code_exec", "arguments": arguments}


def texts(row: StatusRow, width: int = 100, after: float = 0.0) -> list[str]:
    """Return the row's lines `after` seconds from its start, without the spinner."""
    lines = [line.plain for line in row.lines(width, BEGUN + after)]
    spinner, _, rest = lines[0].removeprefix(row.prefix).partition(" ")
    assert len(spinner) == 1
    return [rest, *lines[1:]]


def row_after(*lines: dict[str, Any]) -> StatusRow:
    row = StatusRow(clock=lambda: BEGUN)
    for line in lines:
        row.see(line)
    return row


def test_the_engine_without_a_model_searches() -> None:
    row = StatusRow(clock=lambda: BEGUN)
    row.see(started() | {"endpoint": {"source": "embedded"}})
    row.see({"type": "turn.started", "turn": 3})
    assert texts(row) == ["0:00  turn 3  searching for a repair"]


def test_without_isolation_there_are_no_sandboxes() -> None:
    row = row_after(started() | {"sandbox": {"backend": "here"}}, {"type": "gate", "missing": ""})
    assert "verifying in fresh copies" in texts(row)[0]


def test_from_the_start_to_the_verdict() -> None:
    row = StatusRow(clock=lambda: BEGUN)
    assert texts(row) == ["0:00  starting"]
    row.see(started())
    assert texts(row, after=65) == ["1:05  starting the sandbox, reading the repository, 1:05"]
    row.see({"type": "turn.started", "turn": 3})
    assert texts(row) == ["0:00  turn 3  waiting for the model"]
    row.hear(Delta("reasoning", "the sign "))
    row.hear(Delta("reasoning", "is\nwrong"))
    assert texts(row) == ["0:00  turn 3  thinking, 17 chars: the sign is wrong"]
    assert texts(row, after=3700) == [
        "1:01:40  turn 3  thinking, 17 chars, silent for 1:01:40: the sign is wrong"
    ]
    row.hear(Delta("reset", ""))
    assert texts(row) == ["0:00  turn 3  waiting for the model"]
    row.hear(Delta("text", "Done."))
    assert texts(row) == ["0:00  turn 3  writing, 5 chars: Done."]
    row.hear(Delta("call", "file_edit"))
    assert texts(row) == ["0:00  turn 3  calling a tool, 14 chars: file_edit"]
    row.see({"type": "retry", "wait": 2.4, "reason": "the server is busy"})
    assert texts(row) == ["0:00  turn 3  asking again in 2 s: the server is busy"]
    row.see({"type": "message", "calls": [{}]})
    row.see(turn_ended())
    used = "  500k in, 99.8% cached, 3.12k out, 61/s, $0.5000"
    assert texts(row) == ["0:00  turn 3  running its tool calls", used]
    row.see(call_started(code="\nimport os\nprint(1)"))
    assert texts(row, after=12) == ["0:12  turn 3  run print(1), 0:12", used]
    row.see({"type": "call.finished"})
    assert texts(row)[0] == "0:00  turn 3  preparing the next request"
    row.see({"type": "message", "calls": []})
    row.see(turn_ended(cached_tokens=None, cached_share=None, tokens_per_second=8.25, price=None))
    assert texts(row) == [
        "0:00  turn 3  checking the result",
        "  1M in, 99.8% cached, 6.24k out, 8.2/s, $0.5000",
    ]
    row.see({"type": "gate", "missing": "run the tests"})
    assert texts(row)[0] == "0:00  turn 3  preparing the next request"
    row.see({"type": "gate", "missing": ""})
    assert texts(row)[0] == "0:00  turn 3  verifying in fresh sandboxes"
    row.see({"type": "verify"})
    assert texts(row)[0] == "0:00  turn 3  finishing"


@given(st.integers(0, 10**6), st.floats(0, 1e9))
def test_the_time_shown_does_not_depend_on_the_uptime(seconds: int, uptime: float) -> None:
    lines = [still([StatusRow(clock=repeat(begun).__next__)], begun + seconds) for begun in (0.0, uptime)]
    assert lines[0] == lines[1]


def test_a_session_that_is_stopped_is_verified_too() -> None:
    assert "verifying" in texts(row_after(started(), {"type": "stall", "action": "stopped"}))[0]
    assert "verifying" not in texts(row_after(started(), {"type": "stall", "action": "told"}))[0]


def test_limits_are_shown_when_they_are_near() -> None:
    limits = {"max_turns": 60, "max_minutes": 30.0, "max_tokens": 4000, "max_cost": 0.6}
    far = {name: 10 * limit for name, limit in limits.items()}
    lines = {"type": "turn.started", "turn": 41}, turn_ended()
    head, used = texts(row_after(started(limits), *lines), after=1450)
    assert head.startswith("24:10 of 30:00  turn 41 of 60  ")
    assert used == "  500k in, 99.8% cached, 3.12k of 4k out, 61/s, $0.5000 of $0.6000"
    for settings in (far, {"max_tokens": None, "max_cost": None}):
        assert " of " not in "".join(texts(row_after(started(settings), *lines), after=1450))


def test_earlier_usage_counts_in_a_resumed_session() -> None:
    row = row_after(started({"max_turns": 3}), {"type": "turn.started", "turn": 3}, turn_ended())
    assert texts(row)[0].startswith("0:00  turn 3 of 3  ")
    row.see({"type": "session.resumed", "messages": 7})
    head, used = texts(row)
    assert head == "0:00  turn 3  starting the sandbox, reading the repository", (
        "the limit may be another now"
    )
    assert used.startswith("  500k in")


def test_unknown_is_not_zero() -> None:
    unknown = turn_ended(prompt_tokens=None, cached_tokens=None, completion_tokens=None, price=None)
    assert len(texts(row_after(started(), unknown))) == 1


@pytest.mark.parametrize("width", [100, 72, 40, 24, 12, 1])
def test_narrow_rows_keep_what_tells_most(width: int) -> None:
    row = row_after(started(), {"type": "turn.started", "turn": 3}, turn_ended())
    row.see({"type": "turn.started", "turn": 4})
    row.hear(Delta("reasoning", "first words " * 50 + "last words"))
    first, *rest = row.lines(width, BEGUN)
    assert first.cell_len <= width
    assert all(line.cell_len <= width for line in rest)
    assert ("last words" in first.plain) == (width > 50)
    if width >= 40:
        assert first.plain[2:].startswith("0:00  turn 4  thinking, 610 chars")
        assert rest[0].plain.startswith("  500k in, 99.8% cached, 3.12k out")


def several(count: int) -> list[StatusRow]:
    rows = [
        row_after(started(None, n, count), {"type": "turn.started", "turn": n}) for n in range(1, count + 1)
    ]
    for row in rows:
        row.see(turn_ended())
    return rows


def test_attempts_are_listed_by_number() -> None:
    lines = [line.plain for line in area(several(3), 80, 24, BEGUN)]
    assert [line[:3] for line in lines] == ["1│ ", "1│ ", "2│ ", "2│ ", "3│ ", "3│ "]
    assert [line[3:5] for line in lines[1::2]] == ["  "] * 3
    ten = row_after(started(None, 7, 10)), row_after(started(None, 10, 10))
    assert [line.plain[:4] for line in area(ten, 80, 24, BEGUN)] == [" 7│ ", "10│ "]


@pytest.mark.parametrize(
    ("count", "height", "lines", "last"),
    [
        (6, 24, 12, "  500k in"),
        (6, 13, 6, "500k in"),  # one line for each attempt, with what fits
        (7, 24, MOST, "2 more running"),
        (40, 60, MOST, "35 more running"),
        (6, 5, 3, "4 more running"),
        (2, 3, 1, "2 running"),
        (1, 3, 1, "500k in"),
        (1, 1, 1, "500k in"),
    ],
)
def test_many_attempts_or_a_low_terminal_are_folded(count: int, height: int, lines: int, last: str) -> None:
    rows = area(several(count), 100, height, BEGUN)
    assert len(rows) == lines
    assert last in rows[-1].plain


@given(NASTY, NASTY, st.integers(1, 120), st.integers(1, 8), st.booleans())
def test_nothing_that_others_wrote_makes_a_row_wrap_or_moves_the_cursor(
    said: str, argument: str, width: int, count: int, speaking: bool
) -> None:
    rows = several(count)
    for row in rows:
        if speaking:
            row.hear(Delta("reasoning", said))
        else:
            row.see(call_started(path=argument))
    lines = area(rows, width, 24, 1e9)
    screen = pyte.Screen(width, len(lines) + 2)
    stream = pyte.Stream(screen)
    for number, line in enumerate(lines):
        assert line.cell_len < max(width, 2)
        assert "\n" not in line.plain
        assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in line.plain)
        stream.feed(f"\x1b[?7l{line.plain}\x1b[?7h")
        assert screen.cursor.y == number
        stream.feed("\r\n")


def test_a_sign_of_life_says_what_is_done_and_for_how_long() -> None:
    row = row_after(started(number=2, of=3), {"type": "turn.started", "turn": 4})
    [line] = still([row], BEGUN + 95)
    assert line.plain == "2│ … turn 4: waiting for the model, 1:35; 1:35 in all"
    row.see(turn_ended())
    row.see(call_started(code="# run \x1b[2J all\nx"))
    [line] = still([row], BEGUN + 100)
    assert line.plain == (
        "2│ … turn 4: run  [2J all, 1:40; 500k in, 99.8% cached, 3.12k out, 61/s, $0.5000; 1:40 in all"
    )
    assert len(still([row] * (MOST + 3), BEGUN)) == MOST + 1
