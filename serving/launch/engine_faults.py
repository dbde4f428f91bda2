"""Explain in one sentence why an engine ended: the cause with its numbers, and what to do.

The rows of `serving/facts/faults.toml` have a log pattern, the kind of fault, and the sentence for people. Those of `ends.toml`
tell what the end of an engine means that wrote no error.
"""

from __future__ import annotations

import difflib
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from m3agent.serving.errors import shorten
from m3agent.serving.facts.table import Row, checked, rows
from m3agent.serving.launch.engine_log import LogReader
from m3agent.serving.launch.job import EngineJob
from m3agent.serving.launch.load_signs import LoadPhase, PhaseName
from m3agent.serving.plan.engines import ENGINES

_SHOWN = 200  # most characters of a quoted log line
_VALUE = 160  # most characters of a value that a pattern found

# Messages that only follow from another fault; the explanation names that other fault.
_CONSEQUENCE = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineCore (?:failed|encountered)|WorkerProc (?:init|failed)"
    r"|^Process \S+:|output_handler failed|Received sigquit|error messages above|kill_process_tree|worker returned error"
    r"|Connection (?:closed|reset) by peer|BrokenPipe|CancelledError|KeyboardInterrupt|SystemExit|died unexpectedly"
    r"|hit an exception|cancelled|errored out|shutting down|Exception ignored in|EOFError|handshake"
)
_DIED = re.compile(
    r"EngineDeadError|engine core exited unexpectedly|died unexpectedly|Received sigquit|died with exit code"
)


SMALLEST_STEP = 128
"""A proposed context window is a multiple of this block size of M3's cache, in tokens."""


Values = dict[str, str]


def _nearest(values: Values) -> Values:
    """Return the allowed values nearest to the given one; the engine prints all of them."""
    listed = re.findall(r"[\w.:/+-]+", values["choices"])
    near = difflib.get_close_matches(values["given"].lower(), listed, n=3, cutoff=0.5) or listed[:6]
    return {"nearest": f"use one of {', '.join(near)}" if near else "see the engine's --help"}


def _parser(values: Values) -> Values:
    """Return the engine's name of M3's parser. An engine without one is older than the model."""
    listed = re.findall(r"[\w.-]+", values["choices"])
    ours = [name for name in listed if name.lower().replace("-", "_") == "minimax_m3"]
    return {
        "what_parser": values.get("what_parser", "").lower(),
        "nearest": f"take {ours[0]}" if ours else values["too_old"],
    }


def _tokens(values: Values) -> Values:
    largest = int(values["largest"]) // SMALLEST_STEP * SMALLEST_STEP
    return {
        "asked": f"{int(values['asked']):,}",
        "fits": str(largest),
        "largest": f"{int(values['largest']):,}",
    }


def _without_estimate(values: Values) -> Values:
    """Estimate the largest context window that fits.

    The KV cache grows in proportion to the window, apart from a fixed part of each sequence. So the estimate
    is slightly too low.
    """
    largest = int(int(values["asked"]) * float(values["there"]) / max(float(values["needed"]), 1e-9))
    return _tokens(values | {"largest": str(largest)})


def _positions(values: Values) -> Values:
    return {"asked": f"{int(values['asked']):,}", "most": values["most"], "shown": f"{int(values['most']):,}"}


def _held(values: Values) -> Values:
    return {"held": f"{float(values['total']) - float(values['free']):.1f}", "gpu": values["gpu"] or "0"}


def _cuda(values: Values) -> Values:
    found = int(values["found"])
    return {"cuda": f"{found // 1000}.{found % 1000 // 10}"}


def _file(values: Values) -> Values:
    tokenizer = values["tokenizer"]
    return {
        "file": values["file"] or (f"the tokenizer in {tokenizer}" if tokenizer else "its configuration"),
        "tokenizer": "",
    }


def _sizes(values: Values) -> Values:
    return {f"{name}_gb": f"{float(values[name]) / 1000:,.1f}" for name in ("size", "free")}


_RECKON: Mapping[str, Callable[[Values], Values]] = {
    "": lambda _: {},
    "nearest": _nearest,
    "parser": _parser,
    "tokens": _tokens,
    "without_estimate": _without_estimate,
    "positions": _positions,
    "held": _held,
    "cuda": _cuda,
    "file": _file,
    "sizes": _sizes,
}
"""Functions that compute further values for a sentence, by the name that a row gives."""


def _known(name: str) -> str:
    if name not in _RECKON:
        raise ValueError(f"there is no function {name}; there are {', '.join(filter(None, _RECKON))}")
    return name


_RECKONED = ("nearest", "asked", "fits", "largest", "most", "shown", "held", "cuda", "size_gb", "free_gb")
_ASKED = ("name", "too_old", "port", "next_port", "model", "gpus", "log")
_END_VALUES = ("name", "log_file", "number", "how", "when")


