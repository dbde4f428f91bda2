"""Write an instance's issue from the message of the fix and the errors of the failing tests.

Removed from the message: text that is not about the fault (trailers, merge lines), and text that reveals the
fix as far as rules can tell (diffs, lines of the patch, names of its files and of its new tests). If little
more than a title remains, the first errors of the failing tests are added. They come from the run before the
fix; nothing is taken from the fix itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Literal, get_args

from m3agent.evals.create.mine import MinedCommit

MOST_TESTS = 5
"""Number of failing tests whose errors are quoted."""
MOST_CHARACTERS = 6000
"""Limit for a message; a longer one is a changelog."""
MOST_WIDTH = 500
ERROR_LINES, ERROR_WIDTH = 4, 200
TERSE = 12
"""A message with fewer words than this, not counting the title, does not describe the fault."""
GIVEN_AWAY = 12
"""Shorter lines of the patch, in characters, are not searched for in messages."""

TRAILER = re.compile(
    r"(?:[A-Z][A-Za-z]*-)+(?:by|to|id|on|url|message-id|of|for)\s*:\s|(?:git-svn-id|change-id|cherry picked from)\b|"
    r"\(cherry picked from |\* commit '|Conflicts?:$|pre-commit\b",
    re.IGNORECASE,
)
MERGE = re.compile(
    r"Merge(?:d)? (?:pull request|branch|remote|in |tag|commit|PR|[\w./-]+ into )", re.IGNORECASE
)
SKIP_CI = re.compile(r"\s*\[(?:skip ci|ci skip|skip [\w-]+)\]", re.IGNORECASE)
DIFF = re.compile(r"diff --git |index [0-9a-f]{7,}\.\.|@@ -|\+\+\+ \S|--- \S")
"""The start or a header of a diff. Following lines that begin with `+`, `-` or a blank belong to it."""
REFERENCE = re.compile(
    r"[-*\s]*(?:(?:close|resolve|fix|ref|refs|reference|see|issue|pr|gh)(?:e?[sd])?\s*:?\s*)?"
    r"(?:(?:[\w.-]+/[\w.-]+)?#\d+|https?://\S+|,|and|\s|\.|\(|\))+",
    re.IGNORECASE,
)
"""A line with only references, such as an issue number. It is kept, but does not count as a description."""
PATH = re.compile(
    r"(?:\s+(?:in|of|from|to|at|for|inside|into|within))?\s+[`'\"(]*(?:[\w.-]+/)*[\w-]+\.(?:py|pyi|cfg|toml|ini|rst|md|txt)\b"
    r"(?::\d+)?[`'\")]*"
)
ERROR = re.compile(r"(?:[\w.]+\.)?\w*(?:Error|Exception|Warning|Exit|Interrupt|Failed)\b.*")
LOCATION = re.compile(r"(?:[\w.~-]*/)+[\w.-]+\.py(?::\d+)?:?\s*|\b[\w-]+\.py:\d+:?\s*")
ADDRESS = re.compile(r"\b0x[0-9a-f]{4,}\b")
Kind = Literal["bug", "feature", "unclear"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MISSING = re.compile(
    r"(?:E\s+)?(?:[\w.]+\.)?(?:(?:Import|ModuleNotFound|Attribute|Name)Error\b"
    r"|TypeError\b.*(?:unexpected keyword|takes \d+ positional|no arguments|invalid keyword))"
)
"""The error of a test that uses what the base does not have."""
NEW = re.compile(
    r"(?:feat\b|\W*(?:add|implement|introduce|support|allow|provide|enable|new)(?:s|ed|ing)?\b)",
    re.IGNORECASE,
)
"""The start of a title that announces something new."""
FIX = 2
"""A message with at least this score (`m3agent.evals.create.mine.score`) describes a fix."""


def statement_of(candidate: MinedCommit, errors: Mapping[str, str]) -> tuple[str, str]:
    """Return the statement and its origin: `message`, `message and tests` or `tests`."""
    message = cleaned_message(candidate)
    lines = [line for line in message.splitlines() if line.strip() and not REFERENCE.fullmatch(line)]
    body = [line for line in lines[1:] if not line.startswith("* ")]  # titles of a squashed branch
    if len(re.findall(r"\w{2,}", " ".join(body))) >= TERSE:
        return f"{message}\n", "message"
    if not body:
        message = "\n".join(line for line in message.splitlines() if not line.startswith("* ")).strip()
    seen = seen_by_users(errors)
    if not lines:
        first = next((summary[0] for summary in map(first_error, errors.values()) if summary), "A fault")
        return "\n\n".join(filter(None, (first, message, seen))) + "\n", "tests"
    return f"{message}\n\n{seen}\n", "message and tests"


def cleaned_message(candidate: MinedCommit) -> str:
    """Return the first informative message of a candidate, without the text that reveals the fix."""
    texts = [_cleaned(message, candidate) for message in candidate.messages]
    return next((text for text in texts if _says_something(text)), texts[0] if texts else "")


def seen_by_users(errors: Mapping[str, str]) -> str:
    """Describe failing tests: their names, without files, and the error of each."""
    lines = ["This is what I see:", ""]
    shown = dict(sorted(errors.items())[:MOST_TESTS])
    for ident, text in shown.items():
        name = ident.partition("::")[2].partition("[")[0] or "importing the tests"
        what = first_error(text)
        lines.append(f"- `{name}` fails" + (":" if what else "."))
        lines += ["", "  ```", *(f"  {line}" for line in what), "  ```", ""] if what else []
    if len(errors) > len(shown):
        lines.append(f"{len(errors) - len(shown)} more fail in the same way or a similar one.")
    return "\n".join(lines).rstrip()


def first_error(text: str) -> list[str]:
    """Return the error of a failing test: at most four lines, without file locations."""
    told = [line[1:].strip() for line in text.splitlines() if re.match(r"E(?:\s|$)", line)]
    if not told:
        told = [line.strip() for line in text.splitlines() if ERROR.match(line.strip())][-1:]
    lines = (ADDRESS.sub("0x", LOCATION.sub("", line)).strip() for line in told)
    return [line[:ERROR_WIDTH] for line in lines if line][:ERROR_LINES]


def _cleaned(message: str, candidate: MinedCommit) -> str:
    added = _added_lines(candidate.patch)
    lines: list[str] = []
    in_diff = False
    for raw in message[:MOST_CHARACTERS].replace("\r\n", "\n").splitlines():
        line = SKIP_CI.sub("", raw.rstrip()[:MOST_WIDTH])
        bare = line.strip()
        in_diff = bool(DIFF.match(bare)) or (in_diff and line.startswith(("+", "-", " ")))
        if in_diff or TRAILER.match(bare) or MERGE.match(bare) or _gives_away(bare, added):
            continue
        if any(re.search(rf"\b{re.escape(name)}\b", bare) for name in candidate.test_names if "_" in name):
            continue
        lines.append(_without_paths(line, candidate.paths))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _gives_away(line: str, added: set[str]) -> bool:
    """Return whether a line is one that the patch adds, or contains a long one."""
    return line.strip("`* ") in added or any(len(code) >= 2 * GIVEN_AWAY and code in line for code in added)


def _without_paths(line: str, paths: Sequence[str]) -> str:
    """Remove file names from a line; return an empty string if nothing else remains."""
    for path in paths:
        line = line.replace(path, " a.py") if path in line and path.endswith(".py") else line
    left = PATH.sub("", f" {line}").removeprefix(" ") if PATH.search(f" {line}") else line
    for name in {PurePosixPath(path).name for path in paths if "." in path}:
        left = left.replace(name, "the file")
    return left if re.search(r"\w{2}", left) else ""


def _added_lines(patch: str) -> set[str]:
    lines = (line.strip() for line in lines_of(patch)[0])
    return {line for line in lines if len(line) >= GIVEN_AWAY}


def lines_of(patch: str) -> tuple[list[str], list[str]]:
    """Return the lines that a patch adds, and those that it removes or shows."""
    lines = [line for line in patch.splitlines() if not line.startswith(("+++", "---"))]
    added = [line[1:] for line in lines if line.startswith("+")]
    return added, [line[1:] for line in lines if line.startswith((" ", "-"))]


def _says_something(text: str) -> bool:
    """Return whether the title says more than that something was fixed."""
    title = next((line for line in text.splitlines() if line.strip() and not REFERENCE.fullmatch(line)), "")
    words = set(re.findall(r"[a-z]{2,}", title.lower()))
    return (
        len(words - {"fix", "fixes", "fixed", "bug", "bugs", "issue", "wip", "tests", "test", "the", "merge"})
        >= 2
    )


def kind_of(candidate: MinedCommit, errors: Mapping[str, str]) -> Kind:
    """Tell a bug report from a feature, by what the tests show and what the message says.

    A feature's tests use names that the base does not have, so they fail for that reason and not for a wrong result.
    """
    new = NEW.match(_title(candidate.messages)) is not None
    missing = [any(map(MISSING.match, first_error(text))) for text in errors.values()]
    if missing and all(missing):
        return "feature" if new or candidate.score < FIX else "unclear"
    if candidate.score >= FIX:
        return "bug"
    return "feature" if new else "unclear"


def _title(messages: Iterable[str]) -> str:
    return next((line.strip() for message in messages for line in message.splitlines() if line.strip()), "")
