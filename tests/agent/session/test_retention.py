"""Test housekeeping: which sessions are at work, and what is removed when sessions take too much space."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from m3agent.agent.session import events
from m3agent.agent.session.catalog import at_work_on, trim
from m3agent.agent.session.session import Session
from tests.agent.scripted import FIX, NOT_TESTED, UNTESTED, MakeRepo, fix, start
from tests.agent.session.an_event import an_event
from tests.servers.misbehaving import MisbehavingServer, Silence


def begin(state: Path, root: str, kilobytes: int = 0) -> Session:
    session = Session.create(state, [])
    session.write(an_event(events.SessionStarted, repository={"root": root}))
    (session.folder / "trees.git").mkdir()
    (session.folder / "trees.git" / "object").write_bytes(b"x" * 1000 * kilobytes)
    (session.folder / "messages.jsonl").write_bytes(b"{}\n")
    (session.folder / "patch.diff").write_bytes(b"diff\n")
    return session


def test_sessions_at_work(tmp_path: Path) -> None:
    here, other, elsewhere, over = (begin(tmp_path, root) for root in ("/r", "/r", "/s", "/r"))
    over.close()
    (tmp_path / "sessions" / "empty").mkdir()
    (tmp_path / "sessions" / "odd").mkdir()
    (tmp_path / "sessions" / "odd" / "events.jsonl").write_text("nonsense")
    assert at_work_on(tmp_path, "/r", here.id) == [other.id]
    other.close()
    assert at_work_on(tmp_path, "/r", here.id) == []
    assert at_work_on(tmp_path / "nowhere", "/r", "") == []
    for session in (here, elsewhere):
        session.close()


def test_the_oldest_lose_their_bulk(tmp_path: Path) -> None:
    sessions = sorted((begin(tmp_path, "/r", 200) for _ in range(5)), key=lambda session: session.id)
    oldest, second, third, *_ = sessions
    for session in sessions[1:]:
        session.close()  # the oldest is still at work
    assert trim(tmp_path, most=10 << 20, pause=0) == []
    assert trim(tmp_path, most=700_000, pause=0) == [second.id, third.id]
    assert (oldest.folder / "trees.git").is_dir()
    for session in (second, third):
        assert sorted(path.name for path in session.folder.iterdir()) == ["events.jsonl", "patch.diff"]
    assert trim(tmp_path, most=1, pause=3600) == [], "it looked just now"
    marker, later = tmp_path / "sessions/.trimmed", time.time() + 1e6
    os.utime(marker, (later, later))
    assert trim(tmp_path, most=1, pause=3600) == [sessions[3].id], "the date was set back"
    oldest.close()
    assert sessions[-1].id not in trim(tmp_path, most=1, pause=0), "the newest stays whole"


@pytest.mark.slow  # quick: the other tests of this module
def test_second_fix_reports_the_first_one(
    server: MisbehavingServer, make_repo: MakeRepo, one_backend: str
) -> None:
    repo = make_repo(UNTESTED)
    server.answers = [Silence(), FIX, NOT_TESTED]
    first = start(repo, server.url, one_backend)
    server.wait_for_chats(1)
    second = fix(repo, server.url)
    first.kill()
    first.wait()
    assert second.returncode == 1, second.stderr
    assert "also works on this repository" in second.stderr
