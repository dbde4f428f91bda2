"""A Docker engine for one test, which the test may kill, and a check of what tests leave on an engine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import docker
from docker.errors import DockerException, NotFound

from m3agent.sandbox.backends.docker_machine import LABEL, our_labels

PATIENCE = 30.0  # seconds for an engine to start answering, or to remove a container


def wait_until_removed(api: Any) -> None:
    """Wait until this process has no container. The engine removes a sandbox's container a moment after its end.

    Args:
        api: A client of the engine.

    Raises:
        requests.exceptions.RequestException: A container is still there after 30 seconds.
    """
    mine = [f"{key}={value}" for key, value in our_labels().items() if key != LABEL]
    for container in api.containers(all=True, filters={"label": mine}):
        with contextlib.suppress(NotFound):
            api.wait(container["Id"], timeout=PATIENCE, condition="removed")


class OwnEngine:
    """A dockerd with its own folders, socket and network, which runs while the context is entered."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="m3d", dir="/tmp"))  # a socket's path has to be short
        self.address = f"unix://{self.folder}/s"
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def barred_by() -> str | None:
        """Return why no engine can be started here, or None if one can."""
        able = shutil.which("dockerd") and os.geteuid() == 0 and Path("/proc/mounts").exists()
        return None if able else "needs root, /proc and a dockerd to start"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        own = {pid for pid, line in command_lines().items() if str(self.folder).encode() in line}
        # a container whose start the kill interrupted waits for ever
        own |= {pid for pid, parent in parents().items() if parent in own}
        for pid in own:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        for line in Path("/proc/mounts").read_text().splitlines():
            if line.split()[1].startswith(str(self.folder)):
                subprocess.run(["umount", "-l", line.split()[1]], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start the engine, also again after a kill, and return once it answers."""
        at = self.folder
        options = ["--bridge", "none", "--iptables=false", "--ip6tables=false", "--host", self.address]
        folders = ["--data-root", f"{at}/data", "--exec-root", f"{at}/exec", "--pidfile", f"{at}/pid"]
        with (at / "log").open("ab") as log:
            # in its own network namespace: an engine without a bridge removes the bridge of this machine's engine
            self._process = subprocess.Popen(
                ["unshare", "--net", "dockerd", *options, *folders],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the engine did not start: {(at / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End the engine as `kill -9` does. The processes that it started continue."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            with contextlib.closing(docker.APIClient(base_url=self.address, timeout=5)) as api:
                return bool(api.ping())
        except DockerException:
            return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def command_lines() -> dict[str, bytes]:
    """Return the command lines of all processes, by process id; empty for one that has ended."""
    return {path.parent.name: _read(path) for path in Path("/proc").glob("[0-9]*/cmdline")}


def parents() -> dict[str, str]:
    """Return the parents of all processes that have not ended, by process id."""
    stats = [_read(path) for path in Path("/proc").glob("[0-9]*/stat")]
    parts = [(stat.partition(b" ")[0].decode(), stat.rpartition(b")")[2].split()) for stat in stats]
    return {pid: state[1].decode() for pid, state in parts if state and state[0] != b"Z"}
