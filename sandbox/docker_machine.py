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
from pathlib import Path
from typing import Any, TypeVar

from m3agent.sandbox.base import ROOT, TOOLBOX, Limits
from m3agent.sandbox.channel import BOOT, Channel
from m3agent.sandbox.errors import EngineUnavailable, ImageMissing
from m3agent.sandbox.image import find_image
from m3agent.sandbox.reaper import start_reaper

T = TypeVar("T")

LABEL = "m3agent"
USER = "1000:1000"
OWNER = f"{LABEL}.owner={os.getpid()}-{uuid.uuid4().hex[:12]}"
"""The label of every container this process makes; what the reaper looks for."""

_reaper_lock = threading.Lock()
_reapers: dict[str, Any] = {}


def connect() -> Any:
    """A `docker.APIClient` to the engine named by DOCKER_HOST, or the local one.

    Raises:
        EngineUnavailable: none answers; the sentence says why and what to do.
    """
    import docker
    from docker.errors import DockerException
    from docker.tls import TLSConfig
    from docker.utils import kwargs_from_env

    try:
        kwargs = kwargs_from_env()
        tls = kwargs.get("tls")
        assert tls is None or isinstance(tls, (bool, TLSConfig))
        api = docker.APIClient(base_url=kwargs.get("base_url"), tls=tls or False, version="auto", timeout=60)
    except DockerException as error:
        text = str(error)
        host = os.environ.get("DOCKER_HOST", "the local socket")
        if "Permission denied" in text or "PermissionError" in text:
            raise EngineUnavailable(
                f"no permission for the Docker engine at {host}: add yourself to the group docker, or use --sandbox bwrap"
            ) from None
        raise EngineUnavailable(
            f"no Docker engine answers at {host}: start it (`make demo` installs one), or use --sandbox bwrap"
        ) from None
    return api


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
        self.image: str | None = None

    def job_limits(self) -> dict[str, int]:
        """None: the container's control group holds them."""
        return {}

    async def start(self) -> Channel:
        """Create, attach, start; the supervisor's first word comes over the returned channel."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException

        try:
            raw = await _uninterrupted(self._create)
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
            await _uninterrupted(self._start)
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
        if self._id is not None:
            await _uninterrupted(self._remove)

    def _create(self) -> Any:
        self._api = connect()
        image = find_image(self._api, self._wanted, self._say)
        self.image = image.name
        _ensure_reaper()
        limits = self.limits
        owner = "uid=1000,gid=1000"
        label, _, value = OWNER.partition("=")
        host_config = self._api.create_host_config(
            auto_remove=True,
            network_mode="none",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            read_only=True,
            pids_limit=limits.pids,
            mem_limit=limits.memory,
            memswap_limit=limits.memory,
            nano_cpus=int(min(limits.cpus, os.cpu_count() or 1) * 1e9),
            shm_size=min(64 << 20, limits.memory // 64),
            ipc_mode="private",
            log_config={"Type": "none", "Config": {}},
            ulimits=[{"Name": "core", "Soft": 0, "Hard": 0}],
            binds=[f"{folder}:{folder}:ro" for folder in image.binds if Path(folder).exists()],
            tmpfs={
                ROOT: f"rw,exec,nosuid,nodev,size={limits.disk},nr_inodes={limits.inodes},mode=0755,{owner}",
                "/tmp": f"rw,exec,nosuid,nodev,size={limits.scratch},nr_inodes={limits.inodes},mode=1777,{owner}",  # noqa: S108
                TOOLBOX: f"rw,nosuid,nodev,size=32m,nr_inodes=4096,mode=0755,{owner}",
            },
        )
        container = self._api.create_container(
            image.name,
            command=["python3", "-I", "-S", "-c", BOOT, ROOT],
            entrypoint=[],
            user=USER,
            working_dir=ROOT,
            environment={"PATH": "/usr/local/bin:/usr/bin:/bin"},
            stdin_open=True,
            labels={LABEL: "1", label: value},
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

        try:
            self._api.remove_container(self._id, force=True, v=True)
        except NotFound:
            pass  # it removed itself
        except (DockerException, RequestException):
            self._kill_process()
        if self._attached is not None:
            self._attached.close()
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

    def _why_dead(self) -> str:
        """Why the stream ended, as far as the engine can still say."""
        return "the sandbox's container ended (removed by someone, or the Docker engine stopped)"


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


def _ensure_reaper() -> None:
    """One reaper for this process, where the engine is on this machine."""
    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if not host.startswith("unix://"):
        return  # an engine elsewhere: the end of the stream is all that tells it
    path = host.removeprefix("unix://")
    with _reaper_lock:
        if path not in _reapers:
            _reapers[path] = start_reaper(path, OWNER)


async def _uninterrupted(work: Callable[[], T]) -> T:
    """Run blocking work in a thread to its end, even if we are cancelled meanwhile: half-made things are lost things."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise
