"""Run m3agent's command line in a fork of `tests.fork_server`, which has done all imports.

Example:
    done = run("fix", ISSUE, "--repo", str(repo))  # as subprocess.run: exit status, output, errors
    process = Process("fix", ISSUE, "--repo", str(repo))  # as subprocess.Popen: a pid to signal, streams to read
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Self

from tests.fork_server import LARGEST

ROOT = Path(__file__).parent.parent
TIMEOUT = 150.0
"""Time limit in seconds for a command. Only a command that hangs reaches it."""
Stream = int | IO[bytes]
"""`subprocess.PIPE`, `subprocess.DEVNULL`, a file descriptor, or a file."""
MAIN = "m3agent.cli.__main__"
AT_START = ("PYTHON", "LC_", "LANG", "TERM", "COLUMNS", "COVERAGE")
"""Prefixes of variables that Python or a library reads at start-up. The fork server started before they were set."""


class ForkServer:
    """The client's side of the fork server."""

    def __init__(self) -> None:
        self._mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(its.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
            )

    def fork(self, request: bytes, streams: list[int]) -> IO[bytes]:
        """Start a command. Return a pipe that delivers its pid and, when it has ended, its status."""
        sys.audit("tests.fork")  # the audit hook of conftest.py refuses it in unit tests
        reading, writing = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._mine, [request], [*streams, writing])
        finally:
            os.close(writing)
        return open(reading, "rb", buffering=0)  # noqa: PTH123  # the process closes it

    def close(self) -> None:
        """End the server. Commands that still run continue."""
        self._mine.close()
        self._process.wait()


@cache
def _server() -> ForkServer:
    server = ForkServer()
    atexit.register(server.close)
    return server


class Process:
    """A running command. Arguments and members have the same meaning as in `subprocess.Popen`.

    Standard input is empty unless it is PIPE or a file. The other two streams are pipes unless files are given.
    `env` is added to the environment of the tests, or replaces it if `inherit` is false. `module` is run as by
    `python -m`.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = subprocess.PIPE,
        stderr: Stream = subprocess.PIPE,
        inherit: bool = True,
        module: str = MAIN,
    ) -> None:
        request = {
            "module": module,
            "arguments": arguments,
            "cwd": str(cwd or Path.cwd()),
            "env": {**(os.environ if inherit else {}), **(env or {})},
        }
        encoded = json.dumps(request).encode()
        assert len(encoded) < LARGEST, "too long for the fork server: use subprocess"
        self.returncode: int | None = None
        with contextlib.ExitStack() as its:
            mine, numbers = zip(
                *(_ends(stream, its, n) for n, stream in enumerate((stdin, stdout, stderr))), strict=True
            )
            self.stdin: IO[bytes] = mine[0]
            self.stdout: IO[bytes] = mine[1]
            self.stderr: IO[bytes] = mine[2]
            self._told = _server().fork(encoded, list(numbers))
        self.pid = int(self._told.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        self.wait()

    def poll(self) -> int | None:
        """Return the exit status, or None while the command runs. A negative status is the signal that ended it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status. Raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("m3agent", timeout or 0.0)
            with self._told:
                self.returncode = os.waitstatus_to_exitcode(int(self._told.readline()))
        return self.returncode

    def communicate(self, data: bytes = b"", timeout: float = TIMEOUT) -> tuple[bytes, bytes]:
        """Write `data` to standard input, read standard output and standard error to their ends, and wait.

        Raises:
            subprocess.TimeoutExpired: The command ran for more than `timeout` seconds and was killed.
        """
        said: dict[IO[bytes], bytes] = {}
        work = [threading.Thread(target=self._feed, args=(data,))]
        work += [
            threading.Thread(target=lambda s=stream: said.update({s: s.read()}))
            for stream in (self.stdout, self.stderr)
        ]
        end = time.monotonic() + timeout
        for thread in work:
            thread.start()
        for thread in work:
            thread.join(max(0.0, end - time.monotonic()))
        over = any(thread.is_alive() for thread in work)
        try:
            self.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            over = True
            self.send_signal(signal.SIGABRT)  # faulthandler then prints the stack of each thread
        for thread in work:
            thread.join()
        self.wait()
        output, errors = (said[stream] for stream in (self.stdout, self.stderr))
        for stream in (self.stdout, self.stderr):
            stream.close()
        if over:
            failure = subprocess.TimeoutExpired("m3agent", timeout, output, errors)
            failure.add_note(errors.decode(errors="replace"))
            raise failure
        return output, errors

    def _feed(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError), self.stdin:
            self.stdin.write(data)

    def send_signal(self, number: int) -> None:
        """Send a signal if the command has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _ends(stream: Stream, its: contextlib.ExitStack, number: int) -> tuple[IO[bytes], int]:
    """Return our end of a stream, and the descriptor that the command gets as `number`, which `its` closes."""
    if stream == subprocess.PIPE:
        ends = os.pipe()
        ours, theirs = reversed(ends) if number == 0 else ends
        its.callback(os.close, theirs)
        return open(ours, "wb" if number == 0 else "rb"), theirs  # noqa: PTH123  # closed with the process
    nothing = io.BytesIO()
    if isinstance(stream, int) and stream != subprocess.DEVNULL:
        return nothing, stream
    if isinstance(stream, int):
        return nothing, its.enter_context(open(os.devnull, "r+b", buffering=0)).fileno()  # noqa: PTH123
    return nothing, stream.fileno()


def command(*arguments: str) -> list[str]:
    """Return the command line that starts m3agent in a new interpreter."""
    return [sys.executable, "-m", "m3agent", *arguments]


def run(
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    data: bytes = b"",
    timeout: float = TIMEOUT,
    module: str = MAIN,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with `data` as its standard input.

    Raises `subprocess.TimeoutExpired` after `timeout` seconds.
    """
    at_start = any(name.startswith(AT_START) for name in env or ())
    if module == MAIN and (at_start or sum(map(len, arguments)) > LARGEST // 4):
        return subprocess.run(
            command(*arguments),
            cwd=cwd,
            env={**os.environ, **(env or {})},
            capture_output=True,
            check=False,
            text=True,
            input=data.decode(),
            timeout=timeout,
        )
    stdin = subprocess.PIPE if data else subprocess.DEVNULL
    process = Process(*arguments, cwd=cwd, env=env, stdin=stdin, module=module)
    output, errors = process.communicate(data, timeout)
    assert process.returncode is not None
    return subprocess.CompletedProcess(
        ["m3agent", *arguments], process.returncode, output.decode(), errors.decode()
    )
