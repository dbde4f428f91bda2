"""Show one activity that lasts: lines that stay, a row on a terminal, and a sign of life now and then in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.text import Text

from m3agent.agent.report.text import duration
from m3agent.agent.ui.display import Display
from m3agent.agent.ui.layout import FRAMES
from m3agent.util.sanitize import printable_line


class Activity(Display):
    """An activity. It is a context manager, which shows the row between its entry and its exit.

    Args:
        doing: What is done, such as "verifying the patch".
    """

    def __init__(self, doing: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(self._row, self._still)
        self._doing = doing
        self._since = clock()

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
