"""Track what one session does and has used so far, and render it as rows for a terminal.

A row uses only the lines of the session's log and the model's stream. It never prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from m3agent.agent.loop import turn_events
from m3agent.agent.report import text, words
from m3agent.agent.report.words import step_title
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.usage import Totals
from m3agent.agent.ui.closing import Facts
from m3agent.agent.ui.layout import ATTEMPT, FRAMES
from m3agent.serving.client.messages import Delta
from m3agent.util.sanitize import printable_line

NEAR = 2 / 3  # share of a limit from which the limit is shown beside the usage
SILENT = 5  # seconds without a delta in the middle of an answer after which the silence is shown
LASTING = 2  # seconds after which the duration of an activity is shown
TAIL = 300  # characters kept of the model's stream: more than a row has cells
MOST = 6  # most attempts shown at once
LEAST_TAIL = 12  # cells; a shorter end of the stream tells nothing
BRIEF = 30  # cells for the activity of an attempt that has one row only
SPEAKING = {"reasoning": "thinking", "text": "writing", "call": "calling a tool"}
STARTING = "starting the sandbox, reading the repository"
WAITING = "waiting for the model"
SEARCHING = "searching for a repair"
PREPARING = "preparing the next request"
THEN = {
    "session.started": STARTING,
    "session.resumed": STARTING,
    "call.finished": PREPARING,
    "verify": "finishing",
    "feedback": PREPARING,
}
"""What a session does after a line of its log."""


@dataclass
class StatusRow:
    """The state of one session."""

    number: int = 1
    """Number of the attempt, from 1."""
    of: int = 1
    """Number of attempts."""
    label: str = ""
    """Begins its lines if several screens share a view."""
    clock: Callable[[], float] = time.monotonic
    """Returns the time on the monotonic clock, in seconds."""
    facts: Facts = field(default_factory=Facts)
    """What lines of the log said that others need."""
    _turn: int = 0
    _used: Totals = field(default_factory=Totals)
    _speed: float | None = None  # of a language model's last answer, in tokens per second
    _limits: Mapping[str, Any] = field(default_factory=dict)
    _started: float = field(init=False)
    _doing: str = "starting"
    _since: float = field(init=False)
    _calls: int = 0  # calls in the last answer
    _speaking: str = ""  # kind of the deltas that arrive now; empty if none do
    _streamed: int = 0  # characters of this answer
    _tail: str = ""
    _heard: float = 0.0

    def __post_init__(self) -> None:
        self._started = self._since = self.clock()

    @property
    def prefix(self) -> str:
        """The prefix of its lines: the label, and the attempt's number if there are several."""
        return self.label + ("" if self.of == 1 else f"{self.number:>{len(str(self.of))}}{ATTEMPT}")

    def see(self, line: Line) -> None:
        """Take a line of the session's log."""
        self.facts.see(line)
        if line["type"] in THEN:
            self._do(THEN[line["type"]])
        match line["type"]:
            case "session.started":
                attempt = line.get("attempt") or {"number": 1, "of": 1}
                self.number, self.of = attempt["number"], attempt["of"]
                self._limits = line["settings"]
            case "session.resumed":
                self._limits = {}  # the limits may have changed
            case "turn.started":
                self._turn, self._streamed, self._tail = line["turn"], 0, ""
                self._do(self._waiting)
            case "retry":
                self._do(words.retry(line))
            case "message":
                self._calls = len(line["calls"])
            case "turn.finished":
                self._used.add(turn_events.answer_of(line), line["price"])
                self._speed = line["tokens_per_second"]
                self._do("running its tool calls" if self._calls else "checking the result")
            case "call.started":
                self._do(step_title(line["name"], line["arguments"]))
            case "gate":
                self._do(PREPARING if line["missing"] else self._verifying)
            case "stall" if line["action"] == "stopped":
                self._do(self._verifying)

    @property
    def _waiting(self) -> str:
        return SEARCHING if self.facts.is_embedded else WAITING

    @property
    def _verifying(self) -> str:
        return f"verifying in {words.fresh_places(isolated=self.facts.isolated)}"

    def hear(self, delta: Delta) -> None:
        """Take a piece of the model's answer. This runs for every token, so it only stores values."""
        if delta.kind == "reset":
            self._streamed, self._tail = 0, ""
            self._do(self._waiting)
            return
        if delta.kind != self._speaking:
            self._do(SPEAKING[delta.kind])
            self._speaking, self._tail = delta.kind, ""
        self._streamed += len(delta.text)
        self._tail = (self._tail + delta.text)[-TAIL:]
        self._heard = self.clock()

    def lines(self, width: int, now: float) -> list[Text]:
        """Render two rows: the activity with the end of the stream, and the usage, once it is known."""
        first = self._head(now).append(self._what(now))
        first.truncate(width, overflow="ellipsis")
        room = width - first.cell_len - 2
        if self._speaking and room >= LEAST_TAIL:
            first.append(": ").append(_end(printable_line(self._tail, TAIL), room), "dim italic")
        indent = Text.assemble((f"{self.prefix}  ", "cyan"))
        used = _fitting(self._figures(), width - indent.cell_len)
        return [first, indent.append(used, "dim")] if used else [first]

    def line(self, width: int, now: float) -> Text:
        """Render the activity and the usage in one row; the arguments are those of `lines`."""
        what = Text(self._what(now))
        what.truncate(BRIEF, overflow="ellipsis")
        line = self._head(now).append_text(what)
        line.truncate(width, overflow="ellipsis")
        if used := _fitting(self._figures(), width - line.cell_len - 2):
            line.append(f"  {used}", "dim")
        return line

    def still(self, now: float) -> Text:
        """Render the activity and the usage as a line that stays, for output without changing rows."""
        turn = f"turn {self._turn}: " if self._turn else ""
        used = ", ".join(self._figures())
        said = f"{turn}{self._what(now)}{f'; {used}' if used else ''}; {_clock(now - self._started)} in all"
        return Text.assemble((self.prefix, "cyan"), ("… ", "dim"), (said, "dim"))

    def _do(self, what: str) -> None:
        self._doing, self._since, self._speaking = what, self.clock(), ""

    def _head(self, now: float) -> Text:
        seconds, most = round(now - self._started), (self._limits.get("max_minutes") or 0) * 60
        clock = _clock(seconds) + (f" of {_clock(most)}" if _near(seconds, most) else "")
        turns = self._limits.get("max_turns")
        turn = f"turn {self._turn}" + (f" of {turns}" if _near(self._turn, turns) else "")
        frame = FRAMES[int(now * 10) % len(FRAMES)]
        parts = (self.prefix, "cyan"), (f"{frame} ", "green"), (f"{clock}  ", "cyan")
        return Text.assemble(*parts, (f"{turn}  " if self._turn else "", "bold cyan"))

    def _what(self, now: float) -> str:
        if self._speaking:
            silent = round(now - self._heard)
            silence = f", silent for {_clock(silent)}" if silent >= SILENT else ""
            return f"{self._doing}, {self._streamed:,} chars{silence}"
        seconds = round(now - self._since)
        lasting = f", {_clock(seconds)}" if seconds >= LASTING else ""
        return f"{printable_line(self._doing, 100)}{lasting}"

    def _figures(self) -> Iterable[str]:
        used = self._used
        if self.facts.is_embedded or used.prompt is None or used.completion is None:
            return
        yield f"{text.short_count(used.prompt)} in"
        if used.cached_share is not None:
            yield f"{text.share(used.cached_share)} cached"
        most = self._limits.get("max_tokens")
        limit = f" of {text.short_count(most)}" if most and _near(used.completion, most) else ""
        yield f"{text.short_count(used.completion)}{limit} out"
        if self._speed is not None:
            yield f"{text.speed(self._speed)}/s"
        if used.price:
            most = self._limits.get("max_cost")
            yield text.price(used.price) + (f" of {text.price(most)}" if _near(used.price, most) else "")


