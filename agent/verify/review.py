"""Find what a patch adds that a person must read before its verdict can be believed.

The code under test runs in the process that tests it. Python cannot keep it away from the insides of the interpreter and
of the test runner, where it can make a red test look green. So added code that reaches for them (`insides` has the names)
is shown to a person, and the patch is not verified by itself.

Only what is new counts. What the file had before, and what the patch moved here from another file, does not.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from m3agent.agent.verify import insides
from m3agent.agent.verify.deciding_code import deciding_lines
from m3agent.agent.verify.reaches import Reach, lines_of, reaches, shows
from m3agent.agent.verify.trees import changes_undone
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.tools.runners.python import is_test_file
from m3agent.tools.tampering import Reached

MADE_BY = {"function.__new__": ("FunctionType", "LambdaType"), "code.__new__": ("CodeType", "replace")}
"""Names that source uses for what the interpreter reports under another name."""
MOST_TEXT = 200
"""Characters of a line that are shown."""


@dataclass(frozen=True)
class Finding:
    """A line that a person must read.

    Attributes:
        path: Path of the file.
        line: Line number in the new file, from 1.
        text: The line, stripped, at most 200 characters. It is as the patch has it: neutralise it before printing.
        what: What the line does, as a phrase such as "reads the interpreter's frames".
    """

    path: str
    line: int
    text: str
    what: str


def needs_review(
    workspace: Workspace, patch: Patch, undone: Collection[str] | None = None
) -> tuple[Finding, ...]:
    """Return the lines of a patch that a person must read.

    Args:
        workspace: Holds the trees.
        patch: The patch.
        undone: Paths of the patch whose changes do not count; by default those of `changes_undone`.
    """
    return findings_of(changes_of(workspace, patch, undone))


def changes_of(
    workspace: Workspace, patch: Patch, undone: Collection[str] | None = None
) -> dict[str, tuple[bytes | None, bytes | None]]:
    """Return the old and the new content of the files that a patch changes, None where a file is missing.

    Args:
        workspace, patch, undone: As for `needs_review`.
    """
    ignored = changes_undone(workspace, patch) if undone is None else undone
    trees = workspace.entries(patch.base), workspace.entries(patch.tree)
    changes = {}
    for path in patch.paths:
        if path not in ignored:
            before, after = (
                workspace.store.get_blob(tree[path].sha) if path in tree else None for tree in trees
            )
            changes[path] = before, after
    return changes


def findings_at(places: Iterable[Reached], content_of: Callable[[str], bytes]) -> tuple[Finding, ...]:
    """Return findings for places that the interpreter reported, and that a reader of the file does not see.

    Args:
        places: The places.
        content_of: Returns the content of a file.
    """
    found = []
    for place in places:
        name = place.name.rpartition(".")[2].lstrip("=")
        content = content_of(place.path)
        if not shows(content, place.line, MADE_BY.get(place.name, (name,))):
            text = _line(lines_of(content), Reach(place.line, name, ""))
            what = insides.CLASS if name == "__class__" else insides.ATTRIBUTES.get(name, insides.FUNCTIONS)
            found.append(Finding(place.path, place.line, text[:MOST_TEXT], f"{what}, by a hidden name"))
    return tuple(found)


def findings_of(changes: Mapping[str, tuple[bytes | None, bytes | None]]) -> tuple[Finding, ...]:
    """Return the lines of several files that a person must read, in the order of the paths.

    Args:
        changes: By path, the old and the new content; None where the file is missing.
    """
    added: dict[str, list[Reach]] = {}
    for path, (before, after) in changes.items():
        now = [] if after is None else _reaches(path, after)
        if now and after is not None:
            added[path] = _new(now, [] if before is None else _reaches(path, before), before, after)
    removed = _removed(changes) if any(added.values()) else Counter()
    found = []
    for path, places in sorted(added.items()):
        after = changes[path][1] or b""
        lines = lines_of(after)
        seen = set()
        for place in places:
            text = _line(lines, place)
            if removed[place.name, text] > 0:  # moved here from another file
                removed[place.name, text] -= 1
            elif (place.line, place.what) not in seen:
                seen.add((place.line, place.what))
                found.append(Finding(path, place.line, text[:MOST_TEXT], place.what))
    found += [
        Finding(path, line, text[:MOST_TEXT], what) for path, (line, text, what) in deciding_lines(changes)
    ]
    return tuple(found)


def _reaches(path: str, content: bytes) -> Sequence[Reach]:
    pure = PurePosixPath(path)
    if pure.suffix in insides.NATIVE_SUFFIXES or content.startswith(insides.NATIVE_STARTS):
        return [Reach(1, hashlib.sha256(content).hexdigest(), insides.NATIVE)]
    if pure.suffix not in {".py", ".pyw"} and not _is_script(content):
        return []
    return reaches(path, content, in_tests=is_test_file(path))


def _is_script(content: bytes) -> bool:
    first = content[:100].partition(b"\n")[0]
    return first.startswith(b"#!") and b"python" in first


def _new(now: Sequence[Reach], before: Sequence[Reach], old: bytes | None, new: bytes) -> list[Reach]:
    """Return the places that are more than the old file has, those on new lines first."""
    usual = insides.HABITS & {insides.HABIT_OF.get(one.what, one.what) for one in before}
    left = Counter((one.name, one.what) for one in before)
    known = Counter() if old is None else Counter(line.strip() for line in lines_of(old))
    lines = lines_of(new)
    kept: list[Reach] = []
    fresh: list[Reach] = []
    for one in now:
        (kept if known[_line(lines, one)] else fresh).append(one)
    found = []
    for one in [*kept, *fresh]:
        key = one.name, one.what
        if left[key]:
            left[key] -= 1
        elif one.what not in usual:
            found.append(one)
    return sorted(found, key=lambda one: one.line)


def _removed(changes: Mapping[str, tuple[bytes | None, bytes | None]]) -> Counter[tuple[str, str]]:
    """Return the names with their lines that the patch removes from any file."""
    total: Counter[tuple[str, str]] = Counter()
    for path, (before, after) in changes.items():
        if before is not None:
            old, new = (
                Counter() if content is None else Counter(_places(path, content))
                for content in (before, after)
            )
            total += old - new
    return total


def _places(path: str, content: bytes) -> Iterator[tuple[str, str]]:
    lines = lines_of(content)
    return ((one.name, _line(lines, one)) for one in _reaches(path, content))


def _line(lines: Sequence[str], place: Reach) -> str:
    if place.what == insides.NATIVE or place.line > len(lines):
        return ""
    return lines[place.line - 1].strip()
