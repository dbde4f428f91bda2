"""A Docker (or Podman) container as a sandbox's machine.

Hardened as `facts` measured it: no network, no capabilities, no new privileges, read-only root, tmpfs with size and
inode limits, memory without swap, process limit, no log on the host. Costs 1.2 times a plain start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from m3agent.sandbox.base import FEW_INODES, ROOT, TOOLBOX, Limits
from m3agent.sandbox.channel import BOOT, Channel
from m3agent.sandbox.engine import connect, is_podman, socket_of
from m3agent.sandbox.engine_events import why_ended
from m3agent.sandbox.errors import EngineUnavailable, ImageMissing, SandboxError
from m3agent.sandbox.image import find_image
from m3agent.sandbox.in_thread import uninterrupted
from m3agent.sandbox.reaper import start_reaper

LABEL = "m3agent"
USER = "1000:1000"
TAKE_AND_DROP = f"""\
import os
for p in ({ROOT!r}, {TOOLBOX!r}, "/tmp", "/dev/shm"):
    os.chown(p, 1000, 1000)
os.setgroups([])
os.setgid(1000)
os.setuid(1000)
"""
"""What Podman's containers begin with, as root: its file systems can be given to nobody else from outside."""
PAGE = 4096  # bytes that the kernel counts System V's shared memory in
OWNER_LABEL = f"{LABEL}.owner"
"""The label of every container that a process makes; its reaper looks for it."""
PROCESS_LABEL = f"{LABEL}.process"
"""The label that says which process made something, so that it can be told whether it still lives."""

_reaper_lock = threading.Lock()
_reapers: dict[tuple[int, str], Any] = {}
"""By the pid of the process that started it, since a fork has none of its own, and the engine's socket."""


def _tmpfs(size: int, inodes: int, options: str, *, podman: bool) -> str:
    """Mount options of a file system of at most `size` bytes and `inodes` files that belongs to the sandbox's user.

    Podman knows neither owner nor limit of inodes: there many empty files meet the memory limit.
    """
    own = "notmpcopyup" if podman else f"nr_inodes={inodes},uid=1000,gid=1000"
    return f"rw,nosuid,nodev,size={size},{options},{own}"


