"""Run a sandbox with bubblewrap, for hosts without a container engine. The supervisor is process 1 here too.

As root, bubblewrap first drops to an unprivileged user; for the host's root, the supervisor's descriptors
would be readable. There is no control group: memory, processes and file size are limited per process. If the
kernel forbids user namespaces, the start fails.
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
import sys
from collections.abc import Mapping
from pathlib import Path

from m3agent.sandbox.backends.image import ETC, host_folders, host_python_usable, installed_on_host, usr_links
from m3agent.sandbox.backends.process_machine import ProcessMachine, processes_of_user
from m3agent.sandbox.backends.sandbox import ROOT, TEMPORARY, TOOLBOX, SandboxLimits
from m3agent.sandbox.errors import EngineUnavailable, SandboxDied, SandboxError
from m3agent.sandbox.protocol.channel import BOOT, Channel
from m3agent.util.start_process import wait_killed

FIRST_USER = 0x70000000
"""First of the user ids that no Linux system assigns (systemd's "Users, Groups, UIDs and GIDs").

As root, each sandbox runs as a user of its own. Its processes and their number are then separate from other
sandboxes.
"""
OWN_COUNT = (5, 14)  # first Linux version that counts a user's processes per user namespace
SYSCTLS = {
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": (
        "1",
        "0, or give bwrap an AppArmor profile with `userns,`",
    ),
    "user.max_user_namespaces": ("0", "10000"),
}
"""Kernel settings: the value that forbids unprivileged user namespaces, and the value to set instead."""

_started = itertools.count()


def barred_by() -> str | None:
    """Return the kernel setting that prevents bubblewrap, as `name=value`, or None."""
    for name, (bad, _) in SYSCTLS.items():
        try:
            value = Path("/proc/sys", name.replace(".", "/")).read_text("utf-8").strip()
        except OSError:
            continue
        if value == bad and not _works():  # an AppArmor profile may allow it in spite of the setting
            return f"{name}={value}"
    return None


def _works() -> bool:
    """Return whether bubblewrap can create a user namespace."""
    try:
        argv = [*_as_nobody(), "bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"]
        return subprocess.run(argv, check=False, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired, EngineUnavailable):
        return False


def _as_nobody() -> list[str]:
    """Return the command prefix that drops root's rights; empty if this process does not have them."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise EngineUnavailable("bubblewrap is not safe as root, and setpriv to drop root is not installed")
    user = FIRST_USER + (os.getpid() % (1 << 22)) * 64 + next(_started) % 64
    return [setpriv, f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]


def _others() -> int:
    """Return the number of processes and threads outside the sandbox that count against its limit.

    The number is 0 as root (see `FIRST_USER`), or if the kernel counts per user namespace. Otherwise all
    processes of this user count.
    """
    release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    return 0 if os.geteuid() == 0 or release >= OWN_COUNT else processes_of_user()


def _etc() -> dict[str, int]:
    """Return a descriptor for each file of the sandbox's /etc; the caller closes them after the start."""
    found = {}
    for name, text in ETC.items():
        found[name] = os.memfd_create(name)
        os.write(found[name], text.encode())
        os.lseek(found[name], 0, os.SEEK_SET)
    return found


def command(limits: SandboxLimits, etc: Mapping[str, int] | None = None) -> list[str]:
    """Return the bubblewrap command line that starts the supervisor.

    Args:
        etc: File name in /etc to a descriptor with its content.

    Raises:
        EngineUnavailable: Bubblewrap, setpriv (as root) or /usr/bin/python3 is missing on this host, or it is no Linux.
    """
    if sys.platform != "linux":
        raise EngineUnavailable("bubblewrap needs Linux: use --sandbox docker")
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise EngineUnavailable(
            "bubblewrap is not installed: apt-get install bubblewrap, or start a Docker engine"
        )
    if not host_python_usable():
        raise EngineUnavailable(
            "bubblewrap uses this host's /usr in the sandbox, and /usr/bin/python3 does not exist"
        )
    mounts: list[str] = []
    for folder in host_folders():
        if Path(folder).exists():
            mounts += ["--ro-bind", folder, folder]
    for name, target in usr_links():
        mounts += ["--symlink", target, f"/{name}"]
    for name, fd in (etc or {}).items():
        mounts += ["--ro-bind-data", str(fd), f"/etc/{name}"]
    return [
        *_as_nobody(),
        bwrap,
        *("--unshare-all", "--unshare-user", "--disable-userns", "--as-pid-1"),
        *("--die-with-parent", "--new-session"),
        *("--cap-drop", "ALL", "--clearenv", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
        *mounts,
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", str(limits.shared), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108
        *("--size", str(limits.scratch), "--tmpfs", TEMPORARY),
        *("--size", str(limits.disk), "--tmpfs", ROOT),
        *("--size", str(limits.toolbox), "--tmpfs", TOOLBOX),
        *("--remount-ro", "/"),
        *("--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--chdir", ROOT),
        *("--", "/usr/bin/python3", "-I", "-S", "-c", BOOT, ROOT),
    ]


class BwrapMachine(ProcessMachine):
    """One bubblewrap process that runs the supervisor and communicates over pipes."""

    name = "bwrap"
    isolated = True

    def __init__(self, limits: SandboxLimits) -> None:
        super().__init__(limits, installed_on_host())
        self._pids = limits.pids + _others()

    def job_limits(self) -> dict[str, int]:
        """Return per-process limits in place of a control group: address space, processes, file size."""
        return {"AS": self.limits.memory, "NPROC": self._pids, "FSIZE": self.limits.disk}

    async def start(self) -> Channel:
        """Start bubblewrap; the supervisor's first frame arrives on the returned channel."""
        etc = _etc()
        try:
            env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
            return await self._start(*command(self.limits, etc), env=env, pass_fds=tuple(etc.values()))
        except OSError as error:
            raise EngineUnavailable(f"cannot start bubblewrap: {error.strerror}") from None
        finally:
            for fd in etc.values():
                os.close(fd)

    async def destroy(self) -> None:
        """Kill bubblewrap and the processes that it started; its process namespace ends with it."""
        if self._process is None:
            return
        # Do not use `send_signal`, and do not close the whole transport. Both reap the process behind the
        # back of asyncio's watcher, which then complains on standard error.
        self._kill(self._process)
        await wait_killed(self._process)
        await asyncio.gather(self._drain, return_exceptions=True)

    def _kill(self, process: asyncio.subprocess.Process) -> None:
        """Send SIGKILL to bubblewrap's process group, unless bubblewrap has ended.

        Killing only bubblewrap is not enough: at first, its child has not yet requested to die with it. The
        child would survive and wait forever. Later, the child leaves the group, but from then on it ends with
        bubblewrap or with its standard input.
        """
        with contextlib.suppress(ProcessLookupError):
            try:
                os.close(os.pidfd_open(process.pid))  # the pid still belongs to a process
            except OSError as error:
                if error.errno != errno.ENOSYS:  # before Linux 5.3
                    return
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)

    def _explain(self, lines: list[str]) -> SandboxError:
        own = [line for line in lines if line.startswith("bwrap: ")]
        if not own:
            return SandboxDied(
                f"bubblewrap ended: {lines[-1]}" if lines else "the sandbox's process was killed"
            )
        text = f"bubblewrap ended: {own[-1]}"
        if setting := barred_by():
            remedy = SYSCTLS[setting.partition("=")[0]][1]
            text += f"; this kernel forbids user namespaces ({setting}): set it to {remedy}, or use --sandbox docker"
        elif "nknown option" in own[-1]:
            text += ": bubblewrap 0.8 or later is needed"
        return EngineUnavailable(text)
