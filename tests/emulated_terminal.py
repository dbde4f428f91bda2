"""Run a program on a real terminal device. pyte draws its output, so tests see the screen that a person sees."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import pyte

SECONDS = 30.0  # time limit for something to appear on the screen


class EmulatedTerminal:
    """A program whose standard input and standard error are a terminal and whose standard output is a pipe.

    With `output_too`, standard output is the terminal as well. It is the program's controlling terminal: keys such as Ctrl-C and changes of size reach the program as signals.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 100,
        rows: int = 60,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        output_too: bool = False,
    ) -> None:
        self.screen = pyte.Screen(columns, rows)
        self.written = b""
        self._stream = pyte.ByteStream(self.screen)
        self._leader, follower = os.openpty()
        self._set_size(columns, rows)
        drop = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
        environment = {name: value for name, value in os.environ.items() if name not in drop}
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command],
            stdin=follower,
            stdout=follower if output_too else subprocess.PIPE,
            stderr=follower,
            env={**environment, "TERM": "xterm-256color", **(env or {})},
            pass_fds=pass_fds,
        )
        os.close(follower)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._leader)

    @property
    def lines(self) -> list[str]:
        """Return the rows of the screen from the top, without blank rows and trailing blanks."""
        return [line.rstrip() for line in self.screen.display if line.strip()]

    @property
    def cursor_is_visible(self) -> bool:
        return not self.screen.cursor.hidden

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows what is typed, as it does for a shell."""
        return bool(termios.tcgetattr(self._leader)[3] & termios.ECHO)

    def until(self, seen: Callable[[list[str]], bool], seconds: float = SECONDS) -> list[str]:
        """Wait until `seen` accepts the screen, and return its rows."""
        deadline = time.monotonic() + seconds
        while not seen(self.lines):
            assert time.monotonic() < deadline, f"not on the screen in time: {self.lines}"
            assert self._read(0.1) or self.process.poll() is None, f"the program ended: {self.lines}"
        return self.lines

    def until_it_says_so(self) -> None:
        """Read the terminal until the program writes to standard output."""
        assert self.process.stdout is not None
        output = self.process.stdout.fileno()
        while not select.select([output], [], [], 0)[0]:
            self._read(0.01)
        assert os.read(output, 1), f"the program ended: {self.lines}"
        while self._read(0):
            pass

    def until_the_end(self) -> int:
        """Read all output and return the exit status."""
        while self.process.poll() is None or self._read(0):
            self._read(0.1)
        return self.process.returncode

    def press(self, keys: bytes) -> None:
        os.write(self._leader, keys)

    def resize(self, columns: int, rows: int) -> None:
        self._set_size(columns, rows)
        self.screen.resize(rows, columns)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self, seconds: float) -> bool:
        if not select.select([self._leader], [], [], seconds)[0]:
            return False
        with contextlib.suppress(OSError):  # Linux reports an error once the other side is closed
            data = os.read(self._leader, 65536)
            self.written += data
            self._stream.feed(data)
            return bool(data)
        return False
