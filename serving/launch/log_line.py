"""Parse one line of an engine's log: drop colours and the prefix before the message."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
    r"|[Ss]egmentation fault|[Ss]egfault|Bus error|out of memory|NCCL WARN|core dumped|hit an exception",
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
    found = _PREFIX.match(text)
    assert found is not None, "all of the pattern may be missing"
    level = (
        found["vllm"] or found["trt"] or found["cpp"] or found["dynamo"] or found["glog"] or found["uvicorn"]
    )
    message = text[found.end() :]
    body = _TRACEBACK_BODY.match(message) is not None
    error = (
        bool(message) and not body and (level in _ERROR_LEVELS or _ERROR_SIGNS.search(message) is not None)
    )
    harmless = level in _HARMLESS or _WARNS.match(message) is not None
    return Line(message, harmless, error and not harmless)
