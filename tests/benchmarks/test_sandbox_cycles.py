"""Processes that use sandboxes are killed at random and leave nothing, and the search for leftovers works."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from benchmarks.sandbox_cycles import children, containers_of, describe, leftovers

from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.factory import Backend
from m3agent.sandbox.errors import EngineUnavailable

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sandbox_cycles.py"


@pytest.mark.slow
def test_cycles_leave_nothing(backend: Backend) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--cycles", "15", "--backend", backend],
        capture_output=True,
        check=False,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 processes left" in done.stdout
    assert "0 temporary files left" in done.stdout
    if backend == "docker":
        assert "0 containers left" in done.stdout and "0 volumes left" in done.stdout


@pytest.mark.linux
def test_processes_and_files_that_are_left_are_found(tmp_path: Path) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 300; true"]) as process:
        below: list[int] = []
        try:
            while [describe(pid) for pid in below] != [f"{pid} sleep 300 " for pid in below] or not below:
                assert process.poll() is None
                below = children(process.pid)
            (tmp_path / "left").touch()
            left = leftovers(None, set(), set(), tmp_path)
            assert left["temporary files"] == [str(tmp_path / "left")]
            assert any("sleep 300" in line for line in left["processes"])
        finally:
            for pid in below:
                os.kill(pid, 9)
    assert describe(below[0]) is None


@pytest.mark.docker
def test_containers_that_are_left_are_found() -> None:
    try:
        api = connect()
    except EngineUnavailable as error:
        pytest.skip(str(error))
    with closing(api):
        nobody = (1 << 22) + os.getpid()  # larger than every process id
        owner = f"{nobody}-test"
        container = api.create_container(
            api.images()[0]["Id"], command=["true"], labels={"m3agent.owner": owner}
        )["Id"]
        try:
            assert [line.split()[0] for line in containers_of(api, {nobody})] == [container[:12]]
            assert containers_of(api, {nobody + 1}) == []
        finally:
            api.remove_container(container, force=True)
