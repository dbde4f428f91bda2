"""Find the line of a test's or a test program's output that a person would look at first, whichever runner wrote it."""

from __future__ import annotations

import re

MOST_LINE = 200
"""Characters of an error that people are told."""
_MARKED = re.compile(r"(?:E|INTERNALERROR>)\s+(?=\S)")
"""How pytest begins the lines of an error."""
# Python prints warnings of unclosed files after the error that ended it.
_EXCEPTION = re.compile(
    r"(?!ResourceWarning)(?:[A-Za-z_][\w.:]*)?(?:Error|Exception|Warning|Configured|Exit|NotFound)\b"
)
_FRAME = re.compile(
    r"at (?:\S+ )*\(?\S+[:.]\S+|# \S+:\d+|from \S+:\d+:in\b|\S+:\d+:in\b|\.\.\. \d+ (?:more|common)|stack backtrace:"
)
"""A line of the stack in the languages that print it below the error: JavaScript, Java, Ruby, Rust."""
_PLACE = re.compile(r"(?:file://)?[^\s:]+\.\w+:\d+(?::\d+)?:?$")
"""A line that is only the place of an error, as Node prints it above the error."""
_CAPTION = re.compile(
    r"(?:=+|-+|no tests ran in [\d.]+s?)\b.*|[=-]+.*[=-]+|\d* ?(?:failed|errors?|warnings?) in [\d.]+s"
)
_OUR_PREFIX = "_pytest.outcomes."
_NETWORK = re.compile(
    r"gaierror|Name or service not known|[Nn]ame resolution|nodename nor servname|Network is unreachable|NewConnectionError|"
    r"ENOTFOUND|EAI_AGAIN|ENETUNREACH|getaddrinfo|UnknownHostException|no such host|Could not resolve host"
)
_HOST = re.compile(
    r"(?:host='|https?://|(?:ENOTFOUND|EAI_AGAIN|lookup|UnknownHostException:|resolve host:?) +)((?:[\w-]+\.)+[A-Za-z]{2,})"
)


def _lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def error_line(text: str) -> str:
    """Return the line of an error that names the exception; otherwise the last line; empty for a blank text."""
    lines = _lines_of(text)
    marked = [_MARKED.sub("", line, count=1) for line in lines if _MARKED.match(line)]
    named = [line for line in marked or lines if _EXCEPTION.match(line)]
    last = [line for line in lines if not _CAPTION.fullmatch(line)] or lines
    return (named or marked or last or [""])[-1].removeprefix(_OUR_PREFIX)[:MOST_LINE]


def exception_line(text: str) -> str:
    """Return the line that names the last exception of a test's output.

    In pytest's output, that is the first line of the last error. Of a message above a stack, it is the line that names the
    error, or the first one. Of other output, it is the last line.
    """
    lines = _lines_of(text)
    at = max((number for number, line in enumerate(lines) if line.startswith("E ")), default=-1)
    while at > 0 and lines[at - 1].startswith("E "):
        at -= 1
    if at >= 0:
        return lines[at].removeprefix("E ").strip()
    message = [line for line in lines if not _FRAME.match(line) and not _PLACE.match(line)]
    if len(message) == len(lines) or not message:
        return lines[-1] if lines else ""
    return next(filter(_EXCEPTION.match, message), message[0])


def first_reason(text: str) -> str:
    """Return the first line of a runner's problem. If that is only a place, return the error that follows it."""
    lines = _lines_of(text)
    if lines and (_PLACE.match(lines[0]) or _FRAME.match(lines[0])):
        return exception_line(text)
    return lines[0] if lines else ""


def missing_host(text: str) -> str | None:
    """Return the host that a test could not reach, "" if the text does not name it; None if it is no fault of the network."""
    if _NETWORK.search(text) is None:
        return None
    host = _HOST.search(text)
    return host[1] if host else ""
