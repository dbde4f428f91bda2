"""Run a sandbox in a Docker (or Podman) container.

The container has no network, no capabilities, no new privileges, a read-only root, tmpfs with limits on size
and inodes, memory without swap, a limit on processes, and no log on the host. By measurement, it takes 1.2
times as long to start as a plain container.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.engine import connect, is_podman, socket_of
from m3agent.sandbox.backends.image import find_image, installed_on_host
from m3agent.sandbox.backends.reaper import start_reaper
from m3agent.sandbox.backends.sandbox import FEW_INODES, ROOT, TEMPORARY, TOOLBOX, Folders, SandboxLimits
from m3agent.sandbox.errors import EngineUnavailable, ImageMissing, OutOfMemory, SandboxDied, SandboxError
from m3agent.sandbox.protocol.channel import BOOT, ON_CPYTHON, Channel
from m3agent.util.threads import uninterrupted

LABEL = "m3agent"
USER = "1000:1000"
TAKE_AND_DROP = f"""\
import os
for p in ({ROOT!r}, {TOOLBOX!r}, {TEMPORARY!r}, "/dev/shm"):
    os.chown(p, 1000, 1000)
os.setgroups([])
os.setgid(1000)
os.setuid(1000)
"""
"""The first code in a Podman container. It runs as root, because Podman cannot mount a tmpfs that another
user owns; it changes the owner and then drops root.
"""
PAGE = 4096  # bytes; the kernel's limit on System V shared memory counts in pages
OWNER_LABEL = f"{LABEL}.owner"
"""The label on every container of a process. The process's reaper searches for it."""
PROCESS_LABEL = f"{LABEL}.process"
"""The label that identifies the process that made an object, so that others can check whether the process
still runs.
"""
PATIENCE = 3.0  # seconds until the engine must have noticed the end
OOM_WINDOW = 3.0  # an out-of-memory kill within these seconds before the end counts as its cause
SIGKILLED = 137  # exit status of a container if its first process was killed

_reaper_lock = threading.Lock()
_reapers: dict[tuple[int, str], Any] = {}
"""The reapers, by the socket of the engine and the pid of the process that started them. A fork has no reaper
of its own, so the pid is part of the key.
"""


def _tmpfs(size: int, inodes: int, options: str, *, podman: bool) -> str:
    """Return the mount options of a file system that belongs to the sandbox's user.

    Podman supports neither an owner nor a limit on inodes. There, the memory limit also stops a flood of
    empty files.
    """
    own = "notmpcopyup" if podman else f"nr_inodes={inodes},uid=1000,gid=1000"
    return f"rw,nosuid,nodev,size={size},{options},{own}"


