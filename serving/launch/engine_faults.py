"""Explain in one sentence why an engine ended: the cause with its numbers, and what to do."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from m3agent.serving.errors import shorten
from m3agent.serving.launch.engine_log import LogReader
from m3agent.serving.launch.fault_rows import ENDS, ROWS, FaultKind, LaunchContext, Values
from m3agent.serving.plan.engines import ENGINES

__all__ = ["Fault", "FaultKind", "LaunchContext", "explain", "read_log"]

_SHOWN = 200  # most characters of a quoted log line
_VALUE = 160  # most characters of a value that a pattern found
_START_BYTES, _END_BYTES = 8 << 20, 8 << 20

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


@dataclass(frozen=True)
class Fault:
    """Why an engine ended."""

    kind: FaultKind
    sentence: str
    evidence: str = ""
    """Line of the log that shows it; empty if there is none."""
    source: str = ""
    """Where the matching rule comes from."""


def read_log(path: Path, engine: str | None = None) -> LogReader:
    """Read a log from a file; of a log above 16 MiB only the first and the last 8 MiB.

    Raises:
        OSError: The file cannot be read.
    """
    reader = LogReader(engine)
    with path.open("rb") as file:
        reader.feed(file.read(_START_BYTES))
        size = file.seek(0, 2)
        file.seek(max(_START_BYTES, size - _END_BYTES))
        reader.feed(file.read(_END_BYTES))
    return reader


def explain(engine: str, log: LogReader | Path | str, exit_code: int | None, asked: LaunchContext) -> Fault:
    """Explain why an engine ended.

    The function never raises. If the log tells nothing, the sentence says so.

    Args:
        exit_code: Exit status of the process, negative or 128 + N after signal N; None if unknown.
    """
    if isinstance(log, Path):
        try:
            reader = read_log(log, engine)
        except OSError as error:
            why = error.strerror or type(error).__name__
            return Fault(
                FaultKind.LOG,
                f"{_name(engine)} ended {_with(exit_code)}, and the reason is unknown because its log {log} "
                f"cannot be read ({why}); start it again and read its output.",
            )
    elif isinstance(log, str):
        reader = LogReader(engine)
        reader.feed(log.encode(errors="replace"))
    else:
        reader = log
    said = [line for line in (*reader.errors, *reader.tail) if not line.harmless]
    known = _known(engine, "\n".join(line.message for line in said), reader, asked)
    if known is not None:
        return known
    errors = [line.message for line in said if line.error]
    causes = [message for message in errors if not _CONSEQUENCE.search(message)]
    fault = None if causes else _without_words(engine, reader, errors, exit_code, asked)
    return fault or _last_words(engine, reader, causes or errors, exit_code, asked)


def _known(engine: str, text: str, reader: LogReader, asked: LaunchContext) -> Fault | None:
    for row in ROWS:
        found = row.pattern.search(text) if row.counts_in(reader.progress.phase) else None
        if found is None:
            continue
        values = _values(engine, asked) | {name: value or "" for name, value in found.groupdict().items()}
        try:
            sentence = row.sentence(values, lambda value: _shortened(value, _VALUE))
        except (ValueError, OverflowError):  # the log's text looks like a number but is not one
            continue
        return Fault(row.kind, sentence, _shortened(_line_around(text, found)), row.source)
    return None


def _values(engine: str, asked: LaunchContext) -> Values:
    """Return what the engine was started with, for a sentence."""
    return {
        "name": _name(engine),
        "too_old": (ENGINES.get(engine) or ENGINES["vllm"]).too_old,
        "port": str(asked.port),
        "next_port": str(asked.port + 1 if asked.port < 65535 else 8000),
        "model": asked.model or "the model",
        "gpus": str(asked.gpus),
        "log": str(asked.log),
    }


def _line_around(text: str, found: re.Match[str]) -> str:
    start = text.rfind("\n", 0, found.start()) + 1
    end = text.find("\n", found.start())
    return text[start : end if end >= 0 else len(text)]


def _without_words(
    engine: str, reader: LogReader, errors: Sequence[str], exit_code: int | None, asked: LaunchContext
) -> Fault | None:
    """Return the fault that the exit status or the end of the log implies; None if neither tells the cause."""
    number = _signal(exit_code)
    logs = {
        "": True,
        "dying": any(_DIED.search(line.message) for line in reader.tail),
        "empty": not reader.bytes_seen,
        "garbled": reader.garbled,
    }
    values = {
        "name": _name(engine),
        "log_file": asked.log,
        "number": number,
        "how": _with(exit_code),
        "when": "while it was serving" if reader.ready else "before it was ready",
    }
    for row in ENDS:
        if logs[row.log] and row.fits(exit_code, number):
            evidence = _shortened(errors[-1]) if errors and row.log == "dying" else ""
            return Fault(row.kind, row.said.format_map(values), evidence)
    return None


def _last_words(
    engine: str, reader: LogReader, errors: Sequence[str], exit_code: int | None, asked: LaunchContext
) -> Fault:
    lines = [line for line in reader.tail if line.message.strip()]
    lines = [line for line in lines if not line.harmless] or lines
    words = errors or [line.message for line in lines]
    shown = _shortened(words[-1]) if words else "no readable output"
    return Fault(
        FaultKind.UNKNOWN,
        f"{_name(engine)} ended {_with(exit_code)}: {shown}; the full log is {asked.log}.",
        shown,
    )


def _name(engine: str) -> str:
    return ENGINES[engine].title if engine in ENGINES else "The engine"


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
