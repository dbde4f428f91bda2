"""Test the named pipe through which another process speaks to a session."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from m3agent.agent.session.control import PIPE, controlled, send
from m3agent.util.errors import EnvironmentFault


@pytest.mark.timeout(10)
async def test_messages_arrive_whole_and_in_order(tmp_path: Path) -> None:
    texts, stopped = list[str](), asyncio.Event()
    with controlled(tmp_path, texts.append, stopped.set):
        assert stat.S_IMODE((tmp_path / PIPE).stat().st_mode) == 0o600
        long = "é" * 20_000
        for asked in ({"say": "one"}, {"say": "  "}, {"other": 1}, {"say": long}, {"stop": True}):
            assert await asyncio.to_thread(send, tmp_path, asked)
        await stopped.wait()
    assert texts == ["one", long]
    assert not (tmp_path / PIPE).exists()
    assert not send(tmp_path, {"stop": True}), "nobody works there any more"


@pytest.mark.timeout(10)
async def test_other_bytes_are_passed_over(tmp_path: Path) -> None:
    stopped = asyncio.Event()
    with controlled(tmp_path, lambda _: None, stopped.set):
        deep = b"[" * 20_000
        (tmp_path / PIPE).write_bytes(b'\xff\n[1]\nnot json\n{"say": 3}\n' + deep + b'\n{"stop": 1}\n')
        await stopped.wait()


def test_a_pipe_that_a_killed_process_left_takes_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / PIPE)
    assert not send(tmp_path, {"stop": True})


def test_a_file_in_the_place_of_the_pipe_stays_as_it_is(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    (tmp_path / PIPE).symlink_to(other)
    assert not send(tmp_path, {"stop": True})
    (tmp_path / PIPE).unlink()
    other.rename(tmp_path / PIPE)
    assert not send(tmp_path, {"stop": True})
    assert (tmp_path / PIPE).read_text() == "kept"


def test_a_reader_that_ends_before_it_reads_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / PIPE)
    reader = os.open(tmp_path / PIPE, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setattr("fcntl.flock", lambda *_: os.close(reader))
    assert not send(tmp_path, {"stop": True})


async def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault), controlled(tmp_path / "gone", lambda _: None, lambda: None):
        raise AssertionError
