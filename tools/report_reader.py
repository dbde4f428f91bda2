"""Read the report of a test program in the sandbox (`m3agent.tools.in_sandbox`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from m3agent.tools.base import readable
from m3agent.tools.execution_map import ExecutionMap, MapReader, encodable
from m3agent.tools.runners.records import authentic_lines
from m3agent.tools.test_report import NO_SIGNS, Hook, Reached, Signs

CUT_SHORT = frozenset({"2", "3"})  # pytest's exit codes for an interruption and for an internal error
BAD = frozenset({"failed", "error"})
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")
"""Address of an object in an id or an error. It differs in every run."""
_DIGITS = re.compile(r"[0-9]{1,9}")
_ESCAPED = re.compile(rb"[\x20-\x7e]*")


@dataclass
class Reading:
    """What a report says."""

    outcomes: dict[str, str] = field(default_factory=dict)
    """`passed`, `failed`, `error`, `skipped` or `xfailed`, by id."""
    errors: dict[str, str] = field(default_factory=dict)
    """Error texts of the tests that failed or could not run, by id."""
    running: str | None = None
    status: str | None = None
    """Exit status of the run; None if it did not come to its end."""
    stopped: bool = False
    """Whether the time for starting tests was over before all of them had started."""
    executed: ExecutionMap | None = None
    """Which functions each test executed, if that was recorded."""
    signs: Signs = NO_SIGNS
    arguments: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether all tests ran."""
        return self.status is not None and self.status not in CUT_SHORT


def _ident(raw: str) -> str:
    return ADDRESS.sub("0x", encodable(raw))


def _number(text: str) -> int:
    """Return the number that a text is; -1 for any other text, which code that found the key may write."""
    return int(text) if _DIGITS.fullmatch(text) else -1


def read_report(report: bytes, key: bytes) -> Reading:
    """Read a report.

    A line counts if it has the next number and a valid authentication code. After a line that is missing nothing counts,
    so the run has no end.
    """
    reading, started, executed = Reading(), Counter[str](), MapReader()
    for line in authentic_lines(report, key):
        if not _ESCAPED.fullmatch(line.replace(b"\t", b" ")):
            break
        fields = (
            part.decode("ascii").encode("latin-1").decode("unicode_escape") for part in line.split(b"\t")
        )
        _take(reading, started, executed, [*fields])
    reading.executed = executed.map(started)
    return reading


def _take(reading: Reading, started: Counter[str], executed: MapReader, fields: Sequence[str]) -> None:
    """Add one line to a reading."""
    match fields:
        case "start", raw:
            reading.running = _ident(raw)
            started[reading.running] += 1
        case "result", raw, outcome, _, text:
            ident = _ident(raw)
            reading.running = None if reading.running == ident else reading.running
            if reading.outcomes.get(ident) not in BAD:
                reading.outcomes[ident] = outcome
                if text:  # of a file that skips itself, why
                    reading.errors[ident] = _shown(text)
        case "code", path, line, name:
            executed.add_function([path, _number(line), name])
        case "ran", raw, codes, elsewhere:
            executed.add_test(_ident(raw), codes, elsewhere)
        case "end", status, stopped:
            reading.status, reading.stopped = status, bool(stopped)
            is_green = not {"passed", "xfailed"}.isdisjoint(reading.outcomes.values())
            if reading.signs.canaries == (0, 0) and (stopped or not is_green):
                # the time was over before the first one, or no test ran, as if a file cannot be imported: nothing is forged
                reading.signs = replace(reading.signs, canaries=None)
        case "command", *arguments:
            reading.arguments = tuple(map(encodable, arguments))
        case _:
            reading.signs = _with_sign(reading.signs, fields)


def _with_sign(signs: Signs, fields: Sequence[str]) -> Signs:
    """Return signs with that of one line; the same ones for a line of another version."""
    match fields:
        case "forged", what:
            return replace(signs, forged=(*signs.forged, _shown(what)))
        case "hook", path, name, function:
            return replace(signs, hooks=(*signs.hooks, Hook(encodable(path), _shown(name), _shown(function))))
        case "reached", path, number, name:
            place = Reached(encodable(path), _number(number), _shown(name))
            return replace(signs, reached=(*signs.reached, place))
        case "blind", what:
            return replace(signs, blind=_shown(what))
        case "canaries", ran, failed:
            return replace(signs, canaries=(_number(ran), _number(failed)))
        case _:
            return signs


def _shown(text: str) -> str:
    return readable(text.encode("utf-8", "replace"))
