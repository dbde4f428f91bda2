"""Patches as models write them: the `*** Begin Patch` format, and unified diffs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from m3agent.tools.passages import LISTED, Replaced, replace, without_fence
from m3agent.tools.text_file import lf_only, with_line_ends

_SECTION = re.compile(r"\*\*\* (Add|Update|Delete) File: (.+)")
_MOVE = re.compile(r"\*\*\* Move to: (.+)")
_COUNTS = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_NO_NEWLINE = "\\ No newline"
_KINDS: dict[str, Literal["add", "update", "delete"]] = {"Add": "add", "Update": "update", "Delete": "delete"}


class BadPatch(ValueError):
    """The patch cannot be read, or does not fit; the text is one sentence for the model, without a full stop."""


@dataclass
class Hunk:
    """One place that changes."""

    anchor: str = ""
    """A line before the place, to tell it from others; empty if the patch gives no such line."""
    line: int | None = None
    """Number of the old text's first line, from 1, or of the line before new ones; None if the patch has no numbers."""
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)

    def add(self, line: str) -> bool:
        """Add a line of the patch; return whether it is one of a hunk."""
        if not line or line[0] not in " +-":
            if line.strip():
                return False
            line = " "  # models leave out the blank of an empty line
        if line[0] != "+":
            self.old.append(line[1:])
        if line[0] != "-":
            self.new.append(line[1:])
        return True


@dataclass
class FileChange:
    """What a patch does to one file."""

    path: str
    kind: Literal["add", "update", "delete"]
    target: str = ""
    hunks: list[Hunk] = field(default_factory=list)
    """The places that change; a new file has one with its lines."""


def changes_of(patch: str) -> list[FileChange]:
    """Read a patch.

    Raises:
        BadPatch: It is in neither format, or changes nothing.
    """
    text = lf_only(patch)
    text = without_fence(text) or text
    lines = text.rstrip("\n").split("\n")
    changes = _sections(lines[: _end(lines)]) if any(map(_SECTION.fullmatch, lines)) else _diffs(lines)
    if not changes:
        raise BadPatch(
            "the patch has no change: write '*** Update File: PATH' or '--- a/PATH' and '+++ b/PATH' before it"
        )
    return changes


def _end(lines: list[str]) -> int:
    """Return how many lines there are without the blank ones at the end, which only a hunk's counts can claim."""
    return next((n for n in range(len(lines), 0, -1) if lines[n - 1].strip()), 0)


def patched(change: FileChange, path: str, text: str | None) -> str:
    """Return the new text of a file; empty if the file is removed.

    Args:
        path: The file's path in the work tree.
        text: The file's text; None if there is no such file.

    Raises:
        BadPatch: The patch does not fit, or fits in several places.
    """
    if change.kind == "add":
        if text:
            raise BadPatch(f"{path} exists already: write '*** Update File: {path}' for a change of it")
        return "".join(f"{line}\n" for hunk in change.hunks for line in hunk.new)
    if text is None:
        raise BadPatch(f"{path} does not exist")
    if change.kind == "delete":
        return ""
    new = lf_only(text)
    shift = 0
    for number, hunk in enumerate(change.hunks, 1):
        new = _with_hunk(hunk, new, shift, f"hunk {number} of {path}")
        shift += len(hunk.new) - len(hunk.old)
    return with_line_ends(text, new)


def _with_hunk(hunk: Hunk, text: str, shift: int, what: str) -> str:
    lines = text.split("\n")
    end = [lines.pop()] if not lines[-1] else []
    places = [n for n in range(len(lines) - len(hunk.old) + 1) if lines[n : n + len(hunk.old)] == hunk.old]
    if places:
        place = _place(hunk, lines, places, shift, what)
        lines[place : place + len(hunk.old)] = hunk.new
        return "\n".join(lines + end if lines else end)
    replaced = replace(text, "\n".join(hunk.old), "\n".join(hunk.new))
    if isinstance(replaced, Replaced):
        return replaced.text
    if replaced:
        raise BadPatch(
            f"the old lines of {what} are there more than once (lines {replaced}): add lines around them"
        )
    raise BadPatch(f"the old lines of {what} are not in the file: read it again, and copy them as they are")


def _place(hunk: Hunk, lines: list[str], places: list[int], shift: int, what: str) -> int:
    """Return where a hunk belongs: where it says, else in the only place, else behind its anchor."""
    stated = (hunk.line or 0) - bool(hunk.old) + shift
    if hunk.line is not None and stated in places:
        return stated
    if len(places) == 1:
        return places[0]
    if hunk.anchor:
        anchor = _anchor(hunk.anchor.strip(), lines, what)
        behind = next((place for place in places if place > anchor), None)
        if behind is not None:
            return behind
    elif not hunk.old and hunk.line is None:
        return len(lines)  # lines without a place are added at the end
    where = ", ".join(str(place + 1) for place in places[:LISTED])
    raise BadPatch(f"the old lines of {what} are there more than once (lines {where}): add lines around them")