class DockerMachine:
    """One container that runs the supervisor, attached over its standard streams."""

    name = "docker"

    def __init__(self, image: str | None, limits: Limits, say: Callable[[str], None]) -> None:
        self._wanted = image
        self.limits = limits
        self._say = say
        self._api: Any = None
        self._id: str | None = None
        self._attached: Any = None  # keeps the HTTP answer whose socket we took over alive
        self._process: tuple[int, str | None] | None = None
        self._destroyed = False
        self.image: str | None = None
        self.environment: dict[str, str] = {}

    def job_limits(self) -> dict[str, int]:
        """None: the container's control group holds them."""
        return {}

    async def start(self) -> Channel:
        """Create, attach, start; the supervisor's first word comes over the returned channel."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException

        try:
            raw = await uninterrupted(self._create)
        except APIError as error:
            raise _start_failed(error) from None
        except (DockerException, RequestException) as error:
            raise EngineUnavailable(
                f"the Docker engine went away while starting a sandbox: {error}"
            ) from None
        raw.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=raw, limit=4 << 20)
        channel = Channel(reader, writer, multiplexed=True, why_dead=self._why_dead)
        try:
            await uninterrupted(self._start)
        except APIError as error:
            await channel.close()
            raise _start_failed(error) from None
        except (DockerException, RequestException) as error:
            await channel.close()
            raise EngineUnavailable(
                f"the Docker engine went away while starting a sandbox: {error}"
            ) from None
        return channel

    async def destroy(self) -> None:
        """Remove the container, started or not."""
        if self._id is not None and not self._destroyed:
            self._destroyed = True
            await uninterrupted(self._remove)

    def _create(self) -> Any:
        self._api = connect()
        image = find_image(self._api, self._wanted, self._say)
        self.image = image.name
        self.environment = dict(image.env)
        ensure_reaper(socket_of(self._api))
        limits = self.limits
        podman = is_podman(self._api.version())
        host_config = self._api.create_host_config(
            auto_remove=True,
            network_mode="none",
            cap_drop=["ALL"],
            cap_add=["CHOWN", "SETUID", "SETGID"] if podman else [],
            security_opt=["no-new-privileges"],
            read_only=True,
            pids_limit=limits.pids,
            mem_limit=limits.memory,
            memswap_limit=limits.memory,
            nano_cpus=int(min(limits.cpus, os.cpu_count() or 1) * 1e9),
            ipc_mode="private",
            # else System V segments and messages outlive the commands that made them and fill the memory for good
            sysctls={
                "kernel.shm_rmid_forced": "1",
                "kernel.shmall": str(limits.shared // PAGE),
                "kernel.msgmni": "64",
            },
            log_config={"Type": "none", "Config": {}},
            ulimits=[{"Name": "core", "Soft": 0, "Hard": 0}],
            binds=[f"{folder}:{folder}:ro" for folder in image.binds if Path(folder).exists()],
            tmpfs={
                ROOT: _tmpfs(limits.disk, limits.inodes, "exec,mode=0755", podman=podman),
                "/tmp": _tmpfs(limits.scratch, limits.inodes, "exec,mode=1777", podman=podman),  # noqa: S108
                TOOLBOX: _tmpfs(limits.toolbox, FEW_INODES, "noexec,mode=0755", podman=podman),
                "/dev/shm": _tmpfs(limits.shared, FEW_INODES, "noexec,mode=1777", podman=podman),  # noqa: S108
            },
        )
        container = self._api.create_container(
            image.name,
            command=["python3", "-I", "-S", "-c", TAKE_AND_DROP + BOOT if podman else BOOT, ROOT],
            entrypoint=[],
            user="0:0" if podman else USER,
            working_dir=ROOT,
            environment={"PATH": "/usr/local/bin:/usr/bin:/bin"},
            stdin_open=True,
            labels=our_labels(),
            host_config=host_config,
        )
        self._id = container["Id"]
        params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        self._attached = self._api.attach_socket(self._id, params=params)
        return self._attached._sock

    def _start(self) -> None:
        self._api.start(self._id)
        pid = self._api.inspect_container(self._id)["State"]["Pid"]
        self._process = (pid, _start_time(pid))

    def _remove(self) -> None:
        from docker.errors import DockerException, NotFound
        from requests.exceptions import RequestException

        # first: an engine that still has output for us waits a minute for it to be taken before it removes anything
        if self._attached is not None:
            self._attached.close()
        try:
            self._api.remove_container(self._id, force=True, v=True)
        except NotFound:
            pass  # it removed itself
        except (DockerException, RequestException):
            self._kill_process()
        self._api.close()

    def _kill_process(self) -> None:
        """The engine is gone and has left the container running: end it by its process, where that is allowed."""
        if self._process is None:
            return
        pid, started = self._process
        if started is not None and _start_time(pid) == started:
            with contextlib.suppress(
                OSError
            ):  # not ours to kill: the supervisor ends itself when its lease is over
                os.kill(pid, signal.SIGKILL)

    async def _why_dead(self) -> SandboxError:
        """Why the stream ended, as far as the engine can still say."""
        return await asyncio.to_thread(why_ended, self._api, str(self._id), self.limits.memory)


@cache
def _owner(pid: int) -> str:
    """The value of `OWNER_LABEL` for this process. By pid: a fork of this process is another owner."""
    return f"{pid}-{uuid.uuid4().hex[:12]}"


def our_labels() -> dict[str, str]:
    """The labels of whatever this process makes in the engine."""
    return {LABEL: "1", OWNER_LABEL: _owner(os.getpid()), PROCESS_LABEL: describe_process(os.getpid()) or ""}


def describe_process(pid: int) -> str | None:
    """A process of this machine, since its start and of no other boot or process namespace; None if there is none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return None
    started = _start_time(pid)
    return f"{boot} {namespace} {pid} {started}" if started is not None else None


def _start_time(pid: int) -> str | None:
    """When a process of this machine began, in clock ticks since boot; None where there is none to be seen."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _start_failed(error: Any) -> Exception:
    text = str(error.explanation or error)
    if "executable file not found" in text or "python3" in text:
        return ImageMissing(
            "the image has no python3, which every sandbox needs: add it, or name another with --image"
        )
    return EngineUnavailable(f"the Docker engine refused to start a sandbox: {text.strip()}")


def ensure_reaper(path: str | None) -> None:
    """One reaper for this process, where the engine is on this machine and has a socket at `path`."""
    if path is None:
        return  # an engine elsewhere: the end of the stream is all that tells it
    with _reaper_lock:
        pid = os.getpid()
        if (pid, path) not in _reapers:
            _reapers[pid, path] = start_reaper(path, f"{OWNER_LABEL}={_owner(pid)}")
