"""Arrange a repository that exceeds the budget.

The context then consists of what the issue is about: definitions with their bodies, and their tests. In a large budget a
stable core and signatures of other files come before it. The folders and the names of other files come last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from m3agent.agent.context.excerpt import block, body_of
from m3agent.agent.context.history import TAU
from m3agent.agent.context.instructions import is_instructions
from m3agent.agent.context.packer import Packing, PackSource
from m3agent.agent.context.rules import CREDENTIALS, OVER_BUDGET, VERSION
from m3agent.agent.context.selection.definitions import (
    MOST_BYTES,
    MOST_FILES,
    Definitions,
    Source,
    beside_their_tests,
)
from m3agent.agent.context.selection.passages import write_passages
from m3agent.agent.context.selection.select import Candidate, Near, select
from m3agent.agent.context.selection.store import TermStore
from m3agent.agent.context.types import Context, PackedFile

INSTRUCTIONS_SHARE = 10
"""Instruction files of the repository may use one part in this many of the budget."""
NOTE_SHARE, MOST_FOR_NOTE = 20, 1_500
"""Reserve one part in this many of the budget, but not more tokens, for the folders and the names of omitted files."""
_MOST_FOLDERS = 60
_TOKENS_PER_FOLDER = 200
"""Show at most one folder for this many tokens of the budget."""
_MOST_TRIES = 6
"""Divide the files again, in less room, if their parts turn out to have too many tokens."""


class _Shown:
    """The blocks of a context while it is arranged."""

    def __init__(self, packing: Packing, sources: Sequence[PackSource], store: TermStore) -> None:
        self.packing = packing
        self.sources = sources
        self.store = store
        self.signatures: dict[int, tuple[bytes, int]] = {}
        self.parts: dict[int, tuple[bytes, int]] = {}
        self.candidates = [
            Candidate(
                path=source.path,
                tokens=source.tokens,
                key=source.key,
                order=place,
                touched=None if source.churn is None else source.churn - packing.head / TAU,
                text=partial(_text, packing, source),
            )
            for place, source in enumerate(sources)
        ]

    def outline_tokens(self, index: int) -> int | None:
        """Make a file's signatures, and return their tokens; None if it has none."""
        outline = self.store.outline(self.candidates[index])
        if outline is None:
            return None
        chunk = block("signatures", self.sources[index].name, outline.rstrip("\n"))
        self.signatures[index] = chunk, self.packing.count(chunk)
        return self.signatures[index][1]

    def divide(self, near: Sequence[Near], room: int) -> Mapping[int, int | None]:
        """Make the parts of the files near the issue (`select.Divide`)."""
        files: list[tuple[int, Source]] = []
        size = 0
        order = beside_their_tests([(self.candidates[each.index].path, each.kind) for each in near])
        for each in (near[place] for place in order[:MOST_FILES]):
            candidate = self.candidates[each.index]
            text = candidate.text()
            size += len(text)
            if size > MOST_BYTES and files:
                break
            outline = self.store.outline(candidate)
            files.append(
                (
                    each.index,
                    Source(candidate.path, text, outline, candidate.tokens, each.kind, each.relevance),
                )
            )
        definitions = Definitions(tuple(source for _, source in files), self.packing.options.issue)
        wanted = room
        for _ in range(_MOST_TRIES):
            made: dict[int, int | None] = {}
            for place, ranges in definitions.within(wanted).items():
                index, source = files[place]
                made[index] = None
                if ranges is not None:
                    body = write_passages(source.text, ranges, len(source.text) * 8)
                    chunk = block("passages", self.sources[index].name, body)
                    made[index] = self.packing.count(chunk)
                    self.parts[index] = chunk, made[index] or 0
            used = sum(self.sources[i].tokens if tokens is None else tokens for i, tokens in made.items())
            if used <= room:
                return made
            wanted -= used - room + room // 50
        return {}

    def block_of(self, index: int, *, divided: bool) -> tuple[bytes, PackedFile]:
        """Return the block of a file of the tail, and its description."""
        source = self.sources[index]
        if not divided:
            return self.packing.chunk(source), source.packed
        chunk, tokens = self.parts[index]
        return chunk, source.part(tokens, "passages")


