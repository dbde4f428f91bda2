"""Normalise results: remove noise, so that results that differ only in noise compare as equal."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from m3agent.tools.base import ESCAPES

SPINNER = re.compile("[\u2800-\u28ff]")
TEMPORARY = re.compile(r"/(?:var/)?tmp/[^\s'\":,;)\]]+")
PROCESS = re.compile(r"(pid|PID|[Pp]rocess)([ =:#]+)\d+")
VOLATILE = re.compile(
    r"""\b(?:
    (?P<uuid>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b)
    |(?P<hex>0x[0-9a-fA-F]+\b
      # a hash: letters and digits, so that neither words nor numbers are taken for one
      |(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{7,64}\b)
    |(?P<time>\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?
      |\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?\b(?!:)
      |(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),?[ ])?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[ ]+\d{1,2}(?=[ ]))
    |(?P<duration>\d+(?:\.\d+)?[ ]?(?:ns|[uµ]s|ms|s|secs?|seconds?|minutes?|mins?)\b)
    )""",
    re.VERBOSE,
)
COUNTED = r"passed|failed|failures?|errors?|warnings?|skipped|tests?|problems?|issues?|matches|files?|left|remaining"
NUMBER = re.compile(rf"(?<!\d)\d++(?![ ](?:{COUNTED})\b)", re.IGNORECASE)
"""Numbers, except those that count remaining work: fewer errors than before is progress."""
ERROR_LINE = re.compile(
    r"(?:\b\w*(?:Error|Exception)\b|\berror\b ?[:\[]|\bfatal\b|\bnot found\b|\bNo such file\b|\bcannot\b|"
    r"\bcommand not found\b|\bPermission denied\b|\bcould not\b|\bunable to\b|\brefused\b|\bE\d{3} )",
    re.IGNORECASE,
)
SAYS_LITTLE = re.compile(r"AssertionError|^Traceback|^E +assert")
"""Lines that do not identify an error: a failed assertion says that the code is still wrong, not which mistake it is."""
OMITTED = re.compile(r"^\[\.\.\. .* omitted \.\.\.\]$", re.MULTILINE)


def normal(text: str, *, fold_digits: bool) -> str:
    """Return the text without the parts that change from run to run.

    Args:
        text: Output of a call.
        fold_digits: Replace numbers as well. Use it for failures only: in the output of a success, a number that
            changes is progress.
    """
    text = ESCAPES.sub("", text).replace("\r\n", "\n")
    text = SPINNER.sub("", text)
    text = TEMPORARY.sub("<tmp>", text)
    text = VOLATILE.sub(lambda match: f"<{match.lastgroup}>", text)
    text = PROCESS.sub(r"\1\2<pid>", text)
    if fold_digits:
        text = NUMBER.sub("#", text)
    # after carriage returns, keep what a terminal shows in the end
    lines = (line.rstrip().rpartition("\r")[2].rstrip() for line in text.split("\n"))
    return "\n".join(lines).strip()


def says_failed(content: str) -> bool:
    """Return whether an output reads like a failure; used for commands with unknown exit status."""
    return ERROR_LINE.search(content) is not None


def error_class(text: str) -> str:
    """Return the class of error in a normalised failure: its first two distinct lines that name an error, or empty."""
    lines: list[str] = []
    for line in text.split("\n"):
        if ERROR_LINE.search(line) and not SAYS_LITTLE.search(line) and line.strip() not in lines:
            lines.append(line.strip())
            if len(lines) == 2:
                break
    return "\n".join(lines)


def call_key(name: str, arguments: dict[str, Any] | None) -> str:
    """Return the identity of a call: its tool and arguments, regardless of their order and surrounding whitespace."""
    folded = {
        key: value.strip() if isinstance(value, str) else value for key, value in (arguments or {}).items()
    }
    return hashed(json.dumps([name, arguments is None, folded], sort_keys=True))


def hashed(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
