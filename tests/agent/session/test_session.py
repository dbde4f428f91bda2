"""Test a session's folder and its log."""

from __future__ import annotations

import fcntl
import json
import stat
from pathlib import Path
from typing import IO, Any

import pytest

from m3agent.agent.session import events
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.session import Session
from m3agent.util.errors import EnvironmentFault, UsageError
from tests.tools.small_disk import fill, small_disk


def retry(attempt: int, reason: str = "busy") -> events.Retry:
    return events.Retry(attempt=attempt, wait=1.5, reason=reason)


def call_started(arguments: dict[str, Any] | None) -> events.CallStarted:
    return events.CallStarted(turn=1, call=1, id="c1", name="code_exec", arguments=arguments, tree="t")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read_log(session: Session) -> list[Line]:
    raw = (session.folder / "events.jsonl").read_bytes()
    assert raw.endswith(b"\n") or not raw
    return [json.loads(line) for line in raw.splitlines()]


def test_the_folder_is_the_user_s_alone(tmp_path: Path) -> None:
    session = Session.create(tmp_path / "not" / "yet", [])
    assert session.folder.parent == tmp_path / "not" / "yet" / "sessions"
    assert session.id == session.folder.name
    for folder in (session.folder, session.folder / "calls"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    session.close()


def test_lines_are_json_in_sequence(tmp_path: Path) -> None:
    seen: list[Line] = []
    session = Session.create(tmp_path, [seen.append])
    odd = "line\nend \u2028 \x00 \x1b[31m \ud83d \udcff ü \U0001f600"
    session.write(retry(1, odd))
    session.write(call_started({"code": odd, "deep": [{"a": None}, 1.5]}))
    session.write(events.FileChanged(turn=1, call=1, changes=[("A", odd)], tree="t"))
    session.close()
    lines = read_log(session)
    assert lines == json.loads(json.dumps(seen))
    assert [line["seq"] for line in lines] == [1, 2, 3]
    assert [line["type"] for line in lines] == ["retry", "call.started", "file.changed"]
    assert {line["v"] for line in lines} == {1}
    assert {line["session"] for line in lines} == {session.id}
    assert list(lines[0]) == ["v", "seq", "ts", "session", "type", "attempt", "wait", "reason"]
    assert lines[0]["reason"] == odd
    assert lines[1]["arguments"] == {"code": odd, "deep": [{"a": None}, 1.5]}
    assert lines[2]["changes"] == [["A", odd]]
    stamps = [line["ts"] for line in lines]
    assert stamps == sorted(stamps)
    assert all(stamp.endswith("Z") and len(stamp) == len("2026-01-02T03:04:05.678Z") for stamp in stamps)
    assert (session.folder / "events.jsonl").read_bytes().isascii()


def test_ids_sort_by_time_and_never_meet(tmp_path: Path) -> None:
    sessions = [Session.create(tmp_path, []) for _ in range(20)]
    assert len({session.id for session in sessions}) == 20
    moments = [session.id[:15] for session in sessions]
    assert moments == sorted(moments)
    for session in sessions:
        session.close()


@pytest.mark.integration
def test_a_full_disk_is_one_sentence_and_leaves_whole_lines(tmp_path: Path) -> None:
    seen: list[Line] = []
    with small_disk(tmp_path / "disk", 256 << 10) as disk:
        session = Session.create(disk, [seen.append])
        session.write(retry(1))
        room = fill(disk)
        with pytest.raises(EnvironmentFault) as caught:
            for _ in range(10):
                session.write(retry(2, "x" * 3000))
        assert str(caught.value) == (
            f"cannot write the session in {session.folder}: the disk is full; "
            "make room, or set M3AGENT_STATE to another folder"
        )
        assert caught.value.exit_code == 3
        with pytest.raises(EnvironmentFault, match="the disk is full"):
            session.write_file("patch.diff", b"x" * 100_000)
        assert not list(session.folder.glob("patch*")), "nothing half is left"
        room.unlink()
        session.write(retry(3))
        session.close()
        lines = read_log(session)
        assert lines == seen, "what could not be written was not shown either"
        assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
        assert [lines[0]["attempt"], lines[-1]["attempt"]] == [1, 3]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        EnvironmentFault, match=r"cannot write the session in .*: not a directory; make room, or set"
    ):
        Session.create(tmp_path / "file", [])


def test_files_are_whole_or_not_at_all(tmp_path: Path) -> None:
    session = Session.create(tmp_path, [])
    assert session.write_file("patch.diff", b"one\n").read_bytes() == b"one\n"
    assert session.write_file("patch.diff", b"two\n").read_bytes() == b"two\n"
    assert names(session.folder) == ["calls", "events.jsonl", "patch.diff"]
    (session.folder / "folder").mkdir()
    with pytest.raises(EnvironmentFault, match="is a directory"):
        session.write_file("folder", b"x")
    assert names(session.folder) == ["calls", "events.jsonl", "folder", "patch.diff"]
    session.close()


def test_reopened_session_appends_at_the_end(tmp_path: Path) -> None:
    first = Session.create(tmp_path, [])
    first.write(retry(1))
    first.close()
    again = Session(first.folder, [])
    again.write(retry(2))
    again.close()
    assert [line["attempt"] for line in read_log(again)] == [1, 2]


def test_a_process_that_only_asks_does_not_hinder_an_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Session.create(tmp_path, [])
    first.write(retry(1))
    first.close()
    asking = (first.folder / "events.jsonl").open("rb")
    fcntl.flock(asking, fcntl.LOCK_SH)
    real, refused = fcntl.flock, []

    def flock(file: IO[bytes], how: int) -> None:
        try:
            real(file, how)
        except BlockingIOError:
            refused.append(how)
            asking.close()
            raise

    monkeypatch.setattr(fcntl, "flock", flock)
    again = Session(first.folder, [])
    assert len(refused) == 1
    with pytest.raises(UsageError, match="is in use by another process"):
        Session(first.folder, [])
    again.close()


def test_an_opened_session_has_no_unfinished_files_of_a_killed_process(tmp_path: Path) -> None:
    first = Session.create(tmp_path, [])
    first.write(retry(1))
    (first.folder / ".patch.diff.0123456789ab.tmp").write_text("half a pa")
    (first.folder / ".kept").write_text("")
    first.close()
    again, lines = Session.open(first.folder)
    again.close()
    assert (names(first.folder), len(lines)) == ([".kept", "calls", "events.jsonl"], 1)


def test_a_session_gets_no_folder_of_another_one(tmp_path: Path) -> None:
    """The folder of a detached session exists before its session; a log in it is that of another one."""
    (tmp_path / "sessions" / "begun").mkdir(parents=True)
    Session.create(tmp_path, [], "begun").close()
    with pytest.raises(EnvironmentFault, match="exists"):
        Session.create(tmp_path, [], "begun")
