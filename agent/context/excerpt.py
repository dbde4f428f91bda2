"""Write a file that is too large to be packed as an outline with the passages that the issue is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from m3agent.agent.context.chunk_format import BYTES_PER_TOKEN, shown_name
from m3agent.agent.context.chunks import text_of_large
from m3agent.agent.context.packer import Packing
from m3agent.agent.context.rules import LARGE
from m3agent.agent.context.selection.passages import (
    find_passages,
    plain_outline,
    read_clues,
    write_outline,
    write_passages,
)
from m3agent.agent.context.selection.query import mentioned, read_issue
from m3agent.agent.context.types import Context, PackedFile

_LEAST_BYTES = 64
"""Give up if a block must be smaller than this."""
READ_BYTES = 8 * 1024 * 1024
"""Only this many bytes at the start of a file are searched for passages."""

_MOST_FILES = 4
_SHARE = 16
"""An excerpt takes at most one part in this many of the budget."""
_LONGEST = 16_000


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
        count: Returns the number of tokens of a chunk.
    """

    def __init__(self, issue: str, count: Callable[[bytes], int]) -> None:
        self._clues = read_clues(issue)
        self._count = count

    def make(self, path: str, name: bytes, text: str, room: int) -> tuple[bytes, int] | None:
        """Return an excerpt and its number of tokens, at most `room`; None if there is nothing to show.

        Passages get up to two thirds of the room, because they are what the issue is about. The outline
        gets the rest.
        """
        outline = plain_outline(text)
        ranked = find_passages(path, text, outline, self._clues)
        chunks: list[bytes] = []
        used = 0
        parts: list[tuple[str, int, Callable[[int], str]]] = [
            ("passages", room * 2 // 3, lambda size: write_passages(text, ranked, size)),
            ("signatures", room, lambda size: write_outline(outline, self._clues, size)),
        ]
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


class LargeFile(NamedTuple):
    """An excerpt of a file that is too large to be packed."""

    file: PackedFile
    chunk: bytes
    redacted: bool


def excerpts_of_named(packing: Packing, read: Callable[[str], bytes | None]) -> list[LargeFile]:
    """Return excerpts of the files that the issue names, and take their tokens from the pack's room.

    Args:
        read: Returns the first `READ_BYTES` bytes of a file; None if it cannot be read.
    """
    paths = [*(source.path for source in packing.sources), *packing.large]
    values = mentioned(paths, read_issue(packing.options.issue))[len(packing.sources) :]
    ranked = sorted((-value, path) for path, value in zip(packing.large, values, strict=True) if value > 0)
    room = _LONGEST if packing.room is None else min(_LONGEST, packing.room // _SHARE)
    writer = Excerpts(packing.options.issue, packing.count)
    made = [_excerpt(writer, path, read(path), room) for _, path in ranked[:_MOST_FILES]]
    excerpts = [each for each in made if each is not None]
    shown = {each.file.path.encode() for each in excerpts}
    packing.dropped = [(name, why) for name, why in packing.dropped if why is not LARGE or name not in shown]
    if packing.room is not None:
        packing.room -= sum(each.file.tokens for each in excerpts)
    return excerpts


def _excerpt(writer: Excerpts, path: str, data: bytes | None, room: int) -> LargeFile | None:
    if data is None or (text := text_of_large(path, data, complete=len(data) < READ_BYTES)) is None:
        return None
    name = shown_name(path)
    if (made := writer.make(path, name, text.text, room)) is None:
        return None
    return LargeFile(PackedFile(name.decode(), made[1], len(data), "passages"), made[0], bool(text.found))


def add_to(context: Context, found: list[LargeFile]) -> None:
    """Add excerpts to a context, after the files and before the names of the files that are not shown.

    What all issues share stays in front.
    """
    context.pieces[-1:-1] = [each.chunk for each in found]
    context.files += tuple(each.file for each in found)
    context.tokens += sum(each.file.tokens for each in found)
    context.redacted += tuple(each.file.path for each in found if each.redacted)
