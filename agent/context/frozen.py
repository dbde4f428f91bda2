"""Keep the text of an earlier pack as a frozen prefix and append the changes since then.

This is for repeated runs on a branch that moves. With any order of files, the common prefix is lost within
about ten commits. A fixed base with a short appendix keeps more than nine tenths of it, until the appendix is
so long that a new base is cheaper.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import SequenceMatcher
from hashlib import sha256
from itertools import takewhile
from typing import NamedTuple

from m3agent.agent.context.cache import keep_file
from m3agent.agent.context.packer import Packing, PackSource
from m3agent.agent.context.types import Context, PackedFile
from m3agent.util.private_file import read_file

REBASE = 20
"""A new base begins when the appendix exceeds one part in this many of the base.

With 5 %, five measured repositories kept 0.91 to 1.00 of their prefix from commit to commit, for 1 to 3 %
more tokens.
"""

_FEW_LINES = 3000
"""If more lines than this differ, the complete file is shown, because comparing takes quadratic time."""

_CONTEXT_LINES = 3

_INTRO = b"""<superseding>
The files above are in an earlier state. What follows supersedes them: <changes> are to be applied to the file of that \
name above, and a <file> replaces it.
</superseding>
"""


class _Base(NamedTuple):
    files: dict[str, tuple[str, int, int, int, int]]
    """By name: key in hexadecimal, tokens, bytes on disk, and start and end of its chunk in the text."""
    text: bytes


def arrange(packing: Packing, note: bytes) -> Context | None:
    """Return the pack with its frozen base.

    Returns:
        None if the files must be packed plainly, which makes them the new base: there is no base, too much
            has changed, or base and changes exceed the budget.
    """
    options = packing.options
    if options.cache is None:
        return None
    parts = [packing.variant, *options.include, "\0", *options.exclude]
    variant = sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    path = f"{options.cache}/{variant}.base"
    base = _load(path)
    context = None if base is None else _appended(packing, note, base, packing.room)
    if context is None:
        _keep(packing, path)
    return context


def _keep(packing: Packing, path: str) -> None:
    """Store the current files as the base, if the folder is writable."""
    chunks = [packing.chunk(source) for source in packing.sources]
    files: dict[str, tuple[str, int, int, int, int]] = {}
    position = 0
    for source, chunk in zip(packing.sources, chunks, strict=True):
        end = position + len(chunk)
        files[source.name.decode()] = source.key.hex(), source.tokens, len(source.data), position, end
        position = end
    body = b"".join((json.dumps(files).encode(), b"\n", *chunks))
    keep_file(path, sha256(body).digest() + body)


def _load(path: str) -> _Base | None:
    data = read_file(path)
    if data is None or sha256(data[32:]).digest() != data[:32]:
        return None
    end = data.index(b"\n", 32)
    files = {name: tuple(entry) for name, entry in json.loads(data[32:end]).items()}
    return _Base(files, data[end + 1 :])


def _appended(packing: Packing, note: bytes, base: _Base, budget: int | None) -> Context | None:
    """Return the base with the changes appended; None if a new base is better."""
    tokens_of_base = sum(tokens for _, tokens, *_ in base.files.values())
    files = {name: PackedFile(name, tokens, size) for name, (_, tokens, size, _, _) in base.files.items()}
    appendix: list[bytes] = []
    tokens = 0
    for source in packing.sources:
        key, *_, start, end = base.files.get(source.name.decode()) or ("", 0, 0)
        if key == source.key.hex():
            continue
        chunk, file = _news(packing, source, base.text[start:end] if key else None)
        appendix.append(chunk)
        tokens += file.tokens
        files[file.path] = file
        if tokens * REBASE > tokens_of_base:
            return None
    gone = sorted(base.files.keys() - {source.packed.path for source in packing.sources})
    if gone:
        lines = "\n".join(gone)
        appendix.append(f"<superseding>\nThese files are gone:\n{lines}\n</superseding>\n".encode())
        tokens += packing.count(appendix[-1])
    if appendix:
        appendix.insert(0, _INTRO)
        tokens += packing.count(_INTRO)
    total = tokens_of_base + tokens + packing.count(note)
    if tokens * REBASE > tokens_of_base or (budget is not None and total > budget):
        return None
    for name in gone:
        del files[name]
    return packing.context([base.text, *appendix, note], [*files.values()], total, rebased=False)


def _news(packing: Packing, source: PackSource, old: bytes | None) -> tuple[bytes, PackedFile]:
    """Return the changes of a file since its old chunk, or the whole file if they are not much shorter."""
    chunk = packing.chunk(source)
    changes = None if old is None else _changes(source.name, old, chunk)
    if changes is None or 2 * len(changes) >= len(chunk):
        return chunk, source.packed
    return changes, source.part(packing.count(changes), "changes")


def _changes(name: bytes, old: bytes, new: bytes) -> bytes | None:
    """Return a chunk with the differences between two chunks of a file.

    Returns:
        None if the complete file should be shown instead.
    """
    old_lines, new_lines = old.splitlines(keepends=True), new.splitlines(keepends=True)
    if old_lines[0] != new_lines[0]:  # the line ends or the encoding changed
        return None
    hunks = _hunks(old_lines[1:-1], new_lines[1:-1])
    return None if hunks is None else b'<changes path="%b">\n%b</changes>\n' % (name, b"".join(hunks))


def _in_common(old: Iterable[bytes], new: Iterable[bytes]) -> int:
    """Return how many lines are equal at the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


def _hunks(old: list[bytes], new: list[bytes]) -> list[bytes] | None:
    """Return the lines of a unified diff without its header; None if too many lines differ."""
    start = _in_common(old, new)
    end = _in_common(reversed(old[start:]), reversed(new[start:]))
    # Equal lines at both ends need no comparison; a few of them remain as context.
    skip, keep = max(0, start - _CONTEXT_LINES), max(0, end - _CONTEXT_LINES)
    old, new = old[skip : len(old) - keep], new[skip : len(new) - keep]
    if max(len(old), len(new)) > _FEW_LINES:
        return None
    lines: list[bytes] = []
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_CONTEXT_LINES):
        (_, a, _, c, _), (_, _, b, _, d) = group[0], group[-1]
        lines.append(b"@@ -%d,%d +%d,%d @@\n" % (skip + a + 1, b - a, skip + c + 1, d - c))
        for tag, i, j, k, m in group:
            if tag == "equal":
                lines += (b" " + line for line in old[i:j])
            else:
                lines += (b"-" + line for line in old[i:j])
                lines += (b"+" + line for line in new[k:m])
    return lines
