"""Run one command and make sure that no process that it started outlives it.

The keeper is a separate process between a launcher and an engine. It runs from this source file with the
standard library only.

An engine consists of many processes. If the first is killed, others may keep the GPUs' memory, and a restart
finds none free. Linux hands orphans to the nearest ancestor that requests them (PR_SET_CHILD_SUBREAPER). So
the keeper finds and ends all of them, even those that left the process group.

The keeper ends the command on SIGTERM, or when its own stdin closes. The latter happens when the launcher is
killed. If the keeper itself is killed, the command gets a signal (PR_SET_PDEATHSIG).

Without /proc, as on macOS, the keeper ends the command's process group only.

The exit status is the command's: 128 + N after signal N, and 127 if it cannot be started. The keeper also
runs other commands than engines, such as an agent that a benchmark measures.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
CLEANUP_SECONDS = 60.0
CANNOT_START = 127


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # not Linux: no supported GPUs there either
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _in_child() -> None:
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def descendants(of: int) -> list[int]:
    """Return the ids of all processes below a process, without zombies; empty if /proc cannot be read."""
    children: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):
        for process in Path("/proc").glob("[0-9]*"):
            try:
                stat = (process / "stat").read_bytes()
                state, parent = stat.rpartition(b")")[2].split()[:2]  # the name before may have any character
            except (OSError, ValueError):
                continue  # the process ended meanwhile
            if state != b"Z":
                children.setdefault(int(parent), []).append(int(process.name))
    found, new = [], [of]
    while new:
        new = [child for parent in new for child in children.get(parent, ())]
        found += new
    return found


def _tell(child: subprocess.Popen[bytes], like_ctrl_c: bool) -> None:
    """Ask the command to end: SIGTERM to the command, or SIGINT to its process group."""
    if not like_ctrl_c:
        child.terminate()
    elif child.poll() is None:  # the command leads its group, so the group exists until the command is reaped
        os.killpg(child.pid, signal.SIGINT)


def _reap(but: int) -> None:
    """Reap orphans that the keeper inherited.

    Never reap the command itself, because `subprocess` waits for its exit status.
    """
    if not hasattr(os, "waitid"):  # macOS before Python 3.13, which hands no orphans to the keeper
        return
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and dead.si_pid != but:
            os.waitpid(dead.si_pid, 0)


def _rest(of: int) -> list[int]:
    """Return what remains of a command that ended, as `os.kill` takes it: processes, or -1 times their group."""
    if Path("/proc/self/stat").exists():
        return descendants(os.getpid())
    try:
        os.killpg(of, 0)
    except (ProcessLookupError, PermissionError):  # macOS answers the latter if only zombies are left
        return []
    return [-of]


def _end_rest(but: int, patience: float) -> None:
    """End all that remains of the command: SIGTERM for `patience` seconds, then SIGKILL."""
    begun = time.monotonic()
    while rest := _rest(but):
        number = signal.SIGTERM if time.monotonic() - begun < patience else signal.SIGKILL
        for pid in rest:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        _reap(but)
        time.sleep(0.1)
    _reap(but)


def keep(
    argv: list[str],
    log: str,
    grace: float,
    patience: float,
    cleanup: list[str] | None,
    launcher: int,
    errors: str | None = None,
    like_ctrl_c: bool = False,
) -> int:
    """Run the command until it ends or the keeper is asked to stop; return its exit status.

    Args:
        log: File for the command's output; output is appended.
        grace: Seconds from SIGTERM to SIGKILL for the command.
        patience: Seconds from SIGTERM to SIGKILL for remaining descendants.
        cleanup: Command to run at the end, for at most `CLEANUP_SECONDS`.
        launcher: File descriptor that closes when the launcher ends.
        errors: File for the command's stderr; None is `log`.
        like_ctrl_c: Send SIGINT to the command's process group instead of SIGTERM to the command alone.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wakeup, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: told.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with Path(log).open("ab", buffering=0) as file, Path(errors or log).open("ab", buffering=0) as second:
        try:
            # The keeper has one thread, so it is safe to run Python between fork and exec.
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=second,
                preexec_fn=_in_child,  # noqa: PLW1509
            )
        except OSError as error:
            second.write(f"{argv[0]}: {error.strerror}\n".encode())
            return CANNOT_START
    until: float | None = None
    while child.poll() is None:
        if until is None:
            ready, _, _ = select.select([wakeup, launcher], [], [])
        else:
            ready, _, _ = select.select([wakeup], [], [], max(0.0, until - time.monotonic()))
        if wakeup in ready:
            os.read(wakeup, 4096)
            _reap(child.pid)
        if until is None and (told or (launcher in ready and not os.read(launcher, 4096))):
            until = time.monotonic() + grace
            _tell(child, like_ctrl_c)
        elif until is not None and time.monotonic() >= until:
            child.kill()
    _end_rest(child.pid, patience)
    if cleanup:
        _clean_up(cleanup, log)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _clean_up(command: list[str], log: str) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired), Path(log).open("ab") as file:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            timeout=CLEANUP_SECONDS,
            check=False,
        )


if __name__ == "__main__":
    sys.exit(keep(**json.loads(sys.argv[1]), launcher=0))
