"""What a pull request says: title, body, the commit's message and the branch's name.

Most of it was written by strangers: the issue, the model, names of files and tests. None of it may ping anybody, close
an issue or pass for our own words, in Markdown or in a commit's message, which a body becomes when it is squashed. So
it stands in fenced code, and what GitHub would act on is broken by a space there too.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from m3agent import __version__
from m3agent.agent.context.output import redact_text
from m3agent.agent.issue import Issue
from m3agent.agent.issue_tracker.names import Project
from m3agent.agent.printable import replace_unprintable
from m3agent.agent.verify import Verification

TITLE_LENGTH = 100
"""Characters of a title at most; GitHub takes 256 and shows about 70 in lists."""

WORDS_LENGTH = 4_000
"""Characters kept of the model's last words."""

MOST_LISTED, ENTRY_LENGTH = 30, 200
"""Entries of a list, and characters of each: all together stays far below the 65,536 characters that GitHub takes."""

SLUG_LENGTH = 40

# Mentions; issues by number, as GH-1, and by address. GitHub acts on them without regard to case.
_LIVE = re.compile(
    r"@(?=\S)|#(?=\d)|(?<![a-z0-9])gh-(?=\d)|/(?:issues|pull|discussions)/(?=\d)", re.IGNORECASE
)


_OPENINGS = {
    "verified": "This patch was made by a program. Fresh sandboxes saw tests turn from red to green with it, and none "
    "the other way. Read it before you merge it.",
    "unverified": "**Nothing has checked this patch**, which was made by a program: there was no test to check it by. "
    "It is a draft until somebody has read and tried it.",
}


@dataclass(frozen=True)
class Work:
    """What is offered. patched: the files changed; words: the model's last; uncommitted: how many files of the user's
    differed from the commit, so that the tests saw what the pull request does not hold."""

    issue: Issue
    patched: Sequence[str]
    evidence: Verification
    words: str
    model: str
    uncommitted: int = 0


def title(issue_title: str) -> str:
    """One line for a pull request or commit."""
    return _line(f"Fix: {issue_title}", TITLE_LENGTH)


def commit_message(issue: Issue, verdict: str) -> str:
    """The message of the commit with the patch."""
    return f"{title(issue.title)}\n\nMade by m3agent {__version__}; verdict: {verdict}.\n"


def branch_name(issue: Issue, taken: Container[str]) -> str:
    """A name for a branch, made from the issue: by its number on a tracker, else by its title. Not in `taken`."""
    number = re.search(r"://.*/(?:issues|work_items)/([0-9]+)$", issue.source)
    words = re.sub(r"[^a-z0-9]+", "-", issue.title.lower()).strip("-")
    slug = number[1] if number else words[:SLUG_LENGTH].rstrip("-") or issue.digest[:12]
    name, count = f"m3agent/{slug}", 1
    while name in taken:
        count += 1
        name = f"m3agent/{slug}-{count}"
    return name


def closes(issue: Issue, project: Project) -> str:
    """The line by which merging closes the issue, if it is one of the GitHub that `project` is on; else empty."""
    found = re.fullmatch(
        rf"{re.escape(project.web)}/([\w.-]+/[\w.-]+)/issues/([0-9]+)", issue.source, re.ASCII
    )
    if project.kind != "github" or found is None:
        return ""
    return f"Fixes {'' if found[1].lower() == project.project.lower() else found[1]}#{found[2]}"


def body(work: Work, project: Project) -> str:
    """The body in GitHub's Markdown, for a pull request on `project`, of a verified or unverified patch."""
    evidence = work.evidence
    parts = [_OPENINGS[evidence.verdict], closes(work.issue, project)]
    parts += ["## Evidence", fenced(_line(f"{evidence.verdict}: {evidence.reason}", 500))]
    parts += _listed("Red before, green with the patch", evidence.fixed)
    parts += _listed("Broken", evidence.broken)
    parts += _listed("Red before and still red", evidence.still_red)
    parts += _listed("Tests that the patch adds", evidence.new_tests)
    parts += _listed("Flaky, left out of account", evidence.flaky)
    if work.uncommitted:
        parts.append(
            f"The tests ran with uncommitted changes to {work.uncommitted} "
            f"{'file' if work.uncommitted == 1 else 'files'} that this pull request does not hold."
        )
    parts += _listed("Files changed", work.patched)
    parts += ["## What the model says", "Its own words, checked by nobody:", fenced(_words(work.words))]
    model = _line(work.model, ENTRY_LENGTH).replace("`", "'")
    parts.append(f"Made by m3agent {__version__} with `{model or 'a model without a name'}`.")
    return "\n\n".join(part for part in parts if part) + "\n"


def fenced(text: str) -> str:
    """`text` as a block of code that nothing in it can end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _listed(heading: str, entries: Iterable[str]) -> list[str]:
    """A heading with the number of entries, and the first of them; nothing without any."""
    lines = [_line(entry, ENTRY_LENGTH) for entry in entries]
    if not lines:
        return []
    some = f", the first {MOST_LISTED}" if len(lines) > MOST_LISTED else ""
    return [f"{heading} ({len(lines)}{some}):", fenced("\n".join(lines[:MOST_LISTED]))]


def _words(text: str) -> str:
    lines = [_inert(line) for line in redact_text(_as_unicode(text)).strip().splitlines()]
    words = "\n".join(lines)
    return words if len(words) <= WORDS_LENGTH else words[: WORDS_LENGTH - 1] + "…"


def _line(text: str, limit: int) -> str:
    """`text` as one line of at most `limit` characters that does nothing."""
    line = " ".join(_inert(redact_text(_as_unicode(text))).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def _inert(line: str) -> str:
    """Without control characters, and with nothing in it that GitHub acts on."""
    return _LIVE.sub(lambda match: f"{match[0]} ", replace_unprintable(line))


def _as_unicode(text: str) -> str:
    """Names of files may hold bytes that are no UTF-8."""
    return text.encode("utf-8", "replace").decode()
