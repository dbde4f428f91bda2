"""Split JSON lines as their format says: only a line feed ends a line, and other programs may begin a file with a mark."""

from __future__ import annotations

from collections.abc import Iterator


def json_text(content: bytes) -> str:
    """Return the text of JSON without a byte order mark. Bytes that are not UTF-8 become lone surrogates."""
    return content.decode("utf-8", "surrogateescape").removeprefix("\ufeff")


def json_lines(content: bytes) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line that is not blank.

    `str.splitlines` would also split at characters that JSON allows inside a string, such as U+2028.
    """
    for number, line in enumerate(json_text(content).split("\n"), 1):
        if line.strip():
            yield number, line
