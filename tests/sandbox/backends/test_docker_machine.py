"""A container's limits as seen from inside, and the reasons reported when a container ends unexpectedly."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from m3agent.sandbox.backends.docker_machine import DockerMachine, explain
from m3agent.sandbox.backends.engine import connect, engine_addresses
from m3agent.sandbox.backends.factory import SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import FEW_INODES, INODE_COST, Sandbox, SandboxLimits
from m3agent.sandbox.errors import EngineUnavailable, OutOfMemory, SandboxDied, SandboxError
from m3agent.sandbox.store.workspace import Workspace

WorkspaceOf = Callable[[dict[str, str | bytes]], Workspace]
pytestmark = pytest.mark.docker


@pytest.fixture
def docker_sandbox(workspace_of: WorkspaceOf) -> Callable[..., Sandbox]:
    try:
        connect().close()
    except EngineUnavailable as error:
        pytest.skip(str(error))

    def make(limits: SandboxLimits | None = None) -> Sandbox:
        spec = SandboxSpec("docker", limits=limits or SandboxLimits(memory=256 << 20))
        return new_sandbox("docker", spec, workspace_of({"a.txt": "a\n"}), lambda _: None)

    return make


# -- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [192 << 20, 256 << 20, 1 << 30, 4 << 30, 64 << 30])
def test_full_file_systems_leave_room_for_the_processes(memory: int) -> None:
    limits = SandboxLimits(memory=memory)
    inodes = 2 * (limits.inodes + FEW_INODES) * INODE_COST
    assert limits.disk + limits.scratch + limits.toolbox + 2 * limits.shared + inodes < 0.6 * memory
    assert limits.disk > memory // 5


async def test_every_place_that_can_be_written_to_is_capped(docker_sandbox: Callable[..., Sandbox]) -> None:
    """By size and by number of files, according to the kernel. All together take less than 60 % of the memory."""
    memory = 256 << 20
    script = (
        "import os\n"
        "for line in open('/proc/mounts'):\n"
        "    place = line.split()[1]\n"
        "    print(line.strip(), os.path.isdir(place) and os.access(place, os.W_OK))\n"
    )
    async with docker_sandbox(SandboxLimits(memory=memory)) as sandbox:
        done = await sandbox.exec(["python3", "-c", script])
        shmall = await sandbox.exec(["cat", "/proc/sys/kernel/shmall"])
    total, seen = int(shmall.stdout) * 4096, set()
    for line in done.stdout.decode().splitlines():
        _, where, kind, options, *_, writable = line.split()
        if writable == "False" or kind in {"proc", "devpts", "mqueue"}:
            continue
        values: dict[str, str] = {
            name: value for name, _, value in (o.partition("=") for o in options.split(","))
        }
        assert kind == "tmpfs", line
        total += 1024 * int(values["size"].removesuffix("k"))
        total += INODE_COST * int(values["nr_inodes"].replace("k", "000"))
        seen.add(where)
    assert seen == {"/ws", "/tmp", "/opt/m3agent", "/dev/shm"}
    assert total < 0.6 * memory


# -- where the engine is -------------------------------------------------------------------------------------------


def test_podman_is_asked_after_docker_where_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    ours = f"unix://{tmp_path}/podman/podman.sock"
    assert ours not in engine_addresses()
    (tmp_path / "podman").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "podman" / "podman.sock"))
        assert engine_addresses()[:2] == ["unix:///var/run/docker.sock", ours]


# -- a container that ends -----------------------------------------------------------------------------------------


def event(what: str, second: float, **attributes: str) -> dict[str, Any]:
    return {"Action": what, "timeNano": int(second * 1e9), "Actor": {"Attributes": attributes}}


@pytest.mark.parametrize(
    ("events", "kind", "words"),
    [
        ([event("oom", 9.5), event("die", 10, exitCode="137")], OutOfMemory, "1.5 GiB"),
        # a command that ran out of memory long before is not the reason
        ([event("oom", 2), event("die", 10, exitCode="137")], SandboxDied, "status 137"),
        ([event("oom", 9.5), event("die", 10, exitCode="1")], SandboxDied, "status 1"),
        ([event("oom", 9.5), event("kill", 10), event("die", 10, exitCode="137")], SandboxDied, "someone"),
        ([{"status": "died", "Actor": {"Attributes": {"exitCode": "0"}}}], SandboxDied, "status 0"),
        ([], SandboxDied, "ended"),
    ],
)
def test_the_engines_events_tell_the_reason(
    events: list[dict[str, Any]], kind: type[SandboxError], words: str
) -> None:
    error = explain(events, 3 << 29)
    assert type(error) is kind
    assert words in str(error)


@pytest.mark.slow
async def test_a_container_that_someone_removes(docker_sandbox: Callable[..., Sandbox]) -> None:
    async with docker_sandbox() as sandbox:
        assert isinstance(sandbox.machine, DockerMachine)
        call = asyncio.create_task(sandbox.exec(["sleep", "100"]))
        await sandbox.ping()
        with contextlib.closing(connect()) as api:
            await asyncio.to_thread(api.remove_container, sandbox.machine._id, force=True)
        with pytest.raises(SandboxDied, match="someone stopped or removed"):
            await call
        with pytest.raises(SandboxDied, match="someone stopped or removed"):
            await sandbox.exec(["true"])


async def test_a_sandbox_killed_for_memory(docker_sandbox: Callable[..., Sandbox]) -> None:
    class Greedy(SandboxLimits):
        """Limits that let file systems take more than the whole memory."""

        @property
        def disk(self) -> int:
            return 2 * self.memory

    async with docker_sandbox(Greedy(memory=128 << 20)) as sandbox:
        with pytest.raises(OutOfMemory, match=r"0\.125 GiB"):
            for number in range(20):
                await sandbox.write(f"{number}.bin", bytes(10 << 20))


async def test_a_sandbox_that_was_closed_says_so(docker_sandbox: Callable[..., Sandbox]) -> None:
    async with docker_sandbox() as sandbox:
        pass
    with pytest.raises(SandboxDied, match="closed"):
        await sandbox.ping()


class Relay:
    """Forwards everything to the engine until `stop`, which makes the engine unreachable."""

    def __init__(self, path: Path) -> None:
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen()
        self.open: list[socket.socket] = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listening.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect("/var/run/docker.sock")
                self.open += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self.copy, args=(source, target), daemon=True).start()

    def copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def stop(self) -> None:
        for each in [self.listening, *self.open]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    if os.environ.get("DOCKER_HOST") or not Path("/var/run/docker.sock").exists():
        pytest.skip("needs an engine at the local socket")
    # not in tmp_path: the path of a unix socket must be short
    folder = Path("/tmp") / f"m3agent-relay-{os.getpid()}"
    folder.mkdir()
    running = Relay(folder / "s")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/s")
    yield running
    running.stop()
    shutil.rmtree(folder)


async def gone(pid: int) -> None:
    async with asyncio.timeout(60):
        with contextlib.suppress(FileNotFoundError):
            # poll, because it is not a child of this process
            while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_an_engine_that_goes_away(docker_sandbox: Callable[..., Sandbox], relay: Relay) -> None:
    sandbox = docker_sandbox()
    await sandbox.__aenter__()
    assert isinstance(sandbox.machine, DockerMachine)
    try:
        relay.stop()
        (Path("/tmp") / f"m3agent-relay-{os.getpid()}" / "s").unlink()
        with pytest.raises(EngineUnavailable, match="the Docker engine stopped"):
            await sandbox.exec(["true"])
    finally:
        await sandbox.close()
        assert sandbox.machine._process is not None
        await gone(sandbox.machine._process[0])
