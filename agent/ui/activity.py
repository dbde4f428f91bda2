"""Show one activity that lasts: lines that stay, a row on a terminal, and a sign of life now and then in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Self

from rich.text import Text

from m3agent.agent.report.text import duration
from m3agent.agent.ui.display import LiveView
from m3agent.agent.ui.layout import FRAMES, note
from m3agent.util.sanitize import printable_line

MOST_SAID = 1000  # characters of a note


class Activity:
    """An activity. It is a context manager, which shows the row between its entry and its exit.

    Args:
        doing: What is done, such as "verifying the patch".
    """

    def __init__(self, doing: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._live = LiveView(self._row, self._still)
        self._doing = doing
        self._since = clock()

    def __enter__(self) -> Self:
        self._live.start(rows=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a note for the person."""
        self._live.print(note(f"m3agent: {printable_line(text, MOST_SAID)}"))

    def _row(self, width: int, height: int, now: float) -> Sequence[Text]:
        if height < 2:
            return []
        row = Text.assemble(
            (f"{FRAMES[int(now * 10) % len(FRAMES)]} ", "green"),
            (f"{duration(now - self._since)}  ", "cyan"),
            printable_line(self._doing, 200),
        )
        row.truncate(max(1, width - 1), overflow="ellipsis")
        return [row]

    def _still(self, now: float) -> Sequence[Text]:
        return [Text(f"… {printable_line(self._doing, 200)}, {duration(now - self._since)}", "dim")]
