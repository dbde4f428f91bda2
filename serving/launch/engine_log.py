"""Read an engine's log: its progress, the facts it reports, and the lines that may explain its end.

An engine is many processes that write into one file. So lines of several workers mix, and progress bars
overwrite themselves with carriage returns. A line may be torn, coloured, megabytes long or binary. The reader
keeps a bounded amount of any input, and progress never goes back. Each pattern names the source file that
writes its line.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from m3agent.serving.launch.load_signs import (
    ANY_BAR,
    BAR,
    GRAPH_SIZES,
    GRAPHS_AHEAD,
    READY_ELSE,
    READY_WHEN,
    SIGNS,
    TRT_GRAPH,
    TRT_GRAPHS,
    Bar,
    EngineFacts,
    LoadPhase,
    LoadProgress,
    bar_of,
)

MOST_CHARACTERS = 4096
"""Most characters kept of a line; the useful part stands at its beginning."""
TAIL_LINES = 400
"""Number of last lines to keep."""
ERROR_LINES = 300
"""Number of different error lines to keep; beyond it the oldest third and the newest ones stay."""
_FIRST_ERRORS = 100
_MOST_NAMES = 64  # limit for bars and details in a phase; an engine has a handful
_MOST_GRAPHS = 1000
_AFTER_AN_ERROR = 6  # lines that may continue an error message
_REASON_FOLLOWS = re.compile(r"[\w.]*(?:Error|Exception): *$")  # Python writes no colon if there is no reason
_PIECE = 1 << 20  # bytes to split at a time, which limits the memory for the lines of a huge input
_ENDS = re.compile(r"[\r\n]")


class LogReader:
    """Parse an engine's output piece by piece.

    No input makes the reader raise. It keeps at most about three million characters.
    """

    def __init__(self, engine: str | None = None) -> None:
        self.facts = EngineFacts()
        self.progress = LoadProgress(LoadPhase.STARTING)
        self.bytes_seen = 0
        self._news: list[LoadProgress] = []
        self._ready_when = READY_WHEN.get(engine or "", READY_ELSE)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line = ""  # current incomplete line, cut to MOST_CHARACTERS
        self._text_seen = self._garbage_seen = 0
        self._tail: deque[Line] = deque(maxlen=TAIL_LINES)
        self._errors: dict[str, Line] = {}  # by text without numbers, in order of arrival
        self._after_error = 0
        self._exception = ""  # the line before, if it names an exception whose reason is still to come
        self._counts: dict[tuple[LoadPhase, str, int], int] = {}
        self._details: set[str] = set()
        self._told = False
        self._graphs_ahead = 0
        self._graphs_done: set[str] = set()

    @property
    def ready(self) -> bool:
        """True once the engine reported that it answers requests."""
        return self.progress.phase is LoadPhase.READY

    @property
    def garbled(self) -> bool:
        """True if more than a quarter of the input is not text."""
        return self._garbage_seen > self._text_seen / 4

    @property
    def tail(self) -> Sequence[Line]:
        """Last lines without progress bars. Once the engine is ready, lines from before are dropped."""
        return [*self._tail, *([line_of(self._line)] if self._line.strip() else [])]

    @property
    def errors(self) -> Sequence[Line]:
        """Different lines that look like errors, oldest first.

        Once the engine is ready, lines from before are dropped.
        """
        return list(self._errors.values())

    def feed(self, data: bytes) -> list[LoadProgress]:
        """Parse some bytes; return the changes of progress since the last call, in order."""
        self._news = []
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            self.bytes_seen += len(piece)
            text = self._decoder.decode(piece)
            self._text_seen += len(text)
            self._garbage_seen += text.count("\ufffd") + text.count("\x00")
            *whole, rest = _ENDS.split(text)
            for end in whole:
                self._keep(end)
                self._take(self._line)
                self._line = ""
            self._keep(rest)
        self._bars(self._line)  # count a complete bar before the next one overwrites it
        return self._news

    def _keep(self, text: str) -> None:
        self._line += text[: MOST_CHARACTERS - len(self._line)]

    def _take(self, text: str) -> None:
        if not text.strip():
            return
        if self._bars(text):
            text = BAR.sub("", ANSI.sub("", text))  # another process may continue on the same line
        line = line_of(text)
        if not line.message.strip() or ANY_BAR.search(line.message):
            return
        self._remember(line)
        if not self.ready:
            self._look(line.message)

    def _remember(self, line: Line) -> None:
        line = self._with_its_exception(line)
        self._tail.append(line)
        goes_on = self._after_error > 0 and CONTINUES.match(line.message) is not None and not line.harmless
        self._after_error = _AFTER_AN_ERROR if line.error else self._after_error - 1 if goes_on else 0
        if not (line.error or goes_on):
            return
        self._errors.setdefault(_key(line.message), line)
        if len(self._errors) > ERROR_LINES:
            del self._errors[next(islice(self._errors, _FIRST_ERRORS, None))]

    def _with_its_exception(self, line: Line) -> Line:
        """Put the name of an exception before its reason, if the reason begins in a line of its own."""
        name, self._exception = self._exception, ""
        if name and not line.harmless and not line.error:
            self._errors.pop(_key(name), None)
            if self._tail:
                self._tail.pop()
            return Line(f"{name.rstrip()} {line.message.strip()}", harmless=False, error=True)
        if line.error and _REASON_FOLLOWS.match(line.message):
            self._exception = line.message
        return line

    def _look(self, message: str) -> None:
        if self._ready_when.match(message):
            self._advance(LoadPhase.READY)
            self._errors.clear()  # these errors did not stop the engine
            self._tail.clear()
            return
        self._advance(LoadPhase.STARTING)
        for sign in SIGNS:
            if match := sign.pattern.search(message):
                sign.take(self.facts, match)
                if sign.phase is not None:
                    self._advance(sign.phase, detail=sign.detail)
        self._look_for_graphs(message)

    def _look_for_graphs(self, message: str) -> None:
        if match := GRAPHS_AHEAD.match(message):
            self._graphs_ahead = sum(map(int, re.findall(r"=(\d+) \(", match[1])))
            self._advance(LoadPhase.MEMORY)
        elif match := GRAPH_SIZES.match(message):
            self._graphs_ahead = max(self._graphs_ahead, len(match[1].split(",")))
            self._advance(LoadPhase.GRAPHS, 0, self._graphs_ahead)
        elif match := TRT_GRAPHS.match(message):
            self._graphs_ahead = max(self._graphs_ahead, int(match[1]))
            self._advance(LoadPhase.GRAPHS, 0, self._graphs_ahead)
        elif (match := TRT_GRAPH.match(message)) and len(self._graphs_done) < min(
            self._graphs_ahead, _MOST_GRAPHS
        ):
            self._graphs_done.add(match[1])  # each rank prints the line, and an earlier run prints it too
            self._advance(LoadPhase.GRAPHS, len(self._graphs_done), self._graphs_ahead)

    def _bars(self, text: str) -> bool:
        """Count the progress bars of a line; return whether there were any."""
        if "%" not in text:
            return False
        counted = False
        for match in BAR.finditer(ANSI.sub("", text)):
            counted = True
            bar, done, total = bar_of(match["what"]), int(match["done"]), int(match["total"])
            if total > 0 and done <= total:
                self._count(bar, done, total)
        return counted

    def _count(self, bar: Bar, done: int, total: int) -> None:
        if bar.phase < self.progress.phase:
            return
        key = (bar.phase, bar.name, total)
        if key not in self._counts and len(self._counts) >= _MOST_NAMES:
            return
        self._counts[key] = max(done, self._counts.get(key, 0))
        here = {key: done for key, done in self._counts.items() if key[0] is bar.phase}
        known = sum(total for _, _, total in here)
        ahead = self._graphs_ahead if bar.phase is LoadPhase.GRAPHS else 0
        self._advance(bar.phase, sum(here.values()), max(known, ahead), bar.detail)

    def _advance(self, phase: LoadPhase, done: int = 0, total: int = 0, detail: str = "") -> None:
        now = self.progress
        if phase < now.phase:
            return
        if phase == now.phase:
            done, total = max(done, now.done), max(total, now.total)
            if detail in self._details or not detail or len(self._details) >= _MOST_NAMES:
                detail = now.detail  # other workers print the same detail
        else:
            self._details.clear()
        self._details.add(detail)
        new = LoadProgress(phase, done, total, detail)
        if new != now or not self._told:
            self.progress = new
            self._told = True
            self._news.append(new)


def _key(message: str) -> str:
    """Return a message without its numbers, by which equal errors are recognised."""
    return re.sub(r"\d+", "0", message[:500])


ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# Prefixes of a message: a timestamp of docker, Slurm or Dynamo; vLLM's process name (utils/system_utils.py); torch's
# rank; the level with time and location (vLLM: logger.py; SGLang: utils/common.py, configure_logger; TensorRT-LLM:
# logger.py).
_PREFIX = re.compile(
    r"(?:\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)\s+)?"
    r"(?:\((?:[A-Za-z]\w*)(?: \w+=\d+)*? pid=\d+(?:, ip=[\d.]+)?\)\s?)*"
    r"(?:\[rank\d+\]:(?=\s|\[)\s?)?"
    r"(?:"
    r"(?P<vllm>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]{1,80}\] ?"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?(?: [A-Z]{2,3}\d+)*\] ?"
    r"|\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] (?:\[TRT-LLM\] |\[TensorRT-LLM\] )?(?:\[RANK \d+\] )?\[(?P<trt>[A-Z])\] ?"
    r"|\[TensorRT-LLM\]\[(?P<cpp>[A-Z]+)\] ?"
    r"|\[(?P<glog>[IWEF])\d{4} [\d:.]+ [\w.]+:\d+\] ?"
    r"|(?P<dynamo>TRACE|DEBUG|INFO|WARN|ERROR) [\w.:]+: "
    r")?"
    r"(?:(?P<uvicorn>INFO|WARNING|ERROR|CRITICAL): {2,})?"  # SGLang puts its own timestamp before it
)
_HARMLESS = frozenset({"TRACE", "DEBUG", "INFO", "WARN", "WARNING", "I", "W", "D", "V"})
_ERROR_LEVELS = frozenset({"ERROR", "CRITICAL", "E", "F"})

_TRACEBACK_BODY = re.compile(
    r"\s|Traceback \(most recent call last\)|During handling of|The above exception|\^+$"
)
_ERROR_SIGNS = re.compile(
    r"^[\w.]*(?:Error|Exception|Interrupt|Exit)\b|\b[Ee]rror:|\bException:|\bFATAL\b|\b[Ff]atal|^Killed\b|^Aborted\b"
    r"|[Ss]egmentation fault|[Ss]egfault|Bus error|out of memory|NCCL WARN|core dumped|hit an exception"
)
_WARNS = re.compile(r"\s+warnings\.warn\(")
CONTINUES = re.compile(r"(?!Traceback|During handling|The above exception)\w|\s{1,4}(?!File )\w")
"""Lines that continue a message (huggingface_hub, pydantic write such), flush or indented."""


@dataclass(frozen=True)
class Line:
    """A line without colours and prefix."""

    message: str
    harmless: bool
    """True if the line's level is below error, or if it is the source of a Python warning."""
    error: bool


def line_of(text: str) -> Line:
    """Parse a line of a log."""
    text = _CONTROLS.sub("", ANSI.sub("", text)).rstrip()
    prefix = _PREFIX.match(text)
    assert prefix is not None, "all of the pattern may be missing"
    level = next(filter(None, prefix.groups()), None)
    message = text[prefix.end() :]
    body = _TRACEBACK_BODY.match(message) is not None
    error = (
        bool(message) and not body and (level in _ERROR_LEVELS or _ERROR_SIGNS.search(message) is not None)
    )
    harmless = level in _HARMLESS or _WARNS.match(message) is not None
    return Line(message, harmless, error and not harmless)