def _anchor(text: str, lines: list[str], what: str) -> int:
    """Return the index of the only line with this text."""
    anchors = [n for n, line in enumerate(lines) if line.strip() == text]
    if len(anchors) != 1:
        where = ", ".join(str(n + 1) for n in anchors) or "none"
        raise BadPatch(
            f"the anchor of {what} must be one line of the file, and is these: {where}; give another one"
        )
    return anchors[0]


def _sections(lines: list[str]) -> list[FileChange]:
    """Read the `*** Begin Patch` format."""
    changes: list[FileChange] = []
    for number, line in enumerate(lines, 1):
        section, move = _SECTION.fullmatch(line), _MOVE.fullmatch(line)
        if section:
            changes.append(FileChange(section[2].strip(), _KINDS[section[1]]))
        elif line.startswith("*** ") or not changes:
            if move and changes:
                changes[-1].target = move[1].strip()
        elif line.startswith("@@"):
            changes[-1].hunks.append(Hunk(anchor=line[2:].strip()))
        else:
            changes[-1].hunks = changes[-1].hunks or [Hunk()]
            if not changes[-1].hunks[-1].add(line):
                raise BadPatch(f"line {number} of the patch begins with none of ' ', '+', '-' and '@@'")
    return changes


def _diffs(lines: list[str]) -> list[FileChange]:
    """Read unified diffs. The counts of a hunk say where it ends, so its lines may look like headers."""
    changes: list[FileChange] = []
    at, end = 0, _end(lines)
    while at < end:
        line = lines[at]
        if line.startswith("--- ") and at + 1 < end and lines[at + 1].startswith("+++ "):
            changes.append(_header(line, lines[at + 1]))
            at += 2
        elif line.startswith("@@") and changes:
            hunk, at = _hunk(lines, at)
            changes[-1].hunks.append(hunk)
        elif changes and changes[-1].hunks and line.startswith(("+", "-", " ")):
            raise BadPatch(f"line {at + 1} of the patch is beyond the lines that its hunk's header counts")
        else:
            at += 1
    return changes


def _header(old: str, new: str) -> FileChange:
    before, after = (line[4:].split("\t")[0].strip() for line in (old, new))
    paths = [re.sub(r"^[ab]/", "", path) for path in (before, after)]
    if before == "/dev/null":
        return FileChange(paths[1], "add")
    if after == "/dev/null":
        return FileChange(paths[0], "delete")
    return FileChange(paths[0], "update", "" if paths[0] == paths[1] else paths[1])


def _hunk(lines: list[str], start: int) -> tuple[Hunk, int]:
    """Read the hunk whose header is in line `start`; return the line behind it, too."""
    counts = _COUNTS.match(lines[start])
    if counts is None:  # a header without numbers: the hunk ends where a line cannot be one of its lines
        hunk = Hunk(anchor=lines[start].strip("@ "))
        for at in range(start + 1, _end(lines)):
            if lines[at].startswith("--- ") or not hunk.add(lines[at]):
                return hunk, at
        return hunk, len(lines)
    hunk = Hunk(line=int(counts[1]))
    wanted = int(counts[2] or 1), int(counts[4] or 1)
    at = start + 1
    while at < len(lines) and (len(hunk.old), len(hunk.new)) != wanted:
        if not lines[at].startswith(_NO_NEWLINE) and not hunk.add(lines[at]):
            break
        at += 1
    goes_on = at < _end(lines) and lines[at][:1] in (" ", "+", "-") and not lines[at].startswith("--- ")
    return (
        _miscounted(lines, start, hunk.line)
        if goes_on or (len(hunk.old), len(hunk.new)) != wanted
        else (hunk, at)
    )


def _miscounted(lines: list[str], start: int, line: int | None) -> tuple[Hunk, int]:
    """Read a hunk with wrong counts. It is refused if one of its lines may be the header of another file."""
    hunk = Hunk(line=line)
    for at in range(start + 1, _end(lines)):
        if lines[at].startswith(("--- ", "+++ ")):
            raise BadPatch(
                f"the hunk in line {start + 1} of the patch has other numbers of lines than its header says"
            )
        if not hunk.add(lines[at]):
            return hunk, at
    return hunk, len(lines)
