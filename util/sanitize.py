"""Print text for people. Text from a repository, a model or a server cannot control their terminal.

All output for people goes through one of three places, which make it safe: `print_text` and `print_note` here, `print_bytes`
of the command line for output that a pipe gets unchanged, and `LiveView` of `agent/ui/display.py`.

This module only removes characters that could control a terminal or mislead its reader. Secrets are replaced elsewhere:
`agent.context.secrets` replaces secrets in a text, `serving.client.http.mask_key` replaces a known key.
"""

from __future__ import annotations

import os
import re
import sys

TYPE_CHECKING = False  # type checkers take this for true; typing itself is slow to import
if TYPE_CHECKING:
    from typing import TextIO

_BREAK = re.compile(r" *[^\S ]\s*")  # any white space but a blank, with the blanks beside it
UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
"""Control characters, lone surrogates, characters that change the direction of writing, and tag characters."""


def printable_text(text: str) -> str:
    """Replace characters that could control a terminal with spaces; line breaks stay."""
    return "\n".join(UNPRINTABLE.sub(" ", line) for line in text.split("\n"))


def printable_bytes(data: bytes) -> bytes:
    """Return bytes as text for a terminal: line breaks and tabs stay; U+FFFD replaces what could control a terminal."""
    text = data.decode("utf-8", "replace")
    return UNPRINTABLE.sub(lambda found: found[0] if found[0] in "\n\t" else "\ufffd", text).encode()


def without_breaks(text: str) -> str:
    """Return a text as one line: a line break or a tab becomes one blank, with the blanks beside it; other blanks stay."""
    return _BREAK.sub(" ", text).strip()


def printable_line(text: object, limit: int = 160) -> str:
    """Return anything as one printable line of at most `limit` characters."""
    line = UNPRINTABLE.sub(" ", without_breaks(str(text)))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def print_text(text: str, *, end: str = "\n") -> None:
    """Print a result for the person to standard output. Its line breaks stay."""
    _print(sys.stdout, printable_text(text) + end)


def print_note(text: str) -> None:
    """Print a note for the person to standard error, as one line: a name in it cannot forge another note.

    On a terminal, words wrap; all lines but the first are indented.
    """
    line = UNPRINTABLE.sub(" ", text)
    if (columns := columns_of(sys.stderr)) and len(line) >= columns:
        import textwrap  # slow to import, and most notes are short

        line = textwrap.fill(
            line, max(20, columns - 1), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    _print(sys.stderr, line + "\n")


def columns_of(stream: TextIO | None) -> int:
    """Return the width of a stream's terminal in cells; 0 if it is no terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream is not None and stream.isatty() else 0
    except (OSError, ValueError):  # closed, or no real file
        return 0


def has_terminal() -> bool:
    """Return whether this process belongs to a terminal, whose Ctrl-C ends it, wherever its output goes."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _print(stream: TextIO | None, text: str) -> None:
    if stream is not None:  # the stream was closed when Python started
        stream.write(text)
        stream.flush()


def replace_unprintable(text: str, stand_in: str = " ") -> str:
    """Replace every character that Unicode does not call printable, such as line breaks and joiners.

    This is stricter than `printable_line`, which keeps emoji and scripts that need joiners. It is for names and titles
    that are used outside a terminal.
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else stand_in for character in text)


def quoted(name: str) -> str:
    """Return a name in quotes for a sentence: only printable characters, and at most 200."""
    printable = replace_unprintable(name, "\N{REPLACEMENT CHARACTER}")
    return repr(printable if len(printable) <= 200 else printable[:199] + "…")


def last_line(text: str) -> str:
    """Return the last line that is not blank, or an empty text if all lines are blank."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
