"""Containers are removed when the process that created them is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import NotFound

from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.reaper import start_reaper, sweep
from m3agent.sandbox.errors import EngineUnavailable

pytestmark = pytest.mark.integration

PATIENCE = 60.0  # seconds for an engine to remove containers; on a quiet machine it takes two

CREATE = """
import sys, time
from m3agent.sandbox.backends.sandbox import SandboxLimits
from m3agent.sandbox.backends.docker_machine import DockerMachine
machines = [DockerMachine(None, SandboxLimits(memory=256 << 20), lambda _: None) for _ in range(2)]
for machine in machines:
    machine._create()
if sys.argv[1] == "started":
    machines[0]._api.start(machines[0]._id)
print(*[machine._id for machine in machines], flush=True)
time.sleep(300)
"""


@pytest.fixture
def engine() -> Iterator[Any]:
    try:
        api = connect()
    except EngineUnavailable as error:
        pytest.skip(str(error))
    with contextlib.closing(api):
        yield api


def there(engine: Any, container: str) -> bool:
    try:
        engine.inspect_container(container)
    except NotFound:
        return False
    return True


def gone_within(engine: Any, containers: list[str], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(there(engine, container) for container in containers):
            return True
        time.sleep(0.02)
    return False


def wait_until_ignored(pid: int, number: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/status").read_text()
        mask = int(next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1], 16)
        if mask & 1 << (number - 1):
            return
        time.sleep(0.01)
    pytest.fail("the reaper does not ignore signals")


@pytest.mark.parametrize("state", ["created", "started"])
def test_containers_go_with_their_owner(engine: Any, state: str) -> None:
    """This also holds for a container that never started and so has no supervisor that would notice."""
    owner = subprocess.Popen([sys.executable, "-c", CREATE, state], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        containers = owner.stdout.readline().split()
        assert len(containers) == 2
        assert all(there(engine, container) for container in containers)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert gone_within(engine, containers, PATIENCE)
    finally:
        owner.kill()
        owner.communicate()


def test_only_what_carries_the_label_is_swept(engine: Any) -> None:
    label, value = "m3agent.test", str(os.getpid())
    image = engine.images()[0]["Id"]
    mine, other = (
        engine.create_container(image, command=["true"], labels={label: each})["Id"]
        for each in (value, f"{value}-other")
    )
    try:
        socket = (os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock").removeprefix("unix://")
        reaper = start_reaper(socket, f"{label}={value}")
        assert there(engine, mine)
        reaper.communicate(timeout=30)
        assert reaper.returncode == 0
        assert not there(engine, mine)
        assert there(engine, other)
        sweep(socket, f"{label}={value}-other")
        assert not there(engine, other)
    finally:
        for container in (mine, other):
            with contextlib.suppress(NotFound):
                engine.remove_container(container, force=True)


@pytest.mark.linux  # the test reads in /proc whether the reaper ignores a signal yet
def test_signals_to_the_process_group_do_not_end_the_reaper() -> None:
    """A terminal sends them to all processes of the group before the reaper's work is done."""
    with start_reaper("/nowhere", "m3agent.test=signals") as reaper:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            wait_until_ignored(reaper.pid, number)
            reaper.send_signal(number)
        reaper.communicate(b"done", timeout=30)
    assert reaper.returncode == 0


def test_input_before_the_end_cancels_the_reaper(engine: Any) -> None:
    label, value = "m3agent.test", f"{os.getpid()}-word"
    container = engine.create_container(engine.images()[0]["Id"], command=["true"], labels={label: value})[
        "Id"
    ]
    try:
        socket = (os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock").removeprefix("unix://")
        start_reaper(socket, f"{label}={value}").communicate(b"done", timeout=30)
        assert there(engine, container)
    finally:
        engine.remove_container(container, force=True)


def test_reaper_tolerates_a_missing_engine() -> None:
    reaper = start_reaper("/nonexistent.sock", "m3agent.test=none")
    assert reaper.stdin is not None
    reaper.stdin.close()
    assert reaper.wait(timeout=30) == 0
