"""Show a server that starts and runs, or a checkpoint that is fetched: lines that stay and, on a terminal, a progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.text import Text

from m3agent.agent.report import text
from m3agent.agent.ui.display import Display
from m3agent.serving.check.check import Check
from m3agent.serving.launch.load_signs import LoadProgress
from m3agent.serving.launch.record import Phase, ServerRecord
from m3agent.util.sanitize import has_terminal, printable_line

BAR = 24  # cells
LABEL, FETCH_LABEL = 22, 12  # cells
WIDE = 200  # cells of a row where there is no terminal
MARKS = {True: ("ok", "green"), False: ("failed", "bold red"), None: ("-", "yellow")}


def how_to_end() -> str:
    """Say how to end the server: Ctrl-C does not reach it in the background."""
    return "`m3agent serve stop` or Ctrl-C ends it" if has_terminal() else "`m3agent serve stop` ends it"


class ServeView(Display):
    """A `serving.launch.server.Watcher` on standard error. Use as a context manager."""

    def __init__(self) -> None:
        super().__init__(self._area, self._still)
        self._progress: LoadProgress | None = None
        self._phase: Phase | None = None
        self._looking = ""
        self._since = self._begun = time.monotonic()

    def progress(self, progress: LoadProgress) -> None:
        """Show what the engine does: a line for each finished phase, and the row."""
        before, self._progress = self._progress, progress
        if before is None or before.phase != progress.phase:
            took = time.monotonic() - self._since
            self._since = time.monotonic()
            if before is not None:
                done = f"{before.done}/{before.total} " if before.total else ""
                self._line(before.phase.words, f"{done}{took:.0f} s")

    def checking(self, what: str) -> None:
        """Show in the row what is checked next."""
        self._looking = what

    def checked(self, check: Check) -> None:
        """Show the outcome of a check."""
        mark, style = MARKS[check.ok]
        line = Text.assemble(
            (f"{mark:<{LABEL}}", style), f"{check.name}: {printable_line(check.detail, 400)}"
        )
        if check.fix and check.ok is False:
            line.append(f"; {printable_line(check.fix, 300)}")
        self._live.print(line)

    def phase(self, record: ServerRecord) -> None:
        """Show that the server entered a new phase."""
        if record.phase == self._phase:
            return
        self._phase = record.phase
        if record.phase is Phase.CHECKING and self._progress is not None:
            took = time.monotonic() - self._begun
            self._line("loaded", f"after {took:.0f} s{_cache(record)}")
        self._progress = None
        self._since = time.monotonic()
        if record.phase in (Phase.LOADING, Phase.RESTARTING):
            self._begun = self._since
        if record.phase is Phase.READY:
            window = f", {record.max_model_len:,} tokens" if record.max_model_len else ""
            self._line(
                "ready",
                f"{record.model or 'M3'} at {record.url}{window}{_caveat(record)} ({how_to_end()})",
                "bold green",
            )

    def _still(self, now: float) -> Sequence[Text]:
        return [Text(f"… {row.plain}", "dim") for row in self._area(WIDE, 2, now)]

    def _line(self, label: str, said: str, style: str = "bold cyan") -> None:
        self._live.print(Text.assemble((f"{label:<{LABEL}}", style), said))

    def _area(self, width: int, height: int, now: float) -> Sequence[Text]:
        phase, progress = self._phase, self._progress
        if phase is None or phase is Phase.READY or height < 2:
            return []
        doing = phase.value if progress is None else progress.phase.words
        row = Text.assemble((f"{doing:<{LABEL}}", "bold cyan"))
        if progress is not None and progress.total:
            _add_bar(row, min(progress.done or 0, progress.total) / progress.total)
            row.append(f" {progress.done}/{progress.total}")
        row.append(f" {text.duration(now - self._since)}", "dim")
        detail = self._looking if phase is Phase.CHECKING else "" if progress is None else progress.detail
        if detail:
            row.append(f"  {printable_line(detail, 200)}", "dim")
        row.truncate(max(1, width - 1), overflow="ellipsis")
        return [row]


class FetchView(Display):
    """Shows how far a fetch is: a row on a terminal, lines elsewhere. Use as a context manager."""

    def __init__(self) -> None:
        super().__init__(self.rows, lambda now: self.rows(WIDE, 2, now))
        self._stage, self._total, self._done, self._since = "", 0, 0, 0.0

    def stage(self, name: str, total: int) -> Callable[[int], None]:
        """Begin a stage of so many bytes; return a function that receives how many are done."""
        self._stage, self._total, self._done, self._since = name, total, 0, time.monotonic()
        return self._tell

    def _tell(self, done: int) -> None:
        self._done = max(0, min(done, self._total))

    def rows(self, width: int, height: int, now: float) -> Sequence[Text]:
        """Return the row, for a terminal of `width` cells."""
        if not self._stage or height < 2:
            return []
        share, took = self._done / max(1, self._total), now - self._since
        row = Text.assemble((f"{self._stage:<{FETCH_LABEL}}", "bold cyan"))
        _add_bar(row, share)
        row.append(f" {share:4.0%} {text.size(self._done)} of {text.size(self._total)}")
        if self._done and took > 1:
            left = took / self._done * (self._total - self._done)
            row.append(f"  {text.size(self._done / took)}/s, {text.duration(left)} left", "dim")
        row.truncate(max(1, width - 1), overflow="ellipsis")
        return [row]


def _add_bar(row: Text, share: float) -> None:
    cells = round(BAR * share)
    row.append("━" * cells, "cyan").append("━" * (BAR - cells), "dim")


def _cache(record: ServerRecord) -> str:
    if record.kv_tokens is None:
        return ""
    planned = record.plan.get("kv_tokens") if record.plan else None
    against = (
        f", {record.kv_tokens / planned - 1:+.1%} against the plan"
        if isinstance(planned, int) and planned
        else ""
    )
    return f": cache for {record.kv_tokens:,} tokens{against}"


def _caveat(record: ServerRecord) -> str:
    if record.wire_ok is False:
        return "; its wire check FAILED: do not trust its answers"
    if record.random_weights:
        return "; its weights are random: it answers nonsense"
    if record.model_ok is False:
        return "; its model check FAILED: it does not answer sensibly"
    return ""
