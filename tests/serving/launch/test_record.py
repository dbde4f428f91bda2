"""The records of running model servers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from m3agent.serving.launch.record import (
    KEPT,
    KEY,
    LOG,
    RECORD,
    Phase,
    ServerRecord,
    alive,
    born,
    key_of,
    last_folder,
    live_servers,
    new_folder,
    write_record,
)


@pytest.fixture
def other_process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate(b"\n")


def add(state: Path, pid: int, number: int = 1, **more: object) -> tuple[Path, ServerRecord]:
    folder = new_folder(state)
    record = ServerRecord(
        url=f"http://127.0.0.1:{number}/v1", engine="vllm", pid=pid, born=born(pid)
    ).model_copy(update=more)
    write_record(folder, record)
    return folder, record


@pytest.mark.integration
def test_the_newest_comes_first(tmp_path: Path, other_process: subprocess.Popen[bytes]) -> None:
    assert live_servers(tmp_path / "nothing") == []
    state = tmp_path / "not" / "yet"
    old, new = add(state, os.getpid(), 1), add(state, other_process.pid, 2, phase=Phase.LOADING)
    assert live_servers(state) == [new, old]
    for folder in (state / "servers", new[0]):
        assert folder.stat().st_mode & 0o777 == 0o700
    # writing a record again does not add one
    again = new[1].model_copy(update={"phase": Phase.READY})
    write_record(new[0], again)
    assert live_servers(state) == [(new[0], again), old]


@pytest.mark.integration
def test_records_of_the_dead_are_removed_and_their_logs_stay(
    tmp_path: Path, other_process: subprocess.Popen[bytes]
) -> None:
    folder, record = add(tmp_path, other_process.pid)
    (folder / LOG).write_text("its last words")
    (folder / KEY).write_text("secret")
    assert live_servers(tmp_path) == [(folder, record)]
    assert key_of(folder) == "secret"
    other_process.kill()
    other_process.wait()
    assert live_servers(tmp_path) == []
    assert [path.name for path in folder.iterdir()] == [LOG]
    assert last_folder(tmp_path) == folder
    assert key_of(folder) is None


@pytest.mark.linux  # when a process began is read in /proc
def test_a_process_number_that_was_used_again_is_another_server_s(tmp_path: Path) -> None:
    began = born(os.getpid())
    assert began is not None
    folder, _ = add(tmp_path, os.getpid())
    write_record(
        folder, ServerRecord(url="http://127.0.0.1:1/v1", engine="vllm", pid=os.getpid(), born=began - 1)
    )
    assert not alive(os.getpid(), began - 1)
    assert live_servers(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"null",
        b"[1]",
        b'{"url": "x"}',
        b'{"url": "x", "engine": "y", "pid": "me"}',
        b'{"url": "x", "engine": "y", "pid": 0}',
        b'{"url": "x", "engine": "y", "pid": 99999999999999999999999}',
        b"\xff\xfe",
    ],
)
def test_invalid_records_are_removed(tmp_path: Path, text: bytes) -> None:
    mine = add(tmp_path, os.getpid())
    broken = new_folder(tmp_path)
    (broken / RECORD).write_bytes(text)
    assert live_servers(tmp_path) == [mine]
    assert not (broken / RECORD).exists()


def test_only_a_few_folders_of_ended_servers_are_kept(tmp_path: Path) -> None:
    mine, _ = add(tmp_path, os.getpid())
    ended = [new_folder(tmp_path) for _ in range(KEPT + 3)]
    there = [folder for folder in ended if folder.exists()]
    assert there == ended[-KEPT:]
    assert mine.exists(), "one that runs is kept however old"


@pytest.mark.linux  # when a process began is read in /proc
@pytest.mark.integration
def test_a_process_that_ended_is_dead_also_before_its_parent_asks(
    other_process: subprocess.Popen[bytes],
) -> None:
    began = born(other_process.pid)
    assert alive(other_process.pid, began)
    other_process.kill()
    until = time.monotonic() + 30
    while alive(other_process.pid, began):
        assert time.monotonic() < until


@pytest.mark.linux  # when a process began is read in /proc
def test_another_user_s_process_is_alive_if_it_is_the_one() -> None:
    assert alive(1, born(1))
    assert not alive(1, 1 + (born(1) or 0))
