"""Show issues that are fixed at the same time, and how many wait."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from rich.text import Text

from m3agent.agent.ui.display import Display
from m3agent.agent.ui.event_printer import Screen
from m3agent.agent.ui.layout import ATTEMPT, note
from m3agent.agent.ui.status_row import StatusRow, area, still


class QueueView(Display):
    """The screens of the fixes at work, in one view, above a row that counts the issues.

    It is a context manager: the rows are drawn between its entry and its exit.

    Args:
        issues: Number of issues.
        ended: How many of them ended before.
    """

    def __init__(self, issues: int, ended: int) -> None:
        super().__init__(self._area, self._still)
        self._issues, self._ended = issues, ended
        self._screens: dict[int, Screen] = {}

    def say(self, text: str) -> None:
        """Print a note for the person, however long it is."""
        self._live.print(note(f"m3agent: {text}"))

    @contextlib.contextmanager
    def showing(self, number: int, screen: Screen) -> Iterator[None]:
        """Show the screen of an issue within the context, and that the issue is at work."""
        self._screens[number] = screen
        screen.share(self._live, f"{number:>{len(str(self._issues))}}{ATTEMPT}")
        try:
            yield
        finally:
            del self._screens[number]
            self._ended += 1

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Draw no rows within the context if standard output is the terminal, too."""
        if not sys.stdout.isatty():
            yield
            return
        self._live.stop()
        try:
            yield
        finally:
            self._live.start(rows=True)

    @property
    def state(self) -> str:
        """How many issues have ended, are at work and wait."""
        at_work = len(self._screens)
        waiting = self._issues - self._ended - at_work
        return f"{self._ended} of {self._issues} issues ended, {at_work} at work, {waiting} waiting"

    def _area(self, width: int, height: int, now: float) -> Sequence[Text]:
        rows = self._rows()
        return [*area(rows, width, height - 1, now), self._count(width)] if rows else ()

    def _still(self, now: float) -> Sequence[Text]:
        rows = self._rows()
        return [*still(rows, now), Text(f"… {self.state}", "dim")] if rows else ()

    def _rows(self) -> list[StatusRow]:
        # the drawing thread calls this, so the screens are read only once
        shown = sorted(item for item in list(self._screens.items()) if item[1].has_rows)
        return [row for _, screen in shown for row in screen.running()]

    def _count(self, width: int) -> Text:
        text = Text(self.state, "dim")
        text.truncate(max(1, width - 1), overflow="ellipsis")
        return text
