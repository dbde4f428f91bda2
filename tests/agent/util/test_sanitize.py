"""Test that text from strangers never controls the terminal, whichever command prints it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.cli import check_table
from m3agent.agent.cli.common import say
from m3agent.agent.cli.sessions import sessions_list
from m3agent.agent.session.log_reader import LOG
from m3agent.agent.util.sanitize import (
    UNPRINTABLE,
    last_line,
    print_note,
    printable_line,
    printable_text,
    replace_unprintable,
)
from m3agent.serving.check.check import Check
from m3agent.serving.errors import EndpointRefused, shorten

HOSTILE = "a\x1b[2J\x9b3A\x07\u202eb"


@given(st.text(max_size=200))
def test_lines_stay_and_nothing_drives_a_terminal(text: str) -> None:
    found = printable_text(text)
    assert found.count("\n") == text.count("\n")
    assert len(found) == len(text)
    assert not UNPRINTABLE.search(found.replace("\n", ""))


def test_what_unicode_calls_unprintable_is_replaced() -> None:
    assert replace_unprintable("a\u200db\nc\xa0d") == "a b c d"
    assert replace_unprintable("a\u200db\nc", "") == "abc"
    assert printable_line("👩🏽\u200d🚀") == "👩🏽\u200d🚀", "on a terminal it stays whole"


def test_the_last_line() -> None:
    assert last_line("a\n b \n\n ") == "b"
    assert last_line(" \n") == ""


def test_notes(capsys: pytest.CaptureFixture[str]) -> None:
    print_note(HOSTILE)
    say(f"still building the environment (1 s): {HOSTILE}")
    output = capsys.readouterr().err
    assert output.splitlines() == [
        "a [2J 3A  b",
        "m3agent: still building the environment (1 s): a [2J 3A  b",
    ]


def test_checks() -> None:
    table = check_table.table([Check("name", False, HOSTILE, f"install {HOSTILE}")])
    assert not UNPRINTABLE.search(table.replace("\n", ""))


def test_a_servers_own_words() -> None:
    assert shorten("a\x1b[31m\n b\x07" + "c" * 400, 10) == "a [31m b …"
    assert "\x1b" not in str(EndpointRefused(500, HOSTILE, host="h"))


def test_a_log_that_was_forged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sessions" / "20260101-000000-abcdef"
    folder.mkdir(parents=True)
    line: dict[str, Any] = {"v": HOSTILE, "type": "session.started"}
    (folder / LOG).write_text(json.dumps(line) + "\n")
    monkeypatch.setenv("M3AGENT_STATE", str(tmp_path))
    sessions_list()
    output = capsys.readouterr()
    assert "of version a [2J 3A  b" in output.err
    assert not UNPRINTABLE.search((output.out + output.err).replace("\n", ""))
