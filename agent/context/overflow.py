"""Arrange a repository that exceeds the budget.

The context then consists of a stable core, signatures of other files, and files that match the issue.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from m3agent.agent.context.history import TAU
from m3agent.agent.context.instructions import is_instructions
from m3agent.agent.context.packer import Packing, PackSource
from m3agent.agent.context.rules import OVER_BUDGET, VERSION
from m3agent.agent.context.selection.select import Candidate, select
from m3agent.agent.context.selection.store import TermStore
from m3agent.agent.context.types import Context, PackedFile

NOTE_SHARE = 10
"""Reserve one part in this many of the budget for naming omitted files.

Instruction files of the repository may use another part of the same size.
"""


def arrange(packing: Packing, budget: int) -> Context:
    """Return a context of at most `budget` tokens, with the files ranked by the issue."""
    options = packing.options
    room = budget - budget // NOTE_SHARE
    pinned, used = _pinned(packing.sources, budget // NOTE_SHARE)
    rest = [source for source in packing.sources if source not in pinned]
    candidates = [
        Candidate(
            path=source.path,
            tokens=source.tokens,
            key=source.key,
            order=place,
            touched=None if source.churn is None else source.churn - packing.head / TAU,
            text=_Body(packing, source),
        )
        for place, source in enumerate(rest)
    ]
    with (
        TemporaryDirectory() as temporary,
        TermStore(Path(options.cache or temporary), variant=VERSION) as store,
    ):
        signatures: dict[int, tuple[bytes, int]] = {}

        def outline_tokens(index: int) -> int | None:
            outline = store.outline(candidates[index])
            if outline is None:
                return None
            body = outline.rstrip("\n").encode()
            chunk = b'<signatures path="%b">\n%b\n</signatures>\n' % (rest[index].name, body)
            signatures[index] = chunk, packing.count(chunk)
            return signatures[index][1]

        chosen = select(
            candidates,
            options.issue,
            room - used,
            store,
            outline_tokens=outline_tokens,
            progress=options.progress,
        )
    shown = [*pinned, *(rest[index] for index in chosen.core)]
    tail = [rest[index] for index in chosen.tail]
    chunks = [packing.chunk(source) for source in shown]
    chunks += (signatures[index][0] for index in chosen.outlined)
    chunks += (packing.chunk(source) for source in tail)
    whole = set(chosen.tail)
    files = [source.packed for source in shown]
    tokens = sum(source.tokens for source in (*shown, *tail))
    for index in chosen.outlined:
        count = signatures[index][1]
        tokens += count
        if index not in whole:
            files.append(PackedFile(rest[index].name.decode(), count, len(rest[index].data), "signatures"))
    files += (source.packed for source in tail)
    packing.dropped += ((rest[index].name, OVER_BUDGET) for index in chosen.dropped)
    note = packing.not_shown(budget - tokens)
    return packing.context([*chunks, note], files, tokens + packing.count(note))


def _pinned(sources: list[PackSource], room: int) -> tuple[list[PackSource], int]:
    """Return the repository's instructions, which are shown for every issue, and their number of tokens."""
    pinned: list[PackSource] = []
    used = 0
    for source in sources:
        if is_instructions(source.path) and used + source.tokens <= room:
            pinned.append(source)
            used += source.tokens
    return pinned, used


class _Body:
    """A file's text as the prompt shows it, without its delimiters."""

    def __init__(self, packing: Packing, source: PackSource) -> None:
        self._packing = packing
        self._source = source

    def __call__(self) -> str:
        chunk = self._packing.chunk(self._source)
        return chunk[chunk.index(b"\n") + 1 : -len(b"</file>\n")].decode()
