"""The records of running model servers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from m3agent.agent.servers import ServerRecord, live_servers, write_record


@pytest.fixture
def other_process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate(b"\n")


def test_the_newest_comes_first(tmp_path: Path, other_process: subprocess.Popen[bytes]) -> None:
    assert live_servers(tmp_path / "nothing") == []
    state = tmp_path / "not" / "yet"
    old = ServerRecord("http://127.0.0.1:1/v1", "embedded", os.getpid())
    new = ServerRecord("http://127.0.0.1:2/v1", "vllm", other_process.pid)
    os.utime(write_record(state, old), (1, 1))
    path = write_record(state, new)
    assert path.name == f"{other_process.pid}.json"
    assert live_servers(state) == [new, old]
    assert (state / "servers").stat().st_mode & 0o777 == 0o700
    # written again, it is one record still
    write_record(state, ServerRecord("http://127.0.0.1:3/v1", "vllm", other_process.pid))
    assert [record.url[-4] for record in live_servers(state)] == ["3", "1"]


def test_records_of_the_dead_are_removed(tmp_path: Path, other_process: subprocess.Popen[bytes]) -> None:
    record = ServerRecord("http://127.0.0.1:1/v1", "vllm", other_process.pid)
    path = write_record(tmp_path, record)
    assert live_servers(tmp_path) == [record]
    other_process.kill()
    other_process.wait()
    assert live_servers(tmp_path) == []
    assert not path.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[1]",
        '{"url": "x"}',
        '{"url": "x", "engine": "y", "pid": "me"}',
        '{"url": "x", "engine": "y", "pid": 99999999999999999999999}',
        b"\xff\xfe".decode("latin-1"),
    ],
)
def test_records_that_are_none_are_removed(tmp_path: Path, text: str) -> None:
    mine = ServerRecord("http://127.0.0.1:1/v1", "vllm", os.getpid())
    write_record(tmp_path, mine)
    broken = tmp_path / "servers" / "1.json"
    broken.write_text(text, encoding="latin-1")
    assert live_servers(tmp_path) == [mine]
    assert not broken.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may signal every process")
def test_another_user_s_server_is_not_ours_and_stays(tmp_path: Path) -> None:
    path = write_record(tmp_path, ServerRecord("http://127.0.0.1:1/v1", "vllm", 1))
    assert live_servers(tmp_path) == []
    assert path.exists()
