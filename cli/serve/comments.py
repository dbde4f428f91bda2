"""Wrap the comments of a shell script to the width of a terminal. The commands stay as they are, so that they can be copied."""

from __future__ import annotations

import re
import textwrap

LABELLED = re.compile(r"# [A-Za-z-]+(?: [a-z]+)? {2,}(?=\S)")
"""A label with its text beside it, such as `# memory       of 139.8 GiB`."""
NOTE = "#       "
"""Begins each line of the note below an option."""
OPTION = re.compile(r"#   [+=-] ")
"""Begins an option that was added, kept or removed: something to copy."""
LEAST = 40  # columns; narrower text is hard to read


def wrapped(script: str, columns: int) -> str:
    """Return the script with each comment wrapped at words, its further lines as far to the right as its text."""
    paragraphs: list[str] = []
    for line in script.splitlines():
        if line.startswith(NOTE) and paragraphs and paragraphs[-1].startswith(NOTE):
            paragraphs[-1] += f" {line.removeprefix(NOTE)}"
        else:
            paragraphs.append(line)
    return "".join(f"{part}\n" for each in paragraphs for part in _lines(each, max(LEAST, columns - 1)))


def _lines(line: str, width: int) -> list[str]:
    if len(line) <= width or not line.startswith("# ") or OPTION.match(line):
        return [line]
    if line.startswith(NOTE):
        indent = NOTE
    elif label := LABELLED.match(line):
        indent = "#".ljust(len(label[0]))
    else:
        indent = "#   "
    head = indent if line.startswith(NOTE) else line[: len(indent)]
    return textwrap.wrap(
        line[len(head) :],
        width,
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
