"""Explain in one sentence why an engine ended: the cause with its numbers, and what to do."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from m3agent.serving.errors import shorten
from m3agent.serving.launch.engine_log import LogReader
from m3agent.serving.launch.fault_rows import NAMES, ROWS, TOO_OLD, FaultKind, FaultRow, LaunchContext, Values

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
    """Why an engine ended.

    Attributes:
        kind: Kind of the fault.
        sentence: Explanation for people.
        evidence: Line of the log that shows it; empty if there is none.
        source: Where the matching rule comes from.
    """

    kind: FaultKind
    sentence: str
    evidence: str = ""
    source: str = ""


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
        engine: Name of the engine: vllm, sglang, trtllm or dynamo.
        log: The reader that followed the log, the log's file, or its text.
        exit_code: Exit status of the process, negative or 128 + N after signal N; None if unknown.
        asked: What the engine was started with.
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
        if row.phases is not None and reader.progress.phase not in row.phases:
            continue
        found = row.pattern.search(text)
        sentence = _sentence(row, found, engine, asked) if found is not None else None
        if found is not None and sentence is not None:
            return Fault(row.kind, sentence, _shortened(_line_around(text, found)), row.source)
    return None


def _sentence(row: FaultRow, found: re.Match[str], engine: str, asked: LaunchContext) -> str | None:
    values: Values = {
        "name": _name(engine),
        "too_old": TOO_OLD.get(engine, TOO_OLD["vllm"]),
        "port": str(asked.port),
        "next_port": str(asked.port + 1 if asked.port < 65535 else 8000),
        "model": asked.model or "the model",
        "gpus": str(asked.gpus),
        "log": str(asked.log),
    }
    values |= {name: value or "" for name, value in found.groupdict().items()}
    if row.reckon is not None:
        try:
            values |= row.reckon(values)
        except (ValueError, OverflowError):  # the log's text looks like a number but is not one
            return None
    values = {name: _shortened(value, _VALUE) for name, value in values.items()}
    return f"{row.what.format_map(values)}; {row.fix.format_map(values)}."


def _line_around(text: str, found: re.Match[str]) -> str:
    start = text.rfind("\n", 0, found.start()) + 1
    end = text.find("\n", found.start())
    return text[start : end if end >= 0 else len(text)]


def _without_words(
    engine: str, reader: LogReader, errors: Sequence[str], exit_code: int | None, asked: LaunchContext
) -> Fault | None:
    """Return the fault that the exit status or the end of the log implies; None if neither tells the cause."""
    number, name, log = _signal(exit_code), _name(engine), asked.log
    if exit_code == 127:
        return Fault(
            FaultKind.PROGRAM,
            f"{name} is not installed in this environment; install it there, or activate the "
            "environment that has it.",
        )
    if number == signal.SIGKILL:
        return Fault(
            FaultKind.HOST_MEMORY,
            f"{name} was killed without a message, as the kernel does when main memory (not the GPUs') runs "
            "out; give the machine or container more memory, or stop other programs; dmesg names the killed process.",
        )
    if number == signal.SIGBUS:
        return Fault(
            FaultKind.SHARED_MEMORY,
            f"{name} was ended by a bus error, usually because /dev/shm is full; start the container with "
            "--ipc=host or --shm-size=16g.",
        )
    if number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL):
        return Fault(
            FaultKind.GPU_FAULT,
            f"{name} crashed (signal {number}) and gave no reason; see the end of {log}, and check that the versions "
            "of driver, torch and engine are compatible.",
        )
    if any(_DIED.search(line.message) for line in reader.tail):
        when = "while it was serving" if reader.ready else "before it was ready"
        return Fault(
            FaultKind.DIED,
            f"{name}'s core ended {when} and gave no reason: it was killed, or crashed on the GPU; see "
            f"dmesg and the end of {log}.",
            _shortened(errors[-1]) if errors else "",
        )
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return Fault(
            FaultKind.STOPPED,
            f"{name} was stopped by signal {number}; start it again if that was not intended.",
        )
    if not reader.bytes_seen:
        return Fault(
            FaultKind.UNKNOWN,
            f"{name} ended {_with(exit_code)} and wrote nothing to {log}; run its command by hand (m3agent "
            "serve --dry-run prints it) to see its output.",
        )
    if reader.garbled:
        return Fault(
            FaultKind.LOG,
            f"{name} ended {_with(exit_code)}, and its log {log} is not text, so the reason is unknown; start "
            "it again.",
        )
    if exit_code == 0:
        return Fault(
            FaultKind.STOPPED,
            f"{name} ended without an error; if that was not intended, see the end of {log}.",
        )
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
    return NAMES.get(engine, "The engine")


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
