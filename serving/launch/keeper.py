"""Keeps one command: starts it, and sees to it that nothing of what it started outlives it.

Runs as a process of its own between a launcher and an engine, from this file's source, with the standard library only.
An engine is many processes; if its first is killed, others may go on holding the GPUs' memory, so that a restart finds
none. Linux hands orphans to the nearest ancestor that asks for them (PR_SET_CHILD_SUBREAPER), so the keeper finds every
one of them, also those that left the process group, and ends them. It ends the command itself when it is told to
(SIGTERM), when its standard input closes, which is how a launcher that was killed says so, and the command is told when
the keeper is killed (PR_SET_PDEATHSIG). Exit code: the command's, 128 + N after signal N, 127 where it cannot be started.
The same holds for what is no engine: an agent that a benchmark measures.
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
    with contextlib.suppress(OSError, AttributeError):  # not Linux: there are no GPUs of ours either
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _in_child() -> None:
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def descendants(of: int) -> list[int]:
    """All processes below one, zombies left out; empty where /proc does not tell."""
    children: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):
        for process in Path("/proc").glob("[0-9]*"):
            try:
                stat = (process / "stat").read_bytes()
                state, parent = stat.rpartition(b")")[2].split()[:2]  # a name may hold anything
            except (OSError, ValueError):
                continue  # it ended meanwhile
            if state != b"Z":
                children.setdefault(int(parent), []).append(int(process.name))
    found, new = [], [of]
    while new:
        new = [child for parent in new for child in children.get(parent, ())]
        found += new
    return found


def _tell(child: subprocess.Popen[bytes], like_ctrl_c: bool) -> None:
    """Ask the command to end."""
    if not like_ctrl_c:
        child.terminate()
    elif child.poll() is None:  # it leads its group, so the group is there as long as it is not buried
        os.killpg(child.pid, signal.SIGINT)


def _reap(but: int) -> None:
    """Bury those that were handed to us; never the command itself, for whose exit code `subprocess` waits."""
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and dead.si_pid != but:
            os.waitpid(dead.si_pid, 0)


def _end_rest(but: int, patience: float) -> None:
    """End all that is left below us, politely and then not."""
    begun = time.monotonic()
    while rest := descendants(os.getpid()):
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
    """Run the command to its end or until told; its exit code.

    `log`: the file for what it says; `errors`: another one for its standard error. `grace`: seconds from SIGTERM to
    SIGKILL for the command, `patience` for what is left after it. `like_ctrl_c`: not SIGTERM for the command alone but
    SIGINT for its process group. `launcher`: the descriptor that closes with the launcher.
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
            # one thread, so that running Python between fork and exec is safe
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
        wait = None if until is None else max(0.0, until - time.monotonic())
        ready, _, _ = select.select([wakeup] if until else [wakeup, launcher], [], [], wait)
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
        with contextlib.suppress(OSError, subprocess.TimeoutExpired), Path(log).open("ab") as file:
            subprocess.run(
                cleanup,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                timeout=CLEANUP_SECONDS,
                check=False,
            )
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(keep(**json.loads(sys.argv[1]), launcher=0))
