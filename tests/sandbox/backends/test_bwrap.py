"""Specific to bubblewrap: which user its processes have, and that it fails closed with the reason."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.sandbox.backends.bwrap_machine import FIRST_USER, BwrapMachine, command
from m3agent.sandbox.backends.factory import SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.sandbox.errors import EngineUnavailable, SandboxError
from m3agent.sandbox.store.workspace import Workspace
from tests.conftest import bwrap_here, until

pytestmark = pytest.mark.bwrap

WorkspaceOf = Callable[[dict[str, str | bytes]], Workspace]
CROWD = "for n in $(seq 50); do sleep 300 & done; sleep 300"


@pytest.fixture
def sandbox_of_few(workspace_of: WorkspaceOf) -> Callable[[], Sandbox]:
    if not bwrap_here():
        pytest.skip("bubblewrap does not work on this machine")
    workspace = workspace_of({"a": "a"})
    spec = SandboxSpec("bwrap", limits=SandboxLimits(memory=1 << 30, pids=80))
    return lambda: new_sandbox("bwrap", spec, workspace, lambda _: None)


async def test_another_sandbox_s_processes_do_not_count(sandbox_of_few: Callable[[], Sandbox]) -> None:
    async with sandbox_of_few() as one, sandbox_of_few() as two:
        for sandbox in (one, two):
            await sandbox.exec(["sh", "-c", CROWD], background=True)
        for sandbox in (one, two):
            done = await sandbox.exec(["sh", "-c", "for n in $(seq 15); do sleep 0.1 & done; wait; echo all"])
            assert done.stdout == b"all\n", done.stderr
        too_many = await one.exec(["sh", "-c", "for n in $(seq 100); do sleep 60 & done; wait; echo all"])
        assert b"all" not in too_many.stdout
        assert b"annot fork" in too_many.stderr


async def test_root_s_rights_are_gone_before_anything_runs(sandbox_of_few: Callable[[], Sandbox]) -> None:
    async with sandbox_of_few() as one, sandbox_of_few() as two:
        users = set()
        for sandbox in (one, two):
            machine = sandbox.machine
            assert isinstance(machine, BwrapMachine)
            assert machine._process is not None
            users.add(Path(f"/proc/{machine._process.pid}").stat().st_uid)
            shown = Path(f"/proc/{machine._process.pid}/status").read_text()
            assert "NoNewPrivs:\t1" in shown
        if os.geteuid() == 0:
            assert len(users) == 2
            assert all(user >= FIRST_USER for user in users)


def stand_in(folder: Path, script: str) -> None:
    """Write a fake bubblewrap into a folder for PATH, beside the programs that it needs."""
    folder.mkdir(exist_ok=True)
    for name in ("setpriv", "true"):
        there = shutil.which(name)
        if there is not None and not (folder / name).exists():
            (folder / name).symlink_to(there)
    (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bwrap").chmod(0o755)
    folder.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'bwrap: Unknown option --disable-userns' >&2; exit 1", "bubblewrap 0.8 or later is needed"),
        ("echo 'bwrap: No permissions to create a new namespace' >&2; exit 1", "No permissions to create"),
        ("echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1", "setting up uid map"),
        ("exit 1", "the sandbox's process was killed"),
    ],
)
async def test_a_sandbox_that_cannot_be_confined_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workspace_of: WorkspaceOf, script: str, said: str
) -> None:
    # any user may enter this folder; the unprivileged user may not enter pytest's folders
    folder = Path(f"/tmp/m3agent-test-{os.getpid()}")
    stand_in(folder, script)
    try:
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        sandbox = new_sandbox("bwrap", SandboxSpec("bwrap"), workspace_of({"a": "a"}), lambda _: None)
        kind = EngineUnavailable if "bwrap:" in script else SandboxError
        with pytest.raises(kind, match=said):
            async with sandbox:
                pytest.fail("it started")
    finally:
        shutil.rmtree(folder)


def test_root_without_a_way_to_drop_its_rights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has rights to drop")
    stand_in(tmp_path / "bin", "exit 0")
    (tmp_path / "bin" / "setpriv").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(EngineUnavailable, match="bubblewrap is not safe as root, and setpriv"):
        command(SandboxLimits())


async def test_its_child_dies_with_it_at_any_time(
    monkeypatch: pytest.MonkeyPatch, workspace_of: WorkspaceOf
) -> None:
    """Until bubblewrap's child has set its parent-death signal, it outlives its parent and holds the pipes."""
    folder = Path(f"/tmp/m3agent-test-{os.getpid()}")
    stand_in(folder, "sleep 300 & wait")
    try:
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        sandbox = new_sandbox("bwrap", SandboxSpec("bwrap"), workspace_of({"a": "a"}), lambda _: None)
        machine = sandbox.machine
        assert isinstance(machine, BwrapMachine)
        starting = asyncio.create_task(sandbox.boot())
        await until(lambda: machine._process and "sleep" in running(machine._process.pid))
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        async with asyncio.timeout(60):
            await sandbox.close()
        assert machine._process
        group = machine._process.pid
        await until(lambda: not running(group))
    finally:
        shutil.rmtree(folder)


def running(group: int) -> list[str]:
    """Return the names of the running processes of a process group."""
    names = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, fields = path.read_text().partition("(")[2].rpartition(")")
            state, _, its_group, *_ = fields.split()
            if int(its_group) == group and state != "Z":
                names.append(name)
    return names


async def test_users_and_this_machine_have_names(sandbox_of_few: Callable[[], Sandbox]) -> None:
    """As in an image: many programs need these names."""
    asks = "import getpass, pwd, socket; print(pwd.getpwuid(1000)[0], getpass.getuser(), socket.gethostbyname('localhost'))"
    async with sandbox_of_few() as sandbox:
        done = await sandbox.exec(["python3", "-c", asks])
        assert done.stdout == b"m3agent m3agent 127.0.0.1\n", done.stderr
        refused = await sandbox.exec(["sh", "-c", "echo 192.0.2.1 localhost > /etc/hosts"])
        assert b"Read-only" in refused.stderr


async def test_it_can_be_destroyed_with_output_unread(sandbox_of_few: Callable[[], Sandbox]) -> None:
    async with sandbox_of_few() as sandbox:
        flood = asyncio.create_task(sandbox.exec(["sh", "-c", "head -c 100000000 /dev/zero"]))
        await asyncio.sleep(0)
        sandbox.channel._task.cancel()  # from here on, nothing reads the output
        await asyncio.sleep(0.3)  # until the pipe is full and asyncio has stopped reading it
        async with asyncio.timeout(60):
            await sandbox.machine.destroy()
        flood.cancel()
