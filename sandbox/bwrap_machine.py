"""Bubblewrap as a sandbox's machine: for hosts without a container engine. The same supervisor is process 1.

As root it first drops to an unprivileged user (as host root the supervisor's descriptors would be readable). There
is no control group: memory, processes and file size are limited per process. It fails closed where the kernel bars
user namespaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from pathlib import Path

from m3agent.sandbox.base import ROOT, TOOLBOX, Limits
from m3agent.sandbox.channel import BOOT, Channel
from m3agent.sandbox.errors import EngineUnavailable
from m3agent.sandbox.image import HOST_FOLDERS, host_python_usable, usr_links

NOBODY = 65534
SYSCTLS = {
    "kernel.unprivileged_userns_clone": "0",
    "kernel.apparmor_restrict_unprivileged_userns": "1",
    "user.max_user_namespaces": "0",
}
"""Kernel settings, each with the value that bars unprivileged user namespaces."""


def barred_by() -> str | None:
    """The kernel setting that keeps bubblewrap from working here, as `name=value`, if there is one."""
    for name, bad in SYSCTLS.items():
        try:
            value = Path("/proc/sys", name.replace(".", "/")).read_text().strip()
        except OSError:
            continue
        if value == bad:
            return f"{name}={value}"
    return None


def command(limits: Limits) -> list[str]:
    """The bubblewrap command line that starts the supervisor.

    Raises:
        EngineUnavailable: something it needs is not on this host.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise EngineUnavailable(
            "bubblewrap is not installed: apt-get install bubblewrap, or start a Docker engine"
        )
    if not host_python_usable():
        raise EngineUnavailable(
            "bubblewrap lends this host's /usr to the sandbox, and /usr/bin/python3 is not there"
        )
    prefix: list[str] = []
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise EngineUnavailable(
                "bubblewrap is not safe as root, and setpriv to drop root is not installed"
            )
        prefix = [setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    mounts: list[str] = []
    for folder in HOST_FOLDERS:
        if Path(folder).exists():
            mounts += ["--ro-bind", folder, folder]
    for name, target in usr_links():
        mounts += ["--symlink", target, f"/{name}"]
    return [
        *prefix,
        bwrap,
        *(
            "--unshare-all",
            "--unshare-user",
            "--disable-userns",
            "--as-pid-1",
            "--die-with-parent",
            "--new-session",
        ),
        *("--cap-drop", "ALL", "--clearenv", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
        *mounts,
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", str(limits.scratch), "--tmpfs", "/tmp"),  # noqa: S108 - inside the sandbox
        *("--size", str(limits.disk), "--tmpfs", ROOT),
        *("--size", str(32 << 20), "--tmpfs", TOOLBOX),
        *("--remount-ro", "/"),
        *("--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--chdir", ROOT),
        *("--", "/usr/bin/python3", "-I", "-S", "-c", BOOT, ROOT),
    ]


class BwrapMachine:
    """One bubblewrap process that runs the supervisor, spoken to over pipes."""

    name = "bwrap"

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._process: asyncio.subprocess.Process | None = None
        self._stderr = bytearray()

    def job_limits(self) -> dict[str, int]:
        """Per-process limits in place of a control group: address space, processes, file size."""
        return {"AS": self.limits.memory, "NPROC": self.limits.pids, "FSIZE": self.limits.disk}

    async def start(self) -> Channel:
        """Start bubblewrap; the supervisor's first word comes over the returned channel."""
        argv = command(self.limits)
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=4 << 20,
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )
        except OSError as error:
            raise EngineUnavailable(f"cannot start bubblewrap: {error.strerror}") from None
        self._process = process
        assert process.stdin and process.stdout and process.stderr
        self._drain = asyncio.create_task(self._keep_stderr(process.stderr))
        return Channel(process.stdout, process.stdin, multiplexed=False, why_dead=self._why_dead)

    async def destroy(self) -> None:
        """Kill bubblewrap: its process namespace dies with it."""
        if self._process is None:
            return
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        await asyncio.gather(self._drain, return_exceptions=True)

    async def _keep_stderr(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(4096):
            self._stderr = (self._stderr + data)[-4096:]

    def _why_dead(self) -> str:
        said = bytes(self._stderr).decode(errors="replace").strip().splitlines()
        text = f"bubblewrap ended: {said[-1]}" if said else "the sandbox's process was killed"
        setting = barred_by()
        if setting and said:
            value = setting.partition("=")[2]
            text += f"; this kernel bars user namespaces ({setting}): set it to {1 - int(value)}, or use --sandbox docker"
        return text
