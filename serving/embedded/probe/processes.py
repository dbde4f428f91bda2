"""Child processes that report over pipes, and those that share the candidates among themselves."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any


class Channel:
    """JSON lines over a pipe that only parent and child have."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, **message: Any) -> None:
        """Write one message."""
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self._fd, data) :]


def messages(fd: int, deadline: Callable[[], float]) -> Iterator[dict[str, Any]]:
    """Yield the messages from `fd` until it ends or ``deadline()`` (monotonic seconds) passes."""
    buffer = b""
    while True:
        left = deadline() - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            yield {"t": "late"}
            return
        data = os.read(fd, 1 << 16)
        if not data:
            return
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            yield json.loads(line)


def forked(body: Callable[[], None]) -> int:
    """Run `body` in a child, which ends with status 1 if it fails; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        body()
        status = 0
    except Exception:  # noqa: BLE001  # whatever it is, the output has it, and the parent fails because of the status
        traceback.print_exc()
    finally:
        os._exit(status)


def reap(pid: int) -> None:
    """Kill the child's whole process group and reap the child."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def end_with_parent() -> None:
    """Make the kernel kill this process when its parent dies.

    It has its own process group, so it does not end with the parent's.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG


class Verdicts:
    """The verdicts on candidates, which are judged until they or the time run out, or enough of them pass.

    The letters are: ``P`` fixes all failing tests, ``p`` a part of them, ``r`` breaks another test, ``f``
    fixes nothing, ``t`` ran into a time limit, ``x`` does not compile or changes nothing, ``-`` was not
    tried.
    """

    def __init__(self, asked: dict[str, Any]) -> None:
        self._started = time.monotonic()
        self._stops: list[int] = asked["stops"]  # per candidate: where to stop once it passes
        self._letters = ["-"] * len(asked["candidates"])
        self._found: list[dict[str, int]] = []
        self.deadline = self._started + asked["seconds"]
        self.cutoff = len(self._letters)

    def share(
        self, numbers: Iterable[int], workers: Sequence[Callable[[Iterator[int]], Iterator[tuple[str, int]]]]
    ) -> None:
        """Let each worker judge one candidate after the other, in a process of its own.

        A worker yields for each candidate the verdict and the number of tests that it fixes.
        """
        waiting = iter(numbers)
        running: dict[socket.socket, int] = {}
        try:
            for work in workers:
                ours, theirs = socket.socketpair()
                running[ours] = forked(partial(_answer, theirs, work))
                theirs.close()
                self._ask(ours, waiting)
            while running:
                for ours in select.select(list(running), [], [])[0]:
                    answer = ours.recv(100).decode().split()
                    if answer:
                        self._note(int(answer[0]), answer[1], int(answer[2]))
                        self._ask(ours, waiting)
                    elif os.waitpid(running.pop(ours), 0)[1]:
                        raise RuntimeError("a process that judges candidates failed")
        finally:
            for pid in running.values():
                reap(pid)

    def _ask(self, worker: socket.socket, waiting: Iterator[int]) -> None:
        index = next(waiting, self.cutoff) if time.monotonic() < self.deadline else self.cutoff
        with contextlib.suppress(OSError):  # it failed, which its status tells
            if index < self.cutoff:
                worker.sendall(b"%d\n" % index)
            else:
                worker.shutdown(socket.SHUT_WR)

    def _note(self, index: int, verdict: str, fixed: int) -> None:
        self._letters[index] = verdict
        if verdict in "Pp":
            self._found.append({"index": index, "fixed": fixed})
        if verdict == "P":
            self.cutoff = min(self.cutoff, self._stops[index])

    def result(self, mode: str) -> dict[str, Any]:
        """Return the answer of a mode: the letters, and the candidates that pass."""
        left = len(self._letters) - self.cutoff
        found = (each for each in self._found if each["index"] < self.cutoff)
        return {
            "mode": mode,
            "verdicts": "".join(self._letters[: self.cutoff]) + "-" * left,
            "found": sorted(found, key=lambda each: each["index"]),
            "seconds": round(time.monotonic() - self._started, 2),
        }


def _answer(connection: socket.socket, work: Callable[[Iterator[int]], Iterator[tuple[str, int]]]) -> None:
    """Judge the candidates that arrive as lines until they end."""
    end_with_parent()
    asked: list[int] = []

    def numbers() -> Iterator[int]:
        for line in connection.makefile():
            asked.append(int(line))
            yield asked[-1]

    try:
        for verdict, fixed in work(numbers()):
            connection.sendall(f"{asked[-1]} {verdict} {fixed}".encode())
    finally:
        connection.shutdown(socket.SHUT_RDWR)  # processes that tests left behind have the connection, too
