"""Lay out lines for a terminal of a given width, or for a pipe, whose lines have no limit."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.spinner import Spinner
from rich.text import Text

from m3agent.util.table import wrapped

Block = Callable[[int | None], Sequence[Text]]
"""Returns lines that stay. Argument: the width of the terminal in cells; None for a pipe or a file. The thread that
writes calls it, so it may take time."""

ATTEMPT = "│ "
"""Ends the number of an attempt, which begins each of its lines."""
LEAST_BODY = 12  # cells; beside a head, text in fewer cells is hard to read
FRAMES = Spinner("dots").frames
_CONSOLE = Console(file=io.StringIO())  # wrapping needs one, and ignores its width

_ASCII = str.maketrans(
    dict(zip("✓✗•·…→≈│━–—−×█▓▒░", "+x*-.>~|=---x#@=+", strict=True))  # noqa: RUF001
    | {frame: "|/-\\"[number % 4] for number, frame in enumerate(FRAMES)}
)


def shows_unicode(encoding: str) -> bool:
    """Return whether people see more than ASCII: the stream takes UTF-8, and the locale is not explicitly C or POSIX."""
    names = (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    locale = next((name for name in names if name), "")
    return encoding.lower().replace("-", "") == "utf8" and locale not in ("C", "POSIX")


def in_ascii(line: str) -> str:
    """Replace m3agent's own symbols, each by one character of ASCII. Other characters stay."""
    return line.translate(_ASCII)


def beside(head: Text, body: Text, *, whole_words: bool = False) -> Block:
    """Return a text whose lines all begin to the right of `head`. On a terminal, words wrap.

    Args:
        whole_words: Whether a word that is too long for a line overflows it, as an address must. Otherwise it is broken.
    """

    def lines(width: int | None) -> list[Text]:
        kept = head.plain.rfind(ATTEMPT) + len(ATTEMPT) if ATTEMPT in head.plain else 0
        indent = head[:kept] + " " * (head.cell_len - kept)
        if width is None:
            parts = list(body.split("\n", allow_blank=True))
        elif (room := width - head.cell_len) >= LEAST_BODY:
            parts = list(body.wrap(_CONSOLE, room, overflow="ignore" if whole_words else "fold"))
        else:
            # without an indent, a line of the text could look like a line of m3agent
            return list((head + Text(" ").join(body.split("\n"))).wrap(_CONSOLE, max(1, width)))
        first, *rest = parts or [Text()]
        begun = head + first
        begun.rstrip()
        return [begun, *(indent + part for part in rest)]

    return lines


def note(said: str) -> Block:
    """Return a note for the person. On a terminal it wraps at words, which stay whole: they may be addresses or paths."""

    def lines(width: int | None) -> list[Text]:
        first, *below = wrapped(said, (width or 0) - 2)
        return [Text(first), *(Text(f"  {line}") for line in below)]

    return lines


def path_then(head: Text, path: str, rest: str, gap: str = " ") -> Block:
    """Return a path, which is never broken so that one can copy it, and a text: beside it if it fits, else below.

    `gap` is between the two.
    """

    def lines(width: int | None) -> list[Text]:
        both = head + Text(path) + Text(f"{gap}{rest}" if rest else "")
        if width is None or not rest or both.cell_len <= width:
            return [both]
        return [head + Text(path), *beside(Text(" " * head.cell_len), Text(rest))(width)]

    return lines


def one_row(head: Text, title: Text, outcome: Text) -> Block:
    """Return a line with a title and an outcome. On a terminal it takes one row: half of it is the title's."""

    def lines(width: int | None) -> list[Text]:
        cut, end = title.copy(), Text("  ") + outcome if outcome else Text()
        if width is not None:
            room = width - head.cell_len
            cut.truncate(max(1, room // 2, room - end.cell_len), overflow="ellipsis")
        line = head + cut + end
        if width is not None:
            line.truncate(max(1, width), overflow="ellipsis")
        return [line]

    return lines


def in_order(*blocks: Block) -> Block:
    """Return blocks below each other."""
    return lambda width: [line for block in blocks for line in block(width)]
