"""Parse a patch in git's format into files and lines, so that the page can colour them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["added", "removed", "context", "hunk", "header", "meta"]
"""`header` lines only name the file or its blobs. `meta` lines state other facts, such as the mode or a binary file."""

_HEADERS = ("diff --git ", "index ", "--- ", "+++ ")
_STEPS: dict[str, tuple[Kind, int, int]] = {
    "+": ("added", 0, 1),
    "-": ("removed", 1, 0),
    " ": ("context", 1, 1),
    "": ("context", 1, 1),
}
"""By the sign of a line in a hunk, its kind, and how many lines of the old and of the new file it is."""
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")


@dataclass(frozen=True)
class PatchLine:
    """One line of a patch."""

    kind: Kind
    text: str
    """The line, with its sign."""
    number: int | None = None
    """Line number in the new file, or in the old file for a removed line; None outside hunks."""


@dataclass
class FilePatch:
    """The part of a patch that changes one file."""

    path: str
    """Path of the new file, or of the old file if the patch deletes it."""
    lines: list[PatchLine] = field(default_factory=list)
    added: int = 0
    removed: int = 0


def parse_patch(text: str) -> list[FilePatch]:
    """Split a patch by file. This never fails: other text is returned as the lines of one file without a name.

    The line counts of a hunk decide which lines belong to it, because a removed line may look like a header.
    """
    files: list[FilePatch] = []
    old = new = old_left = new_left = 0
    for line in text.removesuffix("\n").split("\n") if text else ():
        in_hunk = old_left > 0 or new_left > 0
        if not files or (not in_hunk and line.startswith("diff --git ")):
            files.append(FilePatch(_path_of(line)))
        file = files[-1]
        if in_hunk and line[:1] in _STEPS:
            kind, of_old, of_new = _STEPS[line[:1]]
            file.lines.append(PatchLine(kind, line, new if of_new else old))
            file.added += kind == "added"
            file.removed += kind == "removed"
            old, new, old_left, new_left = old + of_old, new + of_new, old_left - of_old, new_left - of_new
        elif hunk := _HUNK.match(line):
            old, new = int(hunk[1]), int(hunk[3])
            old_left, new_left = int(hunk[2] or 1), int(hunk[4] or 1)
            file.lines.append(PatchLine("hunk", line))
        else:
            if line.startswith(("--- a/", "+++ b/", "rename to ")):
                file.path = re.sub(r"^(rename to |--- a/|\+\+\+ b/)", "", line).rstrip("\t")
            file.lines.append(PatchLine("header" if line.startswith(_HEADERS) else "meta", line))
    return files


def _path_of(line: str) -> str:
    """Return the path in `diff --git a/PATH b/PATH` if both paths are the same; else an empty string."""
    names = line.removeprefix("diff --git ")
    half = len(names) // 2
    left, right = names[:half].strip('"'), names[half + 1 :].strip('"')
    same = names.startswith(("a/", '"a/')) and left[2:] == right[2:]
    return right.removeprefix("b/") if same and names != line else ""
