"""Write a file that is too large to be shown whole as an outline with the passages that the issue is about."""

from __future__ import annotations

from collections.abc import Callable

from m3agent.agent.context.chunk_format import BYTES_PER_TOKEN
from m3agent.agent.context.selection.passages import (
    find_passages,
    plain_outline,
    read_clues,
    write_outline,
    write_passages,
)

_LEAST_BYTES = 64
"""Give up if a block must be smaller than this."""


def block(tag: str, name: bytes, body: str) -> bytes:
    """Return a chunk with a part of a file: `signatures` or `passages`."""
    kind = tag.encode()
    return b'<%b path="%b">\n%b\n</%b>\n' % (kind, name, body.encode(), kind)


def body_of(chunk: bytes) -> str:
    """Return the text in a chunk that shows a whole file."""
    return chunk[chunk.index(b"\n") + 1 : -len(b"</file>\n")].decode()


class Excerpts:
    """Make excerpts of files for one issue.

    Args:
        issue: The text of the issue.
        count: Returns the number of tokens of a chunk.
    """

    def __init__(self, issue: str, count: Callable[[bytes], int]) -> None:
        self._clues = read_clues(issue)
        self._count = count

    def make(
        self, path: str, name: bytes, text: str, outline: str | None, room: int, *, outlined: bool = False
    ) -> tuple[bytes, int] | None:
        """Return an excerpt and its number of tokens, at most `room`; None if there is nothing to show.

        Passages get up to two thirds of the room, because they are what the issue is about. The outline
        gets the rest.

        Args:
            path: The file's path.
            name: The path as shown.
            text: The file's text as the prompt shows it.
            outline: Its outline, if there is one.
            room: Largest number of tokens.
            outlined: Whether the outline is in the prompt already.
        """
        outline = outline or plain_outline(text)
        ranked = find_passages(path, text, outline, self._clues)
        chunks: list[bytes] = []
        used = 0
        parts: list[tuple[str, int, Callable[[int], str]]] = [
            ("passages", room if outlined else room * 2 // 3, lambda size: write_passages(text, ranked, size))
        ]
        if not outlined:
            parts.append(("signatures", room, lambda size: write_outline(outline, self._clues, size)))
        for tag, end, write in parts:
            found = self._fitting(tag, name, write, end - used)
            if found is not None:
                chunks.insert(0, found[0])
                used += found[1]
        return (b"".join(chunks), used) if chunks else None

    def _fitting(
        self, tag: str, name: bytes, write: Callable[[int], str], room: int
    ) -> tuple[bytes, int] | None:
        """Return the largest block that fits into `room` tokens, with its tokens."""
        size = room * BYTES_PER_TOKEN - len(block(tag, name, ""))
        while size >= _LEAST_BYTES:
            body = write(size)
            if not body:
                break
            chunk = block(tag, name, body)
            tokens = self._count(chunk)
            if tokens <= room:
                return chunk, tokens
            size = size * 3 // 4
        return None
