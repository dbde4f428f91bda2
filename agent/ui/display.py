"""Write lines to stderr and, on a terminal, changing rows below them.

A thread does all the writing, and no other thread waits for it. A stopped terminal (Ctrl-S) or a pipe without a reader
therefore delays the output, but not the work.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, BinaryIO, Self, cast

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import ControlType, Segment
from rich.text import Text

from m3agent.agent.ui.layout import Block, in_ascii, note, shows_unicode
from m3agent.agent.ui.stdio import write_all
from m3agent.agent.ui.typed_line import TypedLine
from m3agent.util.sanitize import UNPRINTABLE, printable_line

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STANDARD_ERROR = 2
INTERVAL = 1 / 8  # seconds from one drawing to the next
PATIENCE = 5.0  # seconds that `stop` waits for output that nobody reads
MOST_SAID = 1000  # characters of a note
NO_TEXT = [(ControlType.CARRIAGE_RETURN,)]  # any control code: it tells rich that a segment takes no cells

PAUSES = (30.0, 60.0, 120.0, 300.0)
"""Seconds without a line after which a pipe gets a sign of life; the last pause repeats. Travis CI, for one, ends a job that is
silent for ten minutes, and a person wants to know sooner. The log of hours should still be short."""

Rows = Callable[[int, int, float], Sequence[Text]]
"""Returns the rows to draw. Arguments: width and height of the terminal in cells, time in seconds (monotonic clock)."""
Still = Callable[[float], Sequence[Text]]
"""Returns what is being done, for output that has no rows. Argument: time in seconds (monotonic clock)."""


class _StandardError(io.RawIOBase):
    """Descriptor 2, unbuffered: no lock is held when the process ends in the middle of a write."""

    def fileno(self) -> int:
        return STANDARD_ERROR

    def isatty(self) -> bool:
        return os.isatty(STANDARD_ERROR)

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        whole = memoryview(data).cast("B")
        write_all(STANDARD_ERROR, whole)
        return len(whole)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Stop printing when the reader is gone. Rich would end the process."""
        self.quiet = True


def printable(line: Text) -> Text:
    """Return a line in which nothing can control the terminal or begin a new line; its styles stay."""
    clean = line.copy()
    clean.plain = UNPRINTABLE.sub(" ", line.plain)
    return clean


class LiveView:
    """Lines and, between `start` and `stop`, rows on a terminal. A write error ends the output and nothing else.

    Args:
        still: Returns lines that show that work goes on. They are written where there are no rows, such as in pipes, after
            each of `pauses` without a line. None for no such lines.
        pauses: Seconds without a line; the last one repeats.
        typed: The line that the person types, which is read and shown below the rows.
    """

    def __init__(
        self,
        rows: Rows,
        still: Still | None = None,
        pauses: Sequence[float] = PAUSES,
        typed: TypedLine | None = None,
    ) -> None:
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        raw = cast(BinaryIO, _StandardError())
        file = io.TextIOWrapper(raw, encoding, errors="replace", write_through=True)
        self._console = _Console(file=file, highlight=False, soft_wrap=True)
        # If descriptor 2 was closed when Python started, it may be another file now.
        self._console.quiet = sys.__stderr__ is None
        self._ascii = not shows_unicode(encoding)
        self._rows = rows
        self._still = still
        self._pauses = pauses
        self._typed = typed
        self._blocks: queue.SimpleQueue[Block | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, *, rows: bool) -> None:
        """Start the writing thread.

        Args:
            rows: Whether to draw rows; they are drawn only on a terminal that can move its cursor.
        """
        console = self._console
        # with FORCE_COLOR, rich takes a pipe for a terminal
        rows = rows and not console.quiet and console.is_interactive and os.isatty(STANDARD_ERROR)
        self._stopping.clear()
        if rows and self._typed is not None:
            self._typed.start()
        self._thread = threading.Thread(target=self._draw if rows else self._copy, daemon=True)
        self._thread.start()
        in_main_thread = threading.current_thread() is threading.main_thread()
        if rows and in_main_thread and signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._suspend)

    def print(self, what: Text | Block) -> None:
        """Print a line or a block of lines that stays."""
        block = what if callable(what) else lambda _: [what]
        if self._thread is not None:
            self._blocks.put(block)
            return
        with contextlib.suppress(OSError):
            self._write([block])

    def stop(self) -> None:
        """Write the remaining lines, remove the rows and show the cursor again."""
        if signal.getsignal(signal.SIGTSTP) == self._suspend:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        if self._thread is not None:
            self._stopping.set()
            self._blocks.put(None)
            self._thread.join(PATIENCE)
            self._thread = None
        if self._typed is not None:
            self._typed.stop()

    def _suspend(self, *_: object) -> None:
        """Handle Ctrl-Z: restore the terminal, stop the process, and start again when it continues."""
        self.stop()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.start(rows=True)

    def _copy(self) -> None:
        signs = 0  # of life since the last line
        with contextlib.suppress(OSError):  # the reader is gone
            while True:
                pause = None if self._still is None else self._pauses[min(signs, len(self._pauses) - 1)]
                try:
                    block = self._blocks.get(timeout=pause)
                except queue.Empty:
                    signs += 1
                    self._write([self._signs])
                    continue
                if block is None:
                    return
                signs = 0
                self._write([block])

    def _signs(self, _: int | None) -> Sequence[Text]:
        return () if self._still is None else self._still(time.monotonic())

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
                if blocks := self._waiting():
                    self._write(blocks)  # draws the rows as well
                else:
                    live.refresh()
            self._write(self._waiting())

    def _waiting(self) -> list[Block]:
        """Return the blocks that arrived since the last drawing."""
        blocks = []
        with contextlib.suppress(queue.Empty):
            while (block := self._blocks.get_nowait()) is not None:
                blocks.append(block)
        return blocks

    def _write(self, blocks: Sequence[Block]) -> None:
        # some terminals wrap when the last column is written; with FORCE_COLOR, rich takes a pipe for a terminal
        width = max(1, self._console.width - 1) if os.isatty(STANDARD_ERROR) else None
        if lines := [self._shown(line) for block in blocks for line in block(width)]:
            self._console.print(Text("\n").join(lines))

    def _shown(self, line: Text) -> Text:
        clean = printable(line)
        if self._ascii:
            clean.plain = in_ascii(clean.plain)
        return clean

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.size
        typed = [self._typed.row(width)] if self._typed is not None and self._typed.is_shown else []
        rows = self._rows(width, height - len(typed), time.monotonic())
        rows = [self._shown(row) for row in (*rows, *typed)]
        if not rows:
            return
        # Without wrapping, a row is cut off if rich and the terminal disagree about a character's width.
        yield Segment("\x1b[?7l", None, NO_TEXT)
        yield from rows[:-1]
        rows[-1].end = ""
        yield rows[-1]
        # Back to the first column: echoed input cannot reach the end of the row from there.
        yield Segment("\x1b[?7h\r", None, NO_TEXT)


class Display:
    """What is shown while work goes on. It is a context manager: rows are drawn between its entry and its exit."""

    def __init__(self, rows: Rows, still: Still) -> None:
        self._live = LiveView(rows, still)

    def __enter__(self) -> Self:
        self._live.start(rows=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a note for the person."""
        self._live.print(note(f"m3agent: {printable_line(text, MOST_SAID)}"))