def arrange(packing: Packing, budget: int) -> Context:
    """Return a context of at most `budget` tokens, with the files ranked by the issue."""
    options, folders = packing.options, _folders(packing, budget)
    pinned, used = _pinned(packing.sources, budget // INSTRUCTIONS_SHARE)
    rest = [source for source in packing.sources if source not in pinned]
    with (
        TemporaryDirectory() as temporary,
        TermStore(Path(options.cache or temporary), variant=VERSION) as store,
    ):
        shown = _Shown(packing, rest, store)
        chosen = select(
            shown.candidates,
            options.issue,
            budget - used - min(budget // NOTE_SHARE, MOST_FOR_NOTE),
            store,
            outline_tokens=shown.outline_tokens,
            divide=shown.divide,
            progress=options.progress,
        )
    first = [*pinned, *(rest[index] for index in chosen.core)]
    blocks = [(packing.chunk(source), source.packed) for source in first]
    whole = {index for index in chosen.tail if index not in chosen.excerpts}
    blocks += (
        (shown.signatures[index][0], rest[index].part(shown.signatures[index][1], "signatures"))
        for index in chosen.outlined
        if index not in whole
    )
    blocks += (shown.block_of(index, divided=index in chosen.excerpts) for index in chosen.tail)
    tokens = sum(file.tokens for _, file in blocks)
    packing.dropped += ((rest[index].name, OVER_BUDGET) for index in chosen.dropped)
    note = packing.not_shown(budget - tokens, folders)
    chunks = [chunk for chunk, _ in blocks]
    return packing.context([*chunks, note], _described(blocks), tokens + packing.count(note))


def _folders(packing: Packing, budget: int) -> list[bytes]:
    names = [name for name, reason in packing.dropped if reason is not CREDENTIALS]
    names += (source.name for source in packing.sources)
    return folder_lines(names, min(_MOST_FOLDERS, budget // _TOKENS_PER_FOLDER))


def _described(blocks: Sequence[tuple[bytes, PackedFile]]) -> list[PackedFile]:
    """Return one description for each file; a file with signatures and passages counts with both."""
    files: dict[str, PackedFile] = {}
    for _, file in blocks:
        before = files.pop(file.path, None)
        tokens = file.tokens + (before.tokens if before else 0)
        files[file.path] = PackedFile(file.path, tokens, file.bytes, file.part)
    return list(files.values())


def _pinned(sources: list[PackSource], room: int) -> tuple[list[PackSource], int]:
    """Return the repository's instructions, which are shown for every issue, and their number of tokens."""
    pinned: list[PackSource] = []
    used = 0
    for source in sources:
        if is_instructions(source.path) and used + source.tokens <= room:
            pinned.append(source)
            used += source.tokens
    return pinned, used


def _text(packing: Packing, source: PackSource) -> str:
    """Return a file's text as the prompt shows it, without its delimiters."""
    return body_of(packing.chunk(source))


_DEEPEST = 6
_INTRO = b"Folders, with the number of files in each:"


def folder_lines(names: Iterable[bytes], most: int) -> list[bytes]:
    """Return at most `most` lines with the folders of some files, and a line before them; empty if nothing fits.

    Where there are too many folders, the deeper ones are left out, and their files count for the folder above.
    """
    folders = Counter(tuple(name.split(b"/")[:-1]) for name in names)
    for depth in range(_DEEPEST, 0, -1):
        tally: Counter[tuple[bytes, ...]] = Counter()
        for folder, number in folders.items():
            for end in range(min(len(folder), depth)):
                tally[folder[:end]] += 0
            tally[folder[:depth]] += number
        if 1 < len(tally) <= most:
            return [_INTRO, *(_line(folder, tally[folder]) for folder in sorted(tally))]
    return []


def _line(folder: tuple[bytes, ...], number: int) -> bytes:
    name = folder[-1] if folder else b"."
    return b"%b%b/ %d" % (b"  " * len(folder), name, number)