@dataclass(frozen=True, kw_only=True)
class FaultRow(Row):
    """One way to fail."""

    kind: str
    """Kind of fault, by its remedy."""
    pattern: Annotated[re.Pattern[str], BeforeValidator("(?m){}".format)]
    what: str
    """Template of what happened; it may name the pattern's groups, the values of `_values`, and the results of `reckon`."""
    fix: str
    until_ready: bool = False
    """True if the row counts only before the engine is ready."""
    phases: frozenset[PhaseName] = frozenset(LoadPhase)
    reckon: Annotated[str, AfterValidator(_known)] = ""
    """Name of the function that computes further values."""

    def __post_init__(self) -> None:
        for template in (self.what, self.fix):
            checked(template, (*_ASKED, *_RECKONED, *self.pattern.groupindex))

    def counts_in(self, phase: LoadPhase) -> bool:
        """Return whether the row counts in a phase of the engine."""
        return phase in self.phases and not (self.until_ready and phase is LoadPhase.READY)

    def sentence(self, values: Values, shorten: Callable[[str], str]) -> str:
        """Return the sentence for people.

        Raises:
            ValueError, OverflowError: The log's text looks like a number but is not one.
        """
        values = values | _RECKON[self.reckon](values)
        values = {name: shorten(value) for name, value in values.items()}
        return f"{self.what.format_map(values)}; {self.fix.format_map(values)}."


def _signals(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in signal.Signals.__members__:
            raise ValueError(f"there is no signal {name}")
    return names


@dataclass(frozen=True, kw_only=True)
class EndRow(Row):
    """What the end of an engine tells that wrote no error."""

    kind: str
    statuses: tuple[int, ...] = ()
    signals: Annotated[tuple[str, ...], AfterValidator(_signals)] = ()
    log: Literal["", "dying", "empty", "garbled"] = ""
    """What the log must be."""
    said: Annotated[str, AfterValidator(lambda said: checked(said, _END_VALUES))]

    def fits(self, exit_code: int | None, number: int | None) -> bool:
        """Return whether the row applies to an exit status, and to the number of the signal that it tells."""
        signals = [signal.Signals[name] for name in self.signals]
        return not (self.statuses or signals) or exit_code in self.statuses or number in signals


ROWS = rows(FaultRow, "faults")
"""All rows, from specific to vague. The first one that matches counts."""
ENDS = rows(EndRow, "ends")


@dataclass(frozen=True)
class Fault:
    """Why an engine ended."""

    kind: str
    """As in the tables; "unknown" if no row applies."""
    sentence: str


def explain(job: EngineJob, log: LogReader, exit_code: int | None, file: Path) -> Fault:
    """Explain why an engine ended. If the log tells nothing, the sentence says so.

    Args:
        exit_code: Exit status of the process, negative or 128 + N after signal N; None if unknown.
        file: The log's file, for the sentence.
    """
    lines = [line for line in (*log.errors, *log.tail) if not line.harmless]
    text, values = "\n".join(line.message for line in lines), _values(job, file)
    errors = [line.message for line in lines if line.error]
    causes = [message for message in errors if not _CONSEQUENCE.search(message)]
    fault = _by_rows(text, log, values)
    if fault is None and not causes:
        fault = _without_words(log, exit_code, values)
    return fault or _last_words(log, causes or errors, exit_code, values)


def _by_rows(text: str, reader: LogReader, context: Values) -> Fault | None:
    for row in ROWS:
        match = row.pattern.search(text) if row.counts_in(reader.progress.phase) else None
        if match is None:
            continue
        values = context | {name: value or "" for name, value in match.groupdict().items()}
        try:
            return Fault(row.kind, row.sentence(values, lambda value: _shortened(value, _VALUE)))
        except (ValueError, OverflowError):  # the log's text looks like a number but is not one
            continue
    return None


def _values(job: EngineJob, file: Path) -> Values:
    """Return what the engine was started with, for a sentence."""
    engine = ENGINES.get(job.engine)
    return {
        "name": "The engine" if engine is None else engine.title,
        "too_old": (engine or ENGINES["vllm"]).too_old,
        "port": str(job.port),
        "next_port": str(job.port + 1 if job.port < 65535 else 8000),
        "model": job.model or "the model",
        "gpus": str(job.gpus),
        "log": str(file),
    }


def _without_words(reader: LogReader, exit_code: int | None, context: Values) -> Fault | None:
    """Return the fault that the exit status or the end of the log implies; None if neither tells the cause."""
    number = _signal(exit_code)
    logs = {
        "": True,
        "dying": any(_DIED.search(line.message) for line in reader.tail),
        "empty": not reader.bytes_seen,
        "garbled": reader.garbled,
    }
    values = {
        "name": context["name"],
        "log_file": context["log"],
        "number": number,
        "how": _with(exit_code),
        "when": "while it was serving" if reader.ready else "before it was ready",
    }
    row = next((row for row in ENDS if logs[row.log] and row.fits(exit_code, number)), None)
    return None if row is None else Fault(row.kind, row.said.format_map(values))


def _last_words(reader: LogReader, errors: Sequence[str], exit_code: int | None, context: Values) -> Fault:
    lines = [line for line in reader.tail if line.message.strip()]
    lines = [line for line in lines if not line.harmless] or lines
    words = errors or [line.message for line in lines]
    shown = _shortened(words[-1]) if words else "no readable output"
    sentence = f"{context['name']} ended {_with(exit_code)}: {shown}; the full log is {context['log']}."
    return Fault("unknown", sentence)


def _with(exit_code: int | None) -> str:
    if exit_code is None:
        return "unexpectedly"
    number = _signal(exit_code)
    return f"by signal {number}" if number else f"with exit code {exit_code}"


def _signal(exit_code: int | None) -> int | None:
    """Return the signal that ended a process; None if none did.

    `subprocess` reports a signal as a negative number, a shell as 128 + N.
    """
    if exit_code is None:
        return None
    number = -exit_code if exit_code < 0 else exit_code - 128
    return number if 0 < number < signal.NSIG else None


def _shortened(text: str, limit: int = _SHOWN) -> str:
    """An engine's words as a part of our sentence."""
    return shorten(text, limit).rstrip(" .;:")
