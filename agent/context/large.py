"""Show files that are too large to be packed as excerpts, if the issue names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from m3agent.agent.context.chunk_format import shown_name
from m3agent.agent.context.chunks import text_of_large
from m3agent.agent.context.excerpt import Excerpts
from m3agent.agent.context.packer import Packing
from m3agent.agent.context.rules import LARGE
from m3agent.agent.context.selection.query import mentioned, read_issue
from m3agent.agent.context.types import Context, PackedFile

READ_BYTES = 8 * 1024 * 1024
"""Only this many bytes at the start of a file are searched for passages."""

_MOST_FILES = 4
_SHARE = 16
"""An excerpt takes at most one part in this many of the budget."""
_LONGEST = 16_000


class LargeFile(NamedTuple):
    """An excerpt of a file that is too large to be packed."""

    file: PackedFile
    chunk: bytes
    redacted: bool


def excerpts_of_named(packing: Packing, read: Callable[[str], bytes | None]) -> list[LargeFile]:
    """Return excerpts of the files that the issue names, and take their tokens from the pack's room.

    Args:
        packing: The pack, with all files added.
        read: Returns the first `READ_BYTES` bytes of a file; None if it cannot be read.
    """
    paths = [*(source.path for source in packing.sources), *packing.large]
    values = mentioned(paths, read_issue(packing.options.issue))[len(packing.sources) :]
    ranked = sorted((-value, path) for path, value in zip(packing.large, values, strict=True) if value > 0)
    room = _LONGEST if packing.room is None else min(_LONGEST, packing.room // _SHARE)
    writer = Excerpts(packing.options.issue, packing.count)
    found: list[LargeFile] = []
    for _, path in ranked[:_MOST_FILES]:
        data = read(path)
        text = None if data is None else text_of_large(path, data, complete=len(data) < READ_BYTES)
        if data is None or text is None:
            continue
        name = shown_name(path)
        made = writer.make(path, name, text.text, None, room)
        if made is not None:
            chunk, tokens = made
            found.append(
                LargeFile(PackedFile(name.decode(), tokens, len(data), "passages"), chunk, bool(text.found))
            )
    shown = {each.file.path.encode() for each in found}
    packing.dropped = [(name, why) for name, why in packing.dropped if why is not LARGE or name not in shown]
    if packing.room is not None:
        packing.room -= sum(each.file.tokens for each in found)
    return found


def add_to(context: Context, found: list[LargeFile]) -> None:
    """Add excerpts to a context, after the files and before the names of the files that are not shown.

    What all issues share stays in front.
    """
    context.pieces[-1:-1] = [each.chunk for each in found]
    context.files += tuple(each.file for each in found)
    context.tokens += sum(each.file.tokens for each in found)
    context.redacted += tuple(each.file.path for each in found if each.redacted)
