"""Read the lines that a person types below the changing rows, without the terminal's own echo."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import termios
from collections.abc import Callable

from rich.cells import cell_len
from rich.text import Text

from m3agent.util.sanitize import printable_line

KEYBOARD = 0
LONGEST = 10_000  # most characters of a line
INTERRUPT, ERASE, WORD, ALL = "\x03", "\x08\x7f", "\x17", "\x15"
SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)")
"""What a key without a character sends, such as an arrow, and the marks around a paste."""
HINT = "type a message to the model, and press Enter"


class TypedLine:
    """The line that the person types. While it is read, the terminal neither echoes nor edits.

    Args:
        on_line: Receives each line that is not empty, in the thread of the event loop.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self.invites = False
        """Whether a model listens, so that the empty line says what one can type."""
        self._text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._before: list[int | list[bytes | int]] = []  # the terminal's mode
        self._asked: asyncio.Future[str | None] | None = None
        self._ended = False

    def start(self) -> bool:
        """Begin to read. Returns False if no person can type here: no terminal, or a process in the background."""
        try:
            if self._ended or os.tcgetpgrp(KEYBOARD) != os.getpgrp():
                return False
            self._before = termios.tcgetattr(KEYBOARD)
            self._set_mode(signals=self._asked is None)
            asyncio.get_running_loop().add_reader(KEYBOARD, self._read)
        except (OSError, termios.error, RuntimeError):
            self.stop()
            return False
        return True

    def stop(self) -> None:
        """Stop reading, and give the terminal its mode back."""
        if self._before:
            with contextlib.suppress(OSError, termios.error, RuntimeError):
                asyncio.get_running_loop().remove_reader(KEYBOARD)
            with contextlib.suppress(termios.error):
                termios.tcsetattr(KEYBOARD, termios.TCSANOW, self._before)
            self._before = []

    def end(self) -> bool:
        """Stop reading for good, because nobody takes what the person types. Return whether a line was begun."""
        self._ended = True
        self.stop()
        begun, self._text = bool(self._text), ""
        return begun

    async def answer(self) -> str | None:
        """Return the next line, which may be empty; None after Ctrl-C, which sends no signal meanwhile.

        None at once if no person can type here, such as in the background.
        """
        if not self._before and not self.start():
            return None
        self._asked = asyncio.get_running_loop().create_future()
        self._set_mode(signals=False)
        try:
            return await self._asked
        finally:
            self._asked = None
            self._set_mode(signals=True)

    @property
    def is_read(self) -> bool:
        """Whether lines are read now."""
        return bool(self._before)

    @property
    def is_shown(self) -> bool:
        """Whether the line is on the screen: from the time when a model listens, or something is typed."""
        return self.is_read and (self.invites or bool(self._text) or self.is_awaited)

    @property
    def is_awaited(self) -> bool:
        """Whether the next line is an answer that the work waits for."""
        return self._asked is not None

    def row(self, width: int) -> Text:
        """Return the row that shows the line: its end, if it is too long."""
        text = printable_line(self._text, LONGEST)
        room = max(1, width - 4)
        while cell_len(text) > room:
            text = text[max(1, (cell_len(text) - room) // 2) :]
        if not text and self._asked is None:
            return Text.assemble(("> ", "bold cyan"), (HINT[:room], "dim"))
        return Text.assemble(("> ", "bold cyan"), text, ("▏", "cyan"))

    def _set_mode(self, *, signals: bool) -> None:
        if not self._before:
            return
        mode = termios.tcgetattr(KEYBOARD)
        mode[3] = (mode[3] & ~(termios.ICANON | termios.ECHO | termios.ISIG)) | (
            termios.ISIG if signals else 0
        )
        mode[6] = list(mode[6])
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        with contextlib.suppress(termios.error):
            termios.tcsetattr(KEYBOARD, termios.TCSANOW, mode)

    def _read(self) -> None:
        try:
            data = os.read(KEYBOARD, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # the terminal hung up
            self.stop()
            self._end(None)
            return
        for key in SEQUENCE.sub("", self._decoder.decode(data)):
            self._press(key)

    def _press(self, key: str) -> None:
        if key in "\r\n":
            text, self._text = self._text.strip(), ""
            if self._asked is not None and not self._asked.done():
                self._end(text)
            elif text:
                self._on_line(text)
        elif key in ERASE:
            self._text = self._text[:-1]
        elif key == WORD:
            self._text = self._text.rstrip().rpartition(" ")[0]
        elif key == ALL:
            self._text = ""
        elif key == INTERRUPT:
            self._end(None)
        elif (key.isprintable() or key == "\t") and len(self._text) < LONGEST:
            self._text += key

    def _end(self, answer: str | None) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(answer)
