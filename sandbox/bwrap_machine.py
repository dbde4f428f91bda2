"""Bubblewrap as a sandbox's machine: for hosts without a container engine. The same supervisor is process 1.

As root it first drops to an unprivileged user (as host root the supervisor's descriptors would be readable). There
is no control group: memory, processes and file size are limited per process. It fails closed where the kernel bars
user namespaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from m3agent.sandbox.base import ROOT, TOOLBOX, Limits
from m3agent.sandbox.channel import BOOT, Channel
from m3agent.sandbox.errors import EngineUnavailable, SandboxDied, SandboxError
from m3agent.sandbox.image import ETC, HOST_FOLDERS, host_python_usable, usr_links
from m3agent.sandbox.start_process import start_process

FIRST_USER = 0x70000000
"""Users that no Linux system gives to anyone begin here (systemd's "Users, Groups, UIDs and GIDs"): as root, each
sandbox runs as one of its own, so that neither its processes nor their count are another's."""
OWN_COUNT = (5, 14)  # the first Linux to count a user's processes for each user namespace apart
SYSCTLS = {
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": (
        "1",
        "0, or give bwrap an AppArmor profile with `userns,`",
    ),
    "user.max_user_namespaces": ("0", "10000"),
}
"""Kernel settings, each with the value that bars unprivileged user namespaces and what to set it to."""

_started = itertools.count()


def barred_by() -> str | None:
    """The kernel setting that keeps bubblewrap from working here, as `name=value`, if there is one."""
    for name, (bad, _) in SYSCTLS.items():
        try:
            value = Path("/proc/sys", name.replace(".", "/")).read_text().strip()
        except OSError:
            continue
        if value == bad and not _works():  # a profile may allow it all the same
            return f"{name}={value}"
    return None


def _works() -> bool:
    """Whether bubblewrap can make a user namespace."""
    try:
        argv = [*_as_nobody(), "bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"]
        return subprocess.run(argv, check=False, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired, EngineUnavailable):
        return False


def _as_nobody() -> list[str]:
    """What to put before a command to run it without root's rights; nothing where we have none."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise EngineUnavailable("bubblewrap is not safe as root, and setpriv to drop root is not installed")
    user = FIRST_USER + (os.getpid() % (1 << 22)) * 64 + next(_started) % 64
    return [setpriv, f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]


def _others() -> int:
    """Processes and threads that count against a sandbox's limit besides its own.

    None as root (see `FIRST_USER`) or where each user namespace counts its own; else all that this user has.
    """
    release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    if os.geteuid() == 0 or release >= OWN_COUNT:
        return 0
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if process.stat().st_uid == os.getuid():
                count += len(list(process.joinpath("task").iterdir()))
    return count


def _etc() -> dict[str, int]:
    """A descriptor for each file of the sandbox's /etc; to be closed once bubblewrap has them."""
    found = {}
    for name, text in ETC.items():
        found[name] = os.memfd_create(name)
        os.write(found[name], text.encode())
        os.lseek(found[name], 0, os.SEEK_SET)
    return found


def command(limits: Limits, etc: Mapping[str, int] | None = None) -> list[str]:
    """The bubblewrap command line that starts the supervisor; `etc` gives descriptors of files for /etc by name.

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
    mounts: list[str] = []
    for folder in HOST_FOLDERS:
        if Path(folder).exists():
            mounts += ["--ro-bind", folder, folder]
    for name, target in usr_links():
        mounts += ["--symlink", target, f"/{name}"]
    for name, fd in (etc or {}).items():
        mounts += ["--ro-bind-data", str(fd), f"/etc/{name}"]
    return [
        *_as_nobody(),
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
        *("--size", str(limits.shared), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108
        *("--size", str(limits.scratch), "--tmpfs", "/tmp"),  # noqa: S108 - inside the sandbox
        *("--size", str(limits.disk), "--tmpfs", ROOT),
        *("--size", str(limits.toolbox), "--tmpfs", TOOLBOX),
        *("--remount-ro", "/"),
        *("--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--chdir", ROOT),
        *("--", "/usr/bin/python3", "-I", "-S", "-c", BOOT, ROOT),
    ]


class BwrapMachine:
    """One bubblewrap process that runs the supervisor, spoken to over pipes."""

    name = "bwrap"

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.environment: dict[str, str] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._stderr = bytearray()
        self._pids = limits.pids + _others()

    def job_limits(self) -> dict[str, int]:
        """Per-process limits in place of a control group: address space, processes, file size."""
        return {"AS": self.limits.memory, "NPROC": self._pids, "FSIZE": self.limits.disk}

    async def start(self) -> Channel:
        """Start bubblewrap; the supervisor's first word comes over the returned channel."""
        etc = _etc()
        try:
            argv = command(self.limits, etc)
            process = await start_process(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=4 << 20,
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                pass_fds=tuple(etc.values()),
                start_new_session=True,
            )
        except OSError as error:
            raise EngineUnavailable(f"cannot start bubblewrap: {error.strerror}") from None
        finally:
            for fd in etc.values():
                os.close(fd)
        self._process = process
        assert process.stdin and process.stdout and process.stderr
        self._drain = asyncio.create_task(self._keep_stderr(process.stderr))
        return Channel(process.stdout, process.stdin, multiplexed=False, why_dead=self._why_dead)

    async def destroy(self) -> None:
        """Kill bubblewrap and what it has started; its process namespace dies with it."""
        if self._process is None:
            return
        # Neither `send_signal` nor closing the whole transport: both ask for the process's status behind the back of
        # asyncio's watcher, which then says so on standard error.
        self._kill(self._process.pid)
        # A pipe that is still open keeps `wait` from returning, though the process has ended.
        for number in (1, 2):
            pipe = self._process._transport.get_pipe_transport(number)  # type: ignore[attr-defined]
            if pipe is not None:
                pipe.close()
        await self._process.wait()
        await asyncio.gather(self._drain, return_exceptions=True)

    def _kill(self, pid: int) -> None:
        """Send SIGKILL to bubblewrap's process group, unless bubblewrap has ended.

        Bubblewrap alone is not enough. Until its child has asked to die with it, the child would live on and wait for it
        for ever. Later, the child leaves the group, but then it ends with bubblewrap or with its standard input.
        """
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            try:
                os.close(os.pidfd_open(pid))  # the number is still that of a process
            except OSError as error:
                if error.errno != errno.ENOSYS:  # before Linux 5.3
                    return
            if self._process.returncode is None:
                os.killpg(pid, signal.SIGKILL)

    async def _keep_stderr(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(4096):
            self._stderr = (self._stderr + data)[-4096:]

    async def _why_dead(self) -> SandboxError:
        said = bytes(self._stderr).decode(errors="replace").strip().splitlines()
        own = [line for line in said if line.startswith("bwrap: ")]
        if not own:
            return SandboxDied(
                f"bubblewrap ended: {said[-1]}" if said else "the sandbox's process was killed"
            )
        text = f"bubblewrap ended: {own[-1]}"
        if setting := barred_by():
            remedy = SYSCTLS[setting.partition("=")[0]][1]
            text += (
                f"; this kernel bars user namespaces ({setting}): set it to {remedy}, or use --sandbox docker"
            )
        elif "nknown option" in own[-1]:
            text += ": bubblewrap 0.8 or later is needed"
        return EngineUnavailable(text)