def area(rows: Sequence[StatusRow], width: int, height: int, now: float) -> list[Text]:
    """Render the rows of all running sessions. They leave room for lines above them."""
    width = max(1, width - 1)  # some terminals wrap when the last column is written
    room = max(1, height - 2)
    if len(rows) <= MOST and 2 * len(rows) <= room:
        return [line for row in rows for line in row.lines(width, now)]
    room = min(room, MOST)
    told = rows if len(rows) <= room else rows[: room - 1]
    lines = [row.line(width, now) for row in told]
    if left := len(rows) - len(told):
        lines.append(Text(f"{left} more running" if told else f"{left} running", "dim"))
        lines[-1].truncate(width, overflow="ellipsis")
    return lines


def still(rows: Sequence[StatusRow], now: float) -> list[Text]:
    """Render lines that show that the sessions still run, for output without changing rows."""
    lines = [row.still(now) for row in rows[:MOST]]
    if len(rows) > MOST:
        lines.append(Text(f"… {len(rows) - MOST} more running", "dim"))
    return lines


def _near(value: float, limit: float | None) -> bool:
    return bool(limit) and value >= NEAR * (limit or 0)


def _clock(seconds: float) -> str:
    """Format a duration, rounded to whole seconds: `0:07`, `12:34`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _fitting(parts: Iterable[str], room: int) -> str:
    """Join the parts with commas, leaving out each part that no longer fits into `room` cells."""
    line = ""
    for part in parts:
        longer = f"{line}, {part}" if line else part
        line = longer if cell_len(longer) <= room else line
    return line


def _end(line: str, room: int) -> str:
    """Return the end of a line, in at most `room` cells."""
    if cell_len(line) <= room:
        return line
    while cell_len(line) > room - 1:
        line = line[max(1, (cell_len(line) - room) // 2) :]  # no character is wider than two cells
    return f"…{line}"
