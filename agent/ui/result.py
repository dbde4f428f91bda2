"""Print a command's result to standard output: with the colours and signs of a fix on a terminal, plain in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from m3agent.agent.ui.closing import MARKS, OTHER_MARK
from m3agent.agent.ui.layout import in_ascii, shows_unicode
from m3agent.util.errors import Status
from m3agent.util.sanitize import print_text, printable_text

LABEL = "bold cyan"
HEAD = "bold"
STATUSES: Mapping[str, str] = {
    str(status): style.removeprefix("bold ") for status, (_, style) in MARKS.items()
}
"""The colours of statuses; others have that of `OTHER_STATUS`."""
OTHER_STATUS = OTHER_MARK[1].removeprefix("bold ")


def sign_of(status: str) -> str:
    """Return the sign that a fix with this status ends with."""
    return MARKS.get(Status(status), OTHER_MARK)[0]


def labelled(text: str, width: int) -> Text:
    """Return lines whose first `width` characters are a label. A line that begins with a sign has the colour of the sign."""
    made = Text()
    styles = dict((*MARKS.values(), OTHER_MARK))
    for line in text.splitlines(keepends=True):
        sign = styles.get(line[:1])
        made.append(line[:width], sign or LABEL).append(line[width:], sign or "")
    return made


def table(text: str, *, has_head: bool = True) -> Text:
    """Return aligned lines. The first one may be the head, and the first column names what a line is about."""
    lines = text.splitlines(keepends=True)
    made = Text().append("".join(lines[:has_head]), HEAD)
    for line in lines[has_head:]:
        name, gap, rest = line.partition("  ")
        made.append(name, LABEL).append(f"{gap}{rest}")
    return made


def tables(text: str) -> Text:
    """Return a title and blocks of aligned lines with blank lines between. The head of a block is in capitals."""
    title, *blocks = text.split("\n\n")
    made = Text().append(title, HEAD)
    for block in blocks:
        made.append("\n\n").append(table(block, has_head=block.partition("\n")[0].isupper()))
    return made


def print_result(text: Text) -> None:
    """Print a text. Nothing in it can control the terminal."""
    clean = text.copy()
    clean.plain = printable_text(text.plain)
    if not shows_unicode(sys.stdout.encoding or ""):
        clean.plain = in_ascii(clean.plain)
    if sys.stdout.isatty():
        Console(highlight=False, soft_wrap=True).print(clean, end="")
    else:
        print_text(clean.plain, end="")
