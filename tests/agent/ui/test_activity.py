"""Test the signs of life: in pipes after a pause, on a terminal as a row, in each view that can last."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from rich.text import Text

from m3agent.agent.ui.activity import Activity
from m3agent.agent.ui.display import PAUSES, LiveView
from m3agent.agent.ui.event_printer import Detail, Screen
from m3agent.evals.data.results import AttemptRecord, Seconds, Verdict
from m3agent.evals.grade.validate import Validation
from m3agent.evals.run.progress import RunProgress, ValidationProgress

BEGUN = 417.3
"""When everything began, on the monotonic clock, in seconds."""


@contextmanager
def standard_error_as_pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Write standard error of the views into a pipe; yield its reading end."""
    reading, writing = os.pipe()
    monkeypatch.setattr("m3agent.agent.ui.display.STANDARD_ERROR", writing)
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def test_a_pipe_gets_a_line_after_each_pause_until_there_is_something_to_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = threading.Semaphore(0)

    def still(_: float) -> list[Text]:
        asked.release()
        return [Text("… still there")]

    with standard_error_as_pipe(monkeypatch) as reading:
        live = LiveView(lambda *_: [], still, pauses=[0.0, 0.0, 1e6])
        live.start(rows=True)
        asked.acquire()
        asked.acquire()
        live.print(Text("a line"))
        asked.acquire()  # the pauses begin again after a line
        asked.acquire()
        live.stop()
        said = os.read(reading, 10_000).decode().splitlines()
    sign = "… still there"
    assert said == [sign, sign, "a line", sign, sign]


def test_the_pauses_grow_and_end_below_the_patience_of_ci_services() -> None:
    assert list(PAUSES) == sorted(PAUSES)
    assert PAUSES[-1] < 600


def test_an_activity_says_what_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    lasting = Activity("verifying the patch of \x1b[2J", clock=lambda: BEGUN)
    now = BEGUN + 75
    assert [line.plain for line in lasting._still(now)] == ["… verifying the patch of  [2J, 1 min 15 s"]
    [row] = lasting._row(20, 24, now)
    assert row.plain[2:] == "1 min 15 s  veri…"
    assert row.cell_len == 19
    with standard_error_as_pipe(monkeypatch) as reading:
        with lasting:
            lasting.say("a note\n of a repository")
        assert os.read(reading, 10_000) == b"m3agent: a note of a repository\n"


def test_a_quiet_screen_gives_no_signs_of_life() -> None:
    assert Screen(detail=Detail.QUIET)._live._still is None
    assert Screen()._live._still is not None


def attempt(number: int, verdict: Verdict, reason: str = "") -> AttemptRecord:
    spent = Seconds(environment=10, agent=100, grade=10)
    return AttemptRecord(
        instance_id=f"i{number}", repo="r", attempt=1, verdict=verdict, reason=reason, seconds=spent,
        started=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


def test_a_run_of_a_benchmark_says_what_is_done_solved_and_left() -> None:
    progress = RunProgress(
        5,
        {"a": [attempt(1, Verdict.RESOLVED), attempt(2, Verdict.UNRESOLVED)]},
        workers=1,
        clock=lambda: BEGUN,
    )
    progress.phase("a", "i3", 1, "environment")
    progress.phase("a", "i3", 1, "agent")
    [line] = progress.still(BEGUN + 60)
    head, _, running = line.plain.partition("; running: ")
    assert head == "… 2 of 5 attempts: 1 resolved so far, 1 unresolved; about 4 min 50 s left"
    assert running == "i3 (agent running, 1 min 0 s)"
    for number in range(4, 9):
        progress.phase("a", f"i{number}", 1, "grade")
    [line] = progress.still(BEGUN)
    assert line.plain.endswith(", 3 more")


def finding(number: int, reason: str = "", *, failed: bool = False) -> Validation:
    return Validation(
        instance_id=f"i{number}", valid=not reason, reason=reason, seconds=60, machine_failed=failed,
        spent={"environment": 40, "tests": 20},
    )  # fmt: skip


def test_a_validation_says_what_is_built_done_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_error_as_pipe(monkeypatch) as reading:
        with ValidationProgress(6, workers=1, clock=lambda: BEGUN) as progress:
            progress.finished(finding(1), known=True)
            progress.finished(finding(2), known=False)
            progress.finished(finding(3, "no\x1b image"), known=False)
            progress.finished(finding(4, "the disk is full", failed=True), known=False)
            progress.phase("i5", "environment")
            [line] = progress.still(BEGUN + 30)
        said = os.read(reading, 10_000).decode().splitlines()
    assert said == [
        "1 of 6  valid    i1  (known already); 1 valid so far",
        "2 of 6  valid    i2  (1 min 0 s); 2 valid so far; about 4 min 0 s left",
        "3 of 6  invalid  i3  no  image  (1 min 0 s); 2 valid so far, 1 invalid; about 3 min 0 s left",
        "4 of 6  unknown  i4  the disk is full  (1 min 0 s); 2 valid so far, 1 invalid, 1 unknown; about 2 min 0 s left",
    ]
    head = "… 4 of 6 instances: 2 valid so far, 1 invalid, 1 unknown; about 1 min 30 s left"
    assert line.plain == f"{head}; running: i5 (code and image, 30 s)"


def test_in_a_pipe_each_result_says_how_the_run_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_error_as_pipe(monkeypatch) as reading:
        with RunProgress(3, {"a": [attempt(1, Verdict.RESOLVED)]}, workers=2) as progress:
            progress.finished("a", attempt(2, Verdict.UNRESOLVED, "a test is red"))
            progress.finished("a", attempt(3, Verdict.RESOLVED))
        said = os.read(reading, 10_000).decode().splitlines()
    assert said == [
        "3 attempts, 2 at a time; 1 has a result already",
        "2 of 3  unresolved  i2  a test is red  (2 min 0 s); 1 resolved so far, 1 unresolved; about 1 min 0 s left",
        "3 of 3  resolved    i3  (2 min 0 s); 2 resolved so far, 1 unresolved",
    ]


def test_a_card_is_a_table_of_instances_and_agents() -> None:
    progress = RunProgress(
        8, {"first": [attempt(1, Verdict.RESOLVED)], "other": []}, workers=1, clock=lambda: BEGUN
    )
    progress.phase("other", "i1", 1, "agent")
    progress.phase("first", "i2", 1, "grade")
    progress.finished("first", attempt(2, Verdict.UNRESOLVED))
    head, *table = progress._rows(80, 24, BEGUN + 60)
    assert head.plain.startswith("2 of 8 attempts: 1 resolved so far, 1 unresolved")
    assert [row.plain.rstrip() for row in table] == [
        "      first       other",
        "  i1  resolved    agent running, 1 min 0 s",
        "  i2  unresolved  waiting",
    ]
    # what changed last stays in a low window
    assert [row.plain.split()[0] for row in progress._rows(80, 5, BEGUN)[1:]] == ["first", "i2"]
    assert [row.cell_len for row in progress._rows(12, 24, BEGUN)] == [11] * 4
