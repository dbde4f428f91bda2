"""Packs files into one text whose bytes depend on nothing but the files."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from m3agent.agent.context.listing import Entry, Reason, read_repository, sift
from m3agent.agent.context.text import attribute, decode, harmless
from m3agent.agent.repository import Repository

BYTES_PER_TOKEN = 3
"""Estimate without a tokenizer. Source code has 3.5 to 4.5 bytes a token (o200k_base over ten repositories), so this
overstates what is used, except for text like base64."""

NOTE_SHARE = 10
"""When not all files fit, one part in this many of the budget is kept free for naming the others."""

MAX_NAMES = 200
"""Files that are named as not shown; the rest is only counted."""

Tokenizer = Callable[[str], int]
"""Counts the tokens of a text exactly."""


@dataclass(frozen=True)
class PackedFile:
    """A file in the context: its path as shown, its tokens (delimiters included), its bytes on disk."""

    path: str
    tokens: int
    bytes: int


@dataclass(frozen=True)
class Context:
    """A packed repository.

    `text` is made of chunks that each start with `<` and end with a newline, so that token counts add; `dropped`
    pairs each file left out with the reason; `tokens` counts all of `text`, and is an estimate from bytes unless
    `exact`; `digest` is the SHA-256 of `text` in hexadecimal.
    """

    text: str
    files: tuple[PackedFile, ...]
    dropped: tuple[tuple[str, str], ...]
    tokens: int
    exact: bool
    digest: str

    @property
    def size(self) -> str:
        """The number of tokens for people, with `≈` before an estimate."""
        return f"{self.tokens:,}" if self.exact else f"≈{self.tokens:,}"


def pack(
    files: Repository | Iterable[tuple[str, bytes]], *, budget: int | None, tokenizer: Tokenizer | None = None
) -> Context:
    """Pack a repository's files, or `files` given as (path, bytes), into at most `budget` tokens (None: no limit).

    The largest files come first: they change least per byte, which keeps a server's cached prefix valid longer.
    What does not fit is named after the files, never before.
    """
    entries = read_repository(files) if isinstance(files, Repository) else sift(files)
    count = tokenizer or _estimate
    chunks, dropped = _chunks(entries, count)
    note = _note(dropped, budget, count)
    room = budget
    if budget is not None and sum(chunk.file.tokens for chunk in chunks) + count(note) > budget:
        room = budget - budget // NOTE_SHARE
    kept: list[_Chunk] = []
    used = 0
    for chunk in chunks:
        if room is None or used + chunk.file.tokens <= room:
            kept.append(chunk)
            used += chunk.file.tokens
        else:
            dropped.append((chunk.file.path, Reason.OVER_BUDGET))
    note = _note(dropped, None if budget is None else budget - used, count)
    text = "".join(chunk.text for chunk in kept) + note
    return Context(
        text=text,
        files=tuple(chunk.file for chunk in kept),
        dropped=tuple((path, reason.value) for path, reason in sorted(dropped)),
        tokens=used + count(note),
        exact=tokenizer is not None,
        digest=hashlib.sha256(text.encode()).hexdigest(),
    )


@dataclass(frozen=True)
class _Chunk:
    file: PackedFile
    text: str


_Dropped = list[tuple[str, Reason]]


def _chunks(entries: Iterable[Entry], count: Tokenizer) -> tuple[list[_Chunk], _Dropped]:
    """The files to show in their order, and those left out."""
    chunks: list[_Chunk] = []
    dropped: _Dropped = []
    for path, found in entries:
        name = attribute(path)
        if isinstance(found, Reason):
            dropped.append((name, found))
        else:
            text = _chunk(name, found)
            chunks.append(_Chunk(PackedFile(name, count(text), len(found)), text))
    chunks.sort(key=lambda chunk: (-len(chunk.text.encode()), chunk.file.path))
    return chunks, dropped


def _chunk(name: str, data: bytes) -> str:
    text, line_ends = decode(data)
    body = harmless(text)
    if body and not body.endswith("\n"):
        body += "\n"
    ends = "" if line_ends == "lf" else f' eol="{line_ends}"'
    return f'<file path="{name}"{ends}>\n{body}</file>\n'


def _note(dropped: _Dropped, room: int | None, count: Tokenizer) -> str:
    """Tells which files exist and are not shown, in at most `room` tokens; credentials are not even named."""
    # Our own files first; what was vendored is seldom asked for.
    ranked = sorted(
        (reason is Reason.VENDORED, reason is not Reason.OVER_BUDGET, name, reason)
        for name, reason in dropped
    )
    names = [name for *_, name, reason in ranked if reason is not Reason.CREDENTIALS]
    named = min(len(names), MAX_NAMES)
    while names:
        lines = ["These files exist but are not shown here; file_read reads them:", *names[:named]]
        if named < len(names):
            lines.append(f"(and {len(names) - named} more)")
        note = "\n".join(("<not_shown>", *lines, "</not_shown>", ""))
        if room is None or count(note) <= room:
            return note
        if named == 0:
            break
        named //= 2
    return ""


def _estimate(text: str) -> int:
    return -(-len(text.encode()) // BYTES_PER_TOKEN)
