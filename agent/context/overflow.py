"""Arrange a repository that exceeds the budget.

The context then consists of a stable core, signatures of other files, and files that match the issue. The most
important of these come as excerpts if they do not fit.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from m3agent.agent.context.excerpt import Excerpts, block, body_of
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
            text=partial(_text, packing, source),
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
            chunk = block("signatures", rest[index].name, outline.rstrip("\n"))
            signatures[index] = chunk, packing.count(chunk)
            return signatures[index][1]

        excerpts: dict[int, tuple[bytes, int]] = {}
        writer = Excerpts(options.issue, packing.count)

        def excerpt_tokens(index: int, room: int, outlined: bool) -> int | None:
            candidate = candidates[index]
            made = writer.make(
                candidate.path,
                rest[index].name,
                candidate.text(),
                store.outline(candidate),
                room,
                outlined=outlined,
            )
            if made is None:
                return None
            excerpts[index] = made
            return made[1]

        chosen = select(
            candidates,
            options.issue,
            room - used,
            store,
            outline_tokens=outline_tokens,
            excerpt_tokens=excerpt_tokens,
            progress=options.progress,
        )
    shown = [*pinned, *(rest[index] for index in chosen.core)]
    chunks = [packing.chunk(source) for source in shown]
    files = [source.packed for source in shown]
    tokens = sum(source.tokens for source in shown)
    tail = set(chosen.tail)
    for index in chosen.outlined:
        chunk, count = signatures[index]
        chunks.append(chunk)
        tokens += count
        if index not in tail:
            files.append(_part(rest[index], count, "signatures"))
    for index in chosen.tail:
        source = rest[index]
        if index in chosen.excerpts:
            chunk, count = excerpts[index]
            outlined = signatures[index][1] if index in chosen.outlined else 0
            files.append(_part(source, outlined + count, "passages"))
        else:
            chunk, count = packing.chunk(source), source.tokens
            files.append(source.packed)
        chunks.append(chunk)
        tokens += count
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


def _part(source: PackSource, tokens: int, part: str) -> PackedFile:
    """Return the context's description of a file of which a part is shown."""
    return PackedFile(source.name.decode(), tokens, len(source.data), part)


def _text(packing: Packing, source: PackSource) -> str:
    """Return a file's text as the prompt shows it, without its delimiters."""
    return body_of(packing.chunk(source))