class DockerMachine:
    """One container that runs the supervisor; its standard streams are the channel to it."""

    name = "docker"
    isolated = True

    def __init__(
        self,
        image: str | None,
        limits: SandboxLimits,
        say: Callable[[str], None],
        choose: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """Prepare a container from an image, or from the image that `choose` returns at the start."""
        self._wanted = image
        self._choose = choose
        self.limits = limits
        self._say = say
        self._api: Any = None
        self._id: str | None = None
        self._attached: Any = None  # keeps alive the HTTP response that owns our socket
        self._process: tuple[int, str | None] | None = None
        self._destroyed = False
        self.image: str | None = None
        self.environment: dict[str, str] = {}
        self.folders = Folders()
        self.image_id = ""

    @property
    def container(self) -> str:
        """The engine's id of the container."""
        if self._id is None:
            raise SandboxError("the container has not been started")
        return self._id

    def job_limits(self) -> dict[str, int]:
        """Return no limits for a job: the container's control group enforces them."""
        return {}

    async def start(self) -> Channel:
        """Create the container, attach to it and start it. Return the channel to its supervisor.

        Raises:
            EngineUnavailable: The engine stopped answering or refused the start.
            ImageMissing: The image does not exist or has no python3.
        """
        if self._choose is not None:
            self._wanted = await self._choose()
        with _start_failures():
            raw = await uninterrupted(self._create)
        raw.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=raw, limit=4 << 20)
        channel = Channel(reader, writer, multiplexed=True, why_dead=self._why_dead)
        try:
            with _start_failures():
                await uninterrupted(self._start)
        except SandboxError:
            await channel.close()
            raise
        return channel

    async def destroy(self) -> None:
        """Remove the container, whether or not it was started."""
        if self._id is not None and not self._destroyed:
            self._destroyed = True
            await uninterrupted(self._remove)

    def _create(self) -> Any:
        self._api = connect()
        image = find_image(self._api, self._wanted, self._say)
        self.image = image.name
        self.environment = dict(image.env)
        self.image_id = f"{image.ident} {installed_on_host()}" if image.binds else image.ident
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
            # otherwise System V segments and messages outlive their commands and keep the memory full
            sysctls={
                "kernel.shm_rmid_forced": "1",
                "kernel.shmall": str(limits.shared // PAGE),
                "kernel.msgmni": "64",
            },
            log_config={"Type": "none", "Config": {}},
            ulimits=[{"Name": "core", "Soft": 0, "Hard": 0}],
            binds=image.mounts,
            tmpfs={
                ROOT: _tmpfs(limits.disk, limits.inodes, "exec,mode=0755", podman=podman),
                TEMPORARY: _tmpfs(limits.scratch, limits.inodes, "exec,mode=1777", podman=podman),
                TOOLBOX: _tmpfs(limits.toolbox, FEW_INODES, "exec,mode=0755", podman=podman),
                "/dev/shm": _tmpfs(limits.shared, FEW_INODES, "noexec,mode=1777", podman=podman),  # noqa: S108
            },
        )
        container = self._api.create_container(
            image.name,
            command=[
                "python3",
                "-I",
                "-S",
                "-c",
                ON_CPYTHON + TAKE_AND_DROP + BOOT if podman else BOOT,
                ROOT,
            ],
            entrypoint=[],
            user="0:0" if podman else USER,
            working_dir=ROOT,
            # the locale, because Python before 3.7 would take paths for ASCII without it
            environment={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
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

        # first: the engine waits a minute for a reader of unread output before it removes the container
        if self._attached is not None:
            self._attached.close()
        try:
            self._api.remove_container(self._id, force=True, v=True)
        except NotFound:
            pass  # the engine already removed it
        except (DockerException, RequestException):
            self._kill_process()
        self._api.close()

    def _kill_process(self) -> None:
        """Kill the container's process, if allowed, when the engine cannot remove the container."""
        if self._process is None:
            return
        pid, started = self._process
        if started is not None and _start_time(pid) == started:
            # OSError: no permission; the supervisor ends itself when its lease is over
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    async def _why_dead(self) -> SandboxError:
        """Return why the stream ended, as far as the engine still knows."""
        return await asyncio.to_thread(why_ended, self._api, str(self._id), self.limits.memory)


@cache
def _owner(pid: int) -> str:
    """Return the value of `OWNER_LABEL` for this process. A fork has another pid and is another owner."""
    return f"{pid}-{uuid.uuid4().hex[:12]}"


def our_labels() -> dict[str, str]:
    """Return the labels for every object that this process makes in the engine."""
    return {LABEL: "1", OWNER_LABEL: _owner(os.getpid()), PROCESS_LABEL: describe_process(os.getpid()) or ""}


def describe_process(pid: int) -> str | None:
    """Return a text that identifies a process; None if the process cannot be found.

    The text holds boot id, namespaces, pid and start time, so a later process with the same pid differs. Beside the
    namespace of process ids stands that of clocks, because the kernel shifts start times by its offset.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
        pids = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return None
    clocks = ""
    with contextlib.suppress(OSError):  # before Linux 5.6 there are no time namespaces
        clocks = f",{Path('/proc/self/ns/time').readlink()}"
    started = _start_time(pid)
    return f"{boot} {pids}{clocks} {pid} {started}" if started is not None else None


def _start_time(pid: int) -> str | None:
    """Return when a process of this machine began, in clock ticks since boot; None if it cannot be found."""
    try:
        return Path("/proc", str(pid), "stat").read_text("utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


@contextlib.contextmanager
def _start_failures() -> Iterator[None]:
    """Convert the engine's errors at a sandbox's start."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except APIError as error:
        text = str(error.explanation or error)
        if "executable file not found" in text or "python3" in text:
            raise ImageMissing(
                "the image has no python3, which every sandbox needs: add it, or name another image with --image"
            ) from None
        raise EngineUnavailable(f"the Docker engine refused to start a sandbox: {text.strip()}") from None
    except (DockerException, RequestException) as error:
        raise EngineUnavailable(f"the Docker engine stopped while starting a sandbox: {error}") from None


def ensure_reaper(path: str | None) -> None:
    """Start one reaper for this process, if the engine is on this machine and has a socket at `path`."""
    if path is None:
        return  # a remote engine: only the end of the stream tells it that we are gone
    with _reaper_lock:
        pid = os.getpid()
        if (pid, path) not in _reapers:
            _reapers[pid, path] = start_reaper(path, f"{OWNER_LABEL}={_owner(pid)}")


def why_ended(api: Any, container: str, memory: int) -> SandboxError:
    """Return an error that says why the container ended, from the engine's events.

    A container removes itself when it ends, so its state is not available afterwards. The engine's recent events
    are: Docker keeps the last 256.

    Returns:
        OutOfMemory; EngineUnavailable if the engine itself no longer answers; otherwise SandboxDied.
    """
    from docker.errors import DockerException
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        events = _events(api, container)
    except (DockerException, RequestException, HTTPError, OSError):
        return EngineUnavailable(
            "the Docker engine stopped, and the sandbox with it: start the engine and try again"
        )
    return explain(events, memory)


def explain(events: list[dict[str, Any]], memory: int) -> SandboxError:
    """Derive the error from the container's events, in order and in the format of Docker's `/events`."""
    ooms: list[float] = []
    removed = False
    for event in events:
        what, when = event.get("Action") or event.get("status"), event.get("timeNano", 0) / 1e9
        if what == "oom":
            ooms.append(when)
        elif what in {"kill", "remove"}:
            removed = True
        elif what in {"die", "died"}:
            code = int(event.get("Actor", {}).get("Attributes", {}).get("exitCode", -1))
            if removed:
                break
            if code == SIGKILLED and any(when - each < OOM_WINDOW for each in ooms):
                return OutOfMemory(
                    f"the sandbox used more than its {memory / (1 << 30):.3g} GiB of memory and was "
                    "killed: raise the limit with M3AGENT_MEMORY"
                )
            return SandboxDied(f"the sandbox's first process ended (status {code})")
    if removed:
        return SandboxDied("someone stopped or removed the sandbox's container")
    return SandboxDied("the sandbox's container ended (removed by someone, or the Docker engine stopped)")


def _events(api: Any, container: str) -> list[dict[str, Any]]:
    """Return the container's events up to its end, or all events within a few seconds."""
    wanted = ["oom", "kill", "die", "died"]
    found = []
    # one second after the epoch: all events that the engine remembers, whatever its clock shows
    until = int(time.time() + PATIENCE)
    stream = api.events(
        since=1, until=until, filters={"container": [container], "event": wanted}, decode=True
    )
    try:
        for event in stream:
            found.append(event)
            if event.get("Action", event.get("status")) in {"die", "died"}:
                break
    finally:
        stream.close()
    return found
