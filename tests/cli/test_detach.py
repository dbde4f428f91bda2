"""Test fixes without a terminal: `m3agent fix --detach`, and `m3agent sessions attach`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from m3agent.agent.session.control import PIPE
from m3agent.agent.session.log_reader import read_new
from m3agent.agent.session.session import PATCH, Session
from tests.agent.report.test_report_model import finished, started
from tests.agent.scripted import BUGGY, DONE, FIX, ISSUE, TEST, Fixes, one_sentence, run_there
from tests.command_line import Process, command, run
from tests.conftest import one_kind
from tests.emulated_terminal import EmulatedTerminal
from tests.servers.misbehaving import Silence

pytestmark = pytest.mark.integration


def detach(fixes: Fixes, *more: str) -> subprocess.CompletedProcess[str]:
    """Start a fix without a terminal."""
    where = ("--repo", str(fixes.repo(BUGGY)), "--endpoint", fixes.model.url, "--sandbox", one_kind())
    return run("fix", ISSUE, *where, "--detach", *more)


def test_a_detached_fix_is_steered_watched_and_stopped(fixes: Fixes) -> None:
    fixes.model.answers = [FIX, Silence()]
    begun = detach(fixes)
    assert begun.returncode == 0, begun.stderr
    session = begun.stdout.strip()
    assert f"m3agent sessions attach {session}" in begun.stderr
    fixes.model.wait_for_chats(2)
    [listed] = json.loads(run_there("sessions", "list", "--json").stdout)
    assert (listed["id"], listed["status"]) == (session, "running")
    repo = str(listed["repository"])
    with EmulatedTerminal(command("sessions", "attach", "--repo", repo), output_too=True) as terminal:
        terminal.until(lambda lines: any(line.startswith("session ") for line in lines))
        terminal.press(b"keep double()\r")
        terminal.until(lambda lines: any(line == "you        keep double()" for line in lines))
        terminal.press(b"\x03")
        assert terminal.until_the_end() == 130
        assert any("works on" in line for line in terminal.lines)
    stopped = run_there("sessions", "attach", session, "--stop")
    assert stopped.returncode == 130, stopped.stderr
    assert "interrupted" in stopped.stderr
    again = run_there("sessions", "attach", session)
    assert (again.returncode, "does not run" in one_sentence(again)) == (2, True)
    fixes.resume([TEST, DONE])
    assert "keep double()" in str(fixes.chats[-1].json["messages"])


@pytest.mark.parametrize(("killed", "by_attempt"), [(False, False), (True, False), (False, True)])
def test_attach_ends_with_the_fix(own_state: Path, killed: bool, by_attempt: bool) -> None:
    """It prints the patch, as the fix would, or says how to go on if the process was killed. Any attempt names the fix."""
    session = Session.create(own_state / "state", [])
    with contextlib.closing(session), contextlib.closing(session.beside(2)) as second:
        session.write(started())
        second.write(replace(started(), attempt={"number": 2, "of": 2}))
        named = second.id if by_attempt else session.id
        attached = Process("sessions", "attach", named, "--repo", str(own_state))
        if by_attempt:
            assert f"{second.id} is an attempt of session {session.id}".encode() in attached.stderr.readline()
        while b"session" not in attached.stderr.readline():
            assert attached.poll() is None
        if not killed:
            session.write_file(PATCH, b"diff --git a/a.py b/a.py\n")
            session.write(finished("verified"))
    output, said = attached.communicate()
    if killed:
        assert (attached.returncode, output) == (3, b"")
        assert f"m3agent sessions resume {session.id}".encode() in said
    else:
        assert (attached.returncode, output) == (0, b"diff --git a/a.py b/a.py\n")
        assert b"verified" in said


def test_a_message_that_came_too_late_is_told(own_state: Path) -> None:
    session = Session.create(own_state / "state", [])
    os.mkfifo(session.folder / PIPE)
    reader = os.open(session.folder / PIPE, os.O_RDWR)
    with contextlib.closing(session):
        session.write(started())
        attached = command("sessions", "attach", session.id, "--repo", str(own_state))
        with EmulatedTerminal(attached, output_too=True) as terminal:
            terminal.until(lambda lines: any(line.startswith("session ") for line in lines))
            terminal.press(b"one word more\r")
            assert b"one word more" in os.read(reader, 1000)
            session.write(finished("verified"))
            session.close()
            assert terminal.until_the_end() == 0
            assert any("does not get this: one word more" in line for line in terminal.lines)
    os.close(reader)


@pytest.mark.slow  # quick: test_attach_ends_with_the_fix
def test_an_end_without_a_word_is_told(fixes: Fixes) -> None:
    """The disk is full, so nothing that the fix says can be kept."""
    where = ("--repo", str(fixes.repo(BUGGY)), "--endpoint", fixes.model.url)
    full = ["bash", "-c", 'ulimit -f 0; exec "$@"', "-", *command("fix", ISSUE, *where, "--detach")]
    ended = subprocess.run(full, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "the disk may be full" in ended.stderr


def test_what_is_refused_leaves_no_session(fixes: Fixes) -> None:
    refused = run(
        "fix", "gone.md", "--repo", str(fixes.repo(BUGGY)), "--endpoint", fixes.model.url, "--detach"
    )
    assert refused.returncode == 2
    assert "There is no issue file 'gone.md'" in refused.stderr
    assert list((fixes.home / "state" / "sessions").glob("*")) == []
    assert run("fix", "-", "--detach").returncode == 2
    assert run("fix", ISSUE, "--detach", "--pr", "--follow").returncode == 2


def test_new_lines_are_read_once_and_whole(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    assert read_new(log, 0) == ([], 0)
    log.write_bytes(b'{"v":1,"n":1}\n{"v":1,"n":2}\n{"v":1,')
    lines, position = read_new(log, 0)
    assert [line["n"] for line in lines] == [1, 2]
    assert read_new(log, position) == ([], position)
    with log.open("ab") as file:
        file.write(b'"n":3}\n')
    assert [line["n"] for line in read_new(log, position)[0]] == [3]
