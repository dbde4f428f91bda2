"""Test that text from strangers never controls the terminal, whichever command prints it."""

from __future__ import annotations

import fcntl
import io
import json
import os
import struct
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.session.log_reader import LOG
from m3agent.agent.settings.loader import load_settings
from m3agent.cli import check_table
from m3agent.cli.common import print_bytes, say
from m3agent.cli.sessions import sessions_list
from m3agent.serving.check.check import Check
from m3agent.serving.errors import EndpointRefused, shorten
from m3agent.util.sanitize import (
    UNPRINTABLE,
    last_line,
    print_note,
    printable_line,
    printable_text,
    replace_unprintable,
)

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


def test_blanks_stay_and_breaks_become_one() -> None:
    """A title quotes code, in which two blanks are not one."""
    assert printable_line(' count("a  b") is\n\t 4 \r\n') == 'count("a  b") is 4'


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


class Output:
    """A standard output that is a terminal or not."""

    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal
        self.buffer = io.BytesIO()

    def isatty(self) -> bool:
        return self.terminal

    def flush(self) -> None:
        """Do nothing: what was written is in `buffer`."""


def test_a_note_wraps_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = os.openpty()
    note = "the sandbox may reach packages.example, which is not this machine"
    try:
        fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        with open(os.dup(follower), "w") as terminal:  # noqa: PTH123  # a descriptor
            monkeypatch.setattr(sys, "stderr", terminal)
            print_note(note)
            print_note("short")
        said = b""
        while not said.endswith(b"short\r\n"):  # the terminal may pass on each line by itself
            said += os.read(leader, 1000)
    finally:
        os.close(leader)
        os.close(follower)
    assert said.decode().splitlines() == [
        "the sandbox may reach packages.example,",
        "  which is not this machine",
        "short",
    ]
    with io.StringIO() as pipe:
        monkeypatch.setattr(sys, "stderr", pipe)
        print_note(note)
        assert pipe.getvalue() == f"{note}\n"


def test_a_patch_on_a_terminal_and_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = f"+\tcell = '{HOSTILE}'\n+é\n".encode() + b"+\xff\n"
    found = []
    for terminal in (False, True):
        output = Output(terminal)
        monkeypatch.setattr("sys.stdout", output)
        print_bytes(patch)
        found.append(output.buffer.getvalue())
    assert found[0] == patch
    assert found[1].decode() == "+\tcell = 'a\ufffd[2J\ufffd3A\ufffd\ufffdb'\n+é\n+\ufffd\n"


def test_settings_of_a_repository(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[2Jb"
    folder.mkdir()
    (folder / ".m3agent.toml").write_text("max_turns = 3\n")
    table = load_settings(folder, {}, {"HOME": str(tmp_path)}).table()
    assert "a [2Jb/.m3agent.toml" in table


def test_checks() -> None:
    table = check_table.table([Check("name", False, HOSTILE, f"install {HOSTILE}")])
    assert not UNPRINTABLE.search(table.plain.replace("\n", ""))


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
