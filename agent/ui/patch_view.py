"""Show patches on a terminal: a few coloured lines when a file changes, and the whole patch at the end."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from m3agent.agent.report.patch import FilePatch, Kind, PatchLine, parse_patch
from m3agent.agent.ui.layout import Block
from m3agent.util.sanitize import printable_line

MOST_LINES = 12
"""Most lines of one change that are shown when it happens."""
MOST_FILES = 3
"""Most files of one change whose lines are shown."""
AROUND = 1  # unchanged lines shown before and after changed ones
MOST_CHARACTERS = 400  # of a line, before it is cut to the width of the terminal
STYLES: dict[Kind, str] = {
    "added": "green",
    "removed": "red",
    "hunk": "cyan",
    "header": "bold",
    "meta": "dim",
}


def coloured(patch: str) -> Text:
    """Return a whole patch with colours."""
    lines = (Text(line.text, STYLES.get(line.kind, "")) for file in parse_patch(patch) for line in file.lines)
    return Text("\n").join(lines)


def change(patch: str, indent: Text, *, title: str) -> Block:
    """Return the most telling lines of a change.

    Args:
        title: The title of the step that made the change. A file that it names is not named again.
    """
    files = parse_patch(patch)
    found: list[Text] = []
    for file in files[:MOST_FILES]:
        if len(files) > 1 or not title.endswith(file.path):
            counts = f"  +{file.added} -{file.removed}" if file.added or file.removed else ""
            found.append(Text.assemble((printable_line(file.path), "bold"), (counts, "dim")))
        found += _lines(file)
    if len(files) > MOST_FILES:
        found.append(Text(f"{len(files) - MOST_FILES} more files", "dim"))

    def lines(width: int | None) -> list[Text]:
        shown = [indent + line for line in found]
        for line in shown:
            if width is not None:
                line.truncate(max(1, width), overflow="ellipsis")
        return shown

    return lines


def _lines(file: FilePatch) -> Iterable[Text]:
    near = [line for line in _near_changes(file.lines) if line.kind != "context" or line.text.strip()]
    for line in near[:MOST_LINES]:
        style = STYLES.get(line.kind, "dim")
        text = line.text.replace("\t", "    ")[:MOST_CHARACTERS]
        yield Text.assemble((f"{line.number:>5} ", "dim"), (text, style))
    if len(near) > MOST_LINES:
        yield Text(f"      {len(near) - MOST_LINES} more lines (+{file.added} -{file.removed})", "dim")


def _near_changes(lines: list[PatchLine]) -> list[PatchLine]:
    """Return the changed lines of a file, and the unchanged ones next to them."""
    changed = [number for number, line in enumerate(lines) if line.kind in ("added", "removed")]
    near = {at for number in changed for at in range(number - AROUND, number + AROUND + 1)}
    return [line for number, line in enumerate(lines) if number in near and line.number is not None]
