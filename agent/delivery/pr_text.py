"""Write the texts of a pull request: title, body, commit message and branch name.

Most of the content comes from strangers: the issue, the model's text, names of files and tests. It must not
ping anybody, close an issue, or look like m3agent's own words. This holds in Markdown and also in a commit
message, because GitHub uses the body as the commit message when it squashes. Therefore such content stands in
fenced code, and a space breaks up whatever GitHub would act on.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from m3agent import __version__
from m3agent.agent.certificate.build import maker_of
from m3agent.agent.context.output import redact_text
from m3agent.agent.forge.address import Project
from m3agent.agent.issue.load import Issue
from m3agent.agent.report.words import fresh_places
from m3agent.agent.verify.test_sets import TEST_SETS
from m3agent.agent.verify.verify import Verification
from m3agent.util.counted import counted
from m3agent.util.sanitize import replace_unprintable, without_breaks

TITLE_LENGTH = 100
"""The longest title, in characters. GitHub accepts 256 and shows about 70 in lists."""

WORDS_LENGTH = 4_000
"""The most characters of the model's final message."""

MOST_LISTED, ENTRY_LENGTH = 30, 200
"""The most entries of a list, and the most characters of an entry. All lists together stay far below the
65,536 characters that GitHub accepts.
"""

SLUG_LENGTH = 40

# Mentions; issues by number, as GH-1, and by address. GitHub ignores their case.
_LIVE = re.compile(
    r"@(?=\S)|#(?=\d)|(?<![a-z0-9])gh-(?=\d)|/(?:issues|pull|discussions)/(?=\d)", re.IGNORECASE
)


_OPENINGS = {
    "verified": "A program made this patch. In {fresh_places}, tests turned from red to green with it, and none "
    "from green to red. Read it before you merge it.",
    "unverified": "**Nothing has checked this patch**, which a program made: no test could check it. It "
    "is a draft until somebody has read and tried it.",
}


@dataclass(frozen=True)
class Work:
    """The content of a pull request."""

    issue: Issue
    """The issue that the patch fixes."""
    patched: Sequence[str]
    """The paths of the changed files."""
    evidence: Verification
    """The result of the verification."""
    words: str
    """The model's final message."""
    model: str
    """The model's name."""
    uncommitted: int = 0
    """The number of the user's files that differed from HEAD. The tests saw these changes, but the pull request does
    not contain them."""
    isolated: bool = True
    """Whether the sandbox isolated the tests."""


def title(issue_title: str) -> str:
    """Return the title of the pull request and of the commit: one line."""
    return one_line(f"Fix: {issue_title}", TITLE_LENGTH)


def commit_message(issue: Issue, verdict: str) -> str:
    """Return the message of the commit with the patch."""
    return f"{title(issue.title)}\n\nMade by m3agent {__version__}; verdict: {verdict}.\n"


def branch_name(issue: Issue, taken: Container[str]) -> str:
    """Return a branch name that is not in `taken`: from the issue's number on a tracker, else its title."""
    number = re.search(r"://.*/(?:issues|work_items)/([0-9]+)$", issue.source)
    words = re.sub(r"[^a-z0-9]+", "-", issue.title.lower()).strip("-")
    slug = number[1] if number else words[:SLUG_LENGTH].rstrip("-") or issue.digest[:12]
    name, count = f"m3agent/{slug}", 1
    while name in taken:
        count += 1
        name = f"m3agent/{slug}-{count}"
    return name


def closes(issue: Issue, project: Project) -> str:
    """Return the line that makes a merge close the issue.

    It is empty if the issue is not on the same server as `project`.
    """
    server = project.server
    path = r"[\w./-]+" if server.subgroups else r"[\w.-]+/[\w.-]+"
    named = re.fullmatch(
        rf"{re.escape(project.web)}/({path})/{server.issue_pages}/([0-9]+)", issue.source, re.ASCII
    )
    if named is None:
        return ""
    return f"{server.closing} {'' if named[1].lower() == project.project.lower() else named[1]}#{named[2]}"


def body(work: Work, project: Project) -> str:
    """Return the body of a pull request, in Markdown."""
    evidence = work.evidence
    parts = [
        _OPENINGS[evidence.verdict].format(fresh_places=fresh_places(isolated=work.isolated)),
        closes(work.issue, project),
    ]
    parts += ["## Evidence", fenced(one_line(f"{evidence.verdict}: {evidence.reason}", 500))]
    for each in filter(lambda each: each.title, TEST_SETS):
        parts += listed(each.title, getattr(evidence, each.field))
    if work.uncommitted:
        parts.append(
            f"The tests ran with uncommitted changes to {counted(work.uncommitted, 'file')} that this pull request "
            "does not hold."
        )
    parts += listed("Files changed", work.patched)
    parts += [
        "## What the model says",
        "The model's own words, which nobody has checked:",
        fenced(spoken(work.words)),
    ]
    parts.append(_provenance(work.model))
    return "\n\n".join(part for part in parts if part) + "\n"


def _provenance(model: str) -> str:
    """Return who made the patch, and what a person must know who takes it over."""
    maker = maker_of(model)
    name = one_line(model, ENTRY_LENGTH).replace("`", "'") or "a model without a name"
    licence = (
        f"The model's licence: {maker.model_licence}"
        if maker.model_licence is not None
        else "m3agent does not know the model's licence: ask whoever runs the model."
    )
    return (
        "No person wrote this patch. Whoever merges it answers for it, also for its licence and its origin.\n\n"
        f"Made by {maker.harness} with `{name}`. {licence}"
    )


def fenced(text: str) -> str:
    """Return `text` as a code block whose fence is longer than any in `text`."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def listed(heading: str, entries: Iterable[str]) -> list[str]:
    """Return a heading with the number of entries, and the first entries; nothing if there are no entries."""
    lines = [one_line(entry, ENTRY_LENGTH) for entry in entries]
    if not lines:
        return []
    some = f", the first {MOST_LISTED}" if len(lines) > MOST_LISTED else ""
    return [f"{heading} ({len(lines)}{some}):", fenced("\n".join(lines[:MOST_LISTED]))]


def spoken(text: str) -> str:
    """Return the model's words as inert lines."""
    lines = [_inert(line) for line in redact_text(_as_unicode(text)).strip().splitlines()]
    words = "\n".join(lines)
    return words if len(words) <= WORDS_LENGTH else words[: WORDS_LENGTH - 1] + "…"


def one_line(text: str, limit: int) -> str:
    """Return `text` as one inert line of at most `limit` characters."""
    line = _inert(without_breaks(redact_text(_as_unicode(text)))).strip()
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def _inert(line: str) -> str:
    """Return the line without control characters, and with a space in everything that GitHub would act on."""
    return _LIVE.sub(lambda match: f"{match[0]} ", replace_unprintable(line))


def _as_unicode(text: str) -> str:
    """Replace surrogate escapes: file names may hold bytes that are not UTF-8."""
    return text.encode("utf-8", "replace").decode()
