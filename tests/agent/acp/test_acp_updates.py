"""Test the texts that an editor shows: its cards, and that they have the words of the screen and of the report page."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.acp.updates import MOST_IN_LINE, Updates, plan
from m3agent.agent.report import words
from m3agent.agent.report.page import render
from m3agent.agent.report.reader import report_of
from m3agent.agent.session.log_reader import Line, SessionLog
from m3agent.agent.ui.event_printer import Screen
from tests.agent.report.test_report_model import GREEN, RED, a_fix


def test_a_card_has_the_words_of_the_screen_and_no_data_for_programs(tmp_path: Path) -> None:
    told: list[Any] = []
    updates = Updates(tmp_path, tmp_path / "session", told.append)
    call = {"call": 1, "name": "code_exec", "tree": "t"}
    packed = "eNq1WEtv4zYQ" * 500
    code = f"import os\n# measure the lines\nDATA = '{packed}'"
    updates.see({"type": "call.started", **call, "arguments": {"code": code, "timeout": 60}})
    content = f"exit code: 0\nstdout:\nM3-REPAIR {packed}\n{'long line ' * 100}\nend"
    updates.see({"type": "call.finished", **call, "status": "done", "is_error": False, "content": content})
    assert told[0].title == "measure the lines"
    assert told[0].raw_input == {
        "code": "import os\n# measure the lines\nDATA = '(6,000 characters of data)'",
        "timeout": 60,
    }
    shown = told[1].content[0].content.text.splitlines()
    assert shown[:3] == ["exit code: 0", "stdout:", "M3-REPAIR (6,000 characters of data)"]
    assert shown[3] == f"{('long line ' * 100)[:MOST_IN_LINE]}… ({1000 - MOST_IN_LINE:,} characters more)"
    assert shown[4:] == ["end"]


def test_a_call_without_arguments_has_a_card_too(tmp_path: Path) -> None:
    told: list[Any] = []
    call = {"type": "call.started", "call": 1, "name": "code_exec", "arguments": None, "tree": "t"}
    Updates(tmp_path, tmp_path / "session", told.append).see(call)
    assert (told[0].title, told[0].raw_input) == ("run", None)


def a_log() -> list[Line]:
    """Return the lines of a fix that met everything that all three views show."""
    lines = [json.loads(json.dumps({"v": 1, "type": event.type, **vars(event)})) for event in a_fix()]
    for number, line in enumerate(lines, 1):
        line |= {"session": "s", "seq": number, "ts": "2026-01-31T12:00:00.000Z"}
    baseline = {**next(line for line in lines if line.get("where") == "before"), "type": "baseline"}
    lines.insert(3, {**baseline, "cached": False, "seconds": 0.2})
    return lines


def test_the_screen_the_page_and_editors_use_the_same_words(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines, told = a_log(), list[Any]()
    updates, screen = Updates(tmp_path, tmp_path / "session", told.append), Screen(rows=False)
    with screen:
        for line in lines:
            updates.see(line)
            screen.on_line(line)
    views = {
        "screen": capfd.readouterr().err,
        "page": html.unescape(render([report_of(SessionLog(Path("x.jsonl"), tuple(lines), ()), None)])),
        "editor": "".join(
            getattr(getattr(update, "content", None), "text", "") or getattr(update, "title", "") or ""
            for update in told
        ),
    }
    of = {line["type"]: line for line in lines}
    said = [
        "run print(Lane(24).fill",
        words.context(of["context.packed"]),
        words.baseline(of["baseline"]),
        words.model(of["endpoint.probed"]),
        words.stall(of["stall"]),
        words.retry(of["retry"]),
        words.cache_lost(of["cache.lost"]),
        "not done yet: no test was run since the last edit",
        ", 2 uncommitted files included",
        "2 tests with and without the patch, in fresh sandboxes",
        RED,
    ]
    assert not [(name, each) for name, view in views.items() for each in said if each not in view]
    assert f"red before, green after: {RED}" in views["editor"]
    assert f"red    green  {RED}" in views["screen"]
    assert GREEN not in views["editor"], "it decides nothing"


@pytest.mark.parametrize(("isolated", "where"), [(True, "fresh sandboxes"), (False, "fresh copies")])
def test_the_plan_says_where_the_tests_run(*, isolated: bool, where: str) -> None:
    entries = [entry.content for entry in plan(2, isolated=isolated).entries]
    assert entries[2] == f"Verify it in {where}"
