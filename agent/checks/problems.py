"""Read the problems in a checker's output, and tell which of them are new."""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from m3agent.agent.context.output import redact_text
from m3agent.util.sanitize import printable_line

MOST_MESSAGE = 300
"""Most characters of a message that are kept."""
COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PATH = r"(?P<path>[^\s:()\[\]]+)"
FORMS = tuple(
    re.compile(form)
    for form in (
        rf"\s*(?:\w+: )?{_PATH}:(?P<line>\d+)(?::\d+)*(?::| -)\s*(?P<message>\S.*)",  # most
        rf"\s*{_PATH}\((?P<line>\d+)(?:,\d+)?\): *(?P<message>\S.*)",  # tsc, dotnet
        rf"\s*--> {_PATH}:(?P<line>\d+)",  # cargo, ruff in its long form: the message is in the line before
        r"\s+(?P<line>\d+):\d+\s+(?P<message>(?:error|warning)\b.*)",  # eslint: the path is in a line before
        rf"(?P<message>would reformat|\[warn\]) {_PATH}$",  # black, prettier
    )
)
"""How checkers write a problem in one line."""
NOTE = re.compile(r"(?:note|info|help)\b", re.IGNORECASE)
"""How a message begins that explains another one."""


@dataclass(frozen=True)
class Problem:
    """What a checker says about a line."""

    path: str
    """The file, relative to the repository; empty if the checker names none."""
    line: int
    """The line, from 1; 0 if the checker names none."""
    message: str
    in_changed_line: bool = False
    """Whether the patch adds or changes this line."""

    def __str__(self) -> str:
        place = ":".join(filter(None, (self.path, str(self.line or ""))))
        return f"{place}: {self.message}" if place else self.message


def problems_in(output: str, paths: Collection[str]) -> Iterator[Problem]:
    """Yield the problems in the files of a tree that a checker's output names.

    Args:
        paths: The files of the tree.
    """
    names = defaultdict(list)
    for path in paths:
        names[path.rpartition("/")[2]].append(path)

    def known(name: str) -> str:
        """Return the file of the tree that a checker names, also by an absolute path or from a folder; else nothing."""
        short = name.removeprefix("./")
        ends = [
            path
            for path in names[short.rpartition("/")[2]]
            if f"/{short}".endswith(f"/{path}") or path.endswith(f"/{short}")
        ]
        if short.startswith("/"):
            return max(ends, key=len, default="")
        return short if short in ends else ends[0] if len(ends) == 1 else ""

    before = ""
    for line in COLOUR.sub("", output).splitlines():
        match = next(filter(None, (form.match(line) for form in FORMS)), None)
        if match is None:
            before = line.strip() or before
            continue
        said = match.groupdict()
        path, message = known(said.get("path") or before), said.get("message") or before
        if path and not NOTE.match(message):
            yield Problem(path, int(said.get("line") or 0), cleaned(message))


def cleaned(message: str) -> str:
    """Return a message without secrets and control characters, in one line of limited length."""
    return printable_line(redact_text(message), MOST_MESSAGE)


def new_problems(
    before: Sequence[Problem], after: Sequence[Problem], in_both: Collection[str]
) -> tuple[Problem, ...]:
    """Return the problems after a patch of which there were fewer before it. Lines and numbers may have moved.

    Args:
        in_both: The files that exist before and after. Those of others are compared by their messages: a file may be renamed.
    """

    def key(problem: Problem) -> tuple[str, str]:
        return problem.path if problem.path in in_both else "", re.sub(r"\d+", "#", problem.message)

    left, new = Counter(map(key, before)), list[Problem]()
    for problem in sorted(after, key=lambda problem: problem.in_changed_line):
        left[key(problem)] -= 1
        if left[key(problem)] < 0:
            new.append(problem)
    return tuple(sorted(new, key=lambda problem: (not problem.in_changed_line, problem.path, problem.line)))


def marked(problems: Sequence[Problem], path: str, old: bytes | None, new: bytes) -> list[Problem]:
    """Return the problems of one file, each with whether it is in a changed line.

    Args:
        old: The file before the patch; None if there was none.
        new: The file after it.
    """
    lines = new.splitlines()
    matcher = difflib.SequenceMatcher(None, (old or b"").splitlines(), lines)
    same = {block.b + 1 + n for block in matcher.get_matching_blocks() for n in range(block.size)}
    return [
        replace(each, in_changed_line=each.line not in same and each.line > 0)
        for each in problems
        if each.path == path
    ]
