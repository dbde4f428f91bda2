"""What of a result is noise: two results that differ in nothing else are the same result."""

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
"""Not those that count what there is still to do: fewer errors than before is progress."""
ERROR_LINE = re.compile(
    r"(?:\b\w*(?:Error|Exception)\b|\berror\b ?[:\[]|\bfatal\b|\bnot found\b|\bNo such file\b|\bcannot\b|"
    r"\bcommand not found\b|\bPermission denied\b|\bcould not\b|\bunable to\b|\brefused\b|\bE\d{3} )",
    re.IGNORECASE,
)
SAYS_LITTLE = re.compile(r"AssertionError|^Traceback|^E +assert")
"""An assertion that fails says that the code is still wrong, not that the same mistake was made again."""
OMITTED = re.compile(r"^\[\.\.\. .* omitted \.\.\.\]$", re.MULTILINE)


def normal(text: str, *, fold_digits: bool) -> str:
    """The text without what changes from one run to the next; with `fold_digits` without the numbers in it either.

    That is for failures: in the output of what succeeded a number that changes is progress.
    """
    text = ESCAPES.sub("", text).replace("\r\n", "\n")
    text = SPINNER.sub("", text)
    text = TEMPORARY.sub("<tmp>", text)
    text = VOLATILE.sub(lambda match: f"<{match.lastgroup}>", text)
    text = PROCESS.sub(r"\1\2<pid>", text)
    if fold_digits:
        text = NUMBER.sub("#", text)
    # of a line that was written over, what a terminal shows in the end
    lines = (line.rstrip().rpartition("\r")[2].rstrip() for line in text.split("\n"))
    return "\n".join(lines).strip()


def says_failed(content: str) -> bool:
    """Whether the words of an output are those of a failure: for commands whose exit code is not known."""
    return ERROR_LINE.search(content) is not None


def error_class(text: str) -> str:
    """What kind of error a normalised failure tells of: its first lines that speak of one; empty if none does."""
    lines: list[str] = []
    for line in text.split("\n"):
        if ERROR_LINE.search(line) and not SAYS_LITTLE.search(line) and line.strip() not in lines:
            lines.append(line.strip())
            if len(lines) == 2:
                break
    return "\n".join(lines)


def call_key(name: str, arguments: dict[str, Any] | None) -> str:
    """The identity of a call: its tool and arguments, whatever their order and the blanks around them."""
    folded = {
        key: value.strip() if isinstance(value, str) else value for key, value in (arguments or {}).items()
    }
    return hashed(json.dumps([name, arguments is None, folded], sort_keys=True))


def hashed(text: str) -> str:
    """A short stand-in for a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
