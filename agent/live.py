"""Standard error as one place to write to: lines that stay and, on a terminal, rows below them that change.

One thread does all the writing, and nobody waits for it: a terminal that was stopped (Ctrl-S) or a pipe that nobody
reads holds up what is seen, not the work.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, BinaryIO, cast

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import ControlType, Segment
from rich.text import Text

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STANDARD_ERROR = 2
INTERVAL = 1 / 8  # seconds from one drawing to the next
PATIENCE = 5.0  # seconds that the end waits for a reader who does not read
NO_TEXT = [(ControlType.CARRIAGE_RETURN,)]  # any: it says to rich that a segment takes no cells

Rows = Callable[[int, int, float], Sequence[Text]]
"""What is drawn: by width and height of the terminal in cells, and the time on the monotonic clock."""


class _StandardError(io.RawIOBase):
    """Descriptor 2 itself. Nothing is buffered, so no lock is held when the process ends in the middle of a write."""

    def fileno(self) -> int:
        return STANDARD_ERROR

    def isatty(self) -> bool:
        return os.isatty(STANDARD_ERROR)

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        left = memoryview(data).cast("B")
        while left:
            try:
                left = left[os.write(STANDARD_ERROR, left) :]
            except BlockingIOError:  # another program made the terminal that we share so
                select.select([], [STANDARD_ERROR], [])
        return len(memoryview(data))


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Nobody reads it any more. Rich would end the process."""
        self.quiet = True


class LiveView:
    """Lines and, between `start` and `stop`, rows on a terminal. Errors in writing end what is seen and nothing else."""

    def __init__(self, rows: Rows) -> None:
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        raw = cast(BinaryIO, _StandardError())
        file = io.TextIOWrapper(raw, encoding, errors="replace", write_through=True)
        self._console = _Console(file=file, highlight=False, soft_wrap=True)
        # Where descriptor 2 was closed when Python started, it may be any file by now.
        self._console.quiet = sys.__stderr__ is None
        self._rows = rows
        self._lines: queue.SimpleQueue[Text | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, *, rows: bool) -> None:
        """From here on a thread writes; with rows, if this is a terminal that can move its cursor."""
        console = self._console
        # rich takes a pipe for a terminal where FORCE_COLOR is set
        rows = rows and not console.quiet and console.is_interactive and os.isatty(STANDARD_ERROR)
        self._stopping.clear()
        self._thread = threading.Thread(target=self._draw if rows else self._copy, daemon=True)
        self._thread.start()
        in_main_thread = threading.current_thread() is threading.main_thread()
        if rows and in_main_thread and signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._suspend)

    def print(self, line: Text) -> None:
        """A line that stays."""
        if self._thread is not None:
            self._lines.put(line)
            return
        with contextlib.suppress(OSError):
            self._console.print(line)

    def stop(self) -> None:
        """Write what is left, take the rows away, give the cursor back."""
        if signal.getsignal(signal.SIGTSTP) == self._suspend:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        if self._thread is not None:
            self._stopping.set()
            self._lines.put(None)
            self._thread.join(PATIENCE)
            self._thread = None

    def _suspend(self, *_: object) -> None:
        """Ctrl-Z: the shell gets the terminal as it was."""
        self.stop()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.start(rows=True)

    def _copy(self) -> None:
        with contextlib.suppress(OSError):  # nobody reads it any more
            while (line := self._lines.get()) is not None:
                self._console.print(line)

    def _draw(self) -> None:
        with (
            contextlib.suppress(OSError),
            Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                get_renderable=lambda: self,
            ) as live,
        ):
            while not self._stopping.wait(INTERVAL):
                if lines := self._waiting():
                    self._console.print(Text("\n").join(lines))  # and the rows below them
                else:
                    live.refresh()
            if lines := self._waiting():
                self._console.print(Text("\n").join(lines))

    def _waiting(self) -> list[Text]:
        """The lines that came since the last drawing."""
        lines = []
        with contextlib.suppress(queue.Empty):
            while (line := self._lines.get_nowait()) is not None:
                lines.append(line)
        return lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = self._rows(*options.size, time.monotonic())
        if not rows:
            return
        # Where rich and the terminal count a character's cells differently, the row is cut off, not wrapped.
        yield Segment("\x1b[?7l", None, NO_TEXT)
        yield from rows[:-1]
        rows[-1].end = ""
        yield rows[-1]
        # From the first column, what is typed and echoed cannot reach the end of the row.
        yield Segment("\x1b[?7h\r", None, NO_TEXT)
