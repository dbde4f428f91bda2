"""Divide a file into pieces: definitions with their bodies, long docstrings, and what stands between them.

Everything here is a pure function of the file's text and its outline.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from m3agent.agent.context.selection.passages import LONGEST_LINE, Passage
from m3agent.agent.context.selection.terms import definition_lines

_ENTRY = re.compile(r"(\d+)\t((?:  )*)(.*)")
_WORD = re.compile(r"[^\W\d]\w*")
_BEFORE = ("#", "//", "/*", "*", "--", ";;", "@")
"""A line that begins so and stands directly before a definition belongs to it."""
_DOCSTRING = re.compile(r"[ \t]*[rRuUbB]{0,2}(\"\"\"|''')")
_SHORT_DOCSTRING = 4
"""A docstring of at most this many lines stays with its definition."""
_HEADER = 25
"""A docstring begins within this many lines of its definition."""
_LONGEST_PIECE = 120
"""A longer definition is divided."""
_BLOCK = 40
"""Passage of a piece of a file, or of a long definition, that has no inner definitions."""


@dataclass(frozen=True)
class Piece:
    """A part of a file that is shown or left out as a whole."""

    ranges: tuple[Passage, ...]
    """Its lines; a definition without its docstring has two ranges."""
    name: str = ""
    """What it defines; empty for other lines."""
    owners: tuple[str, ...] = ()
    """The definitions around it, the outer one first."""
    is_docstring: bool = False
    is_head: bool = False
    """Whether the file begins with it: its imports, for example."""

    def text(self, lines: Sequence[str]) -> str:
        """Return the piece's text."""
        return "\n".join(line for part in self.ranges for line in lines[part.first - 1 : part.last])

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the piece's lines."""
        for part in self.ranges:
            yield from range(part.first, part.last + 1)

    def size(self, lines: Sequence[str]) -> int:
        """Return the number of bytes that the piece takes as a passage."""
        return sum(
            min(len(lines[number - 1].encode()), LONGEST_LINE) + len(str(number)) + 2
            for number in self.numbers()
        )


@dataclass(frozen=True)
class _Start:
    """The first line of a piece."""

    line: int
    depth: int
    name: str


def pieces_of(text: str, outline: str | None) -> list[Piece]:
    """Return the pieces of a file in order. Together they hold every line that is not blank.

    Args:
        text: The file's text.
        outline: Its outline (`outline.outline`); None makes one with patterns.
    """
    lines = text.split("\n")
    pieces: list[Piece] = []
    owners: list[_Start] = []
    starts = _starts(lines, text, outline)
    for start, end in zip(starts, [*(start.line for start in starts[1:]), len(lines) + 1], strict=True):
        while owners and owners[-1].depth >= start.depth:
            owners.pop()
        around = tuple(owner.name for owner in owners)
        pieces += _divided(lines, Passage(start.line, end - 1), start.name, around)
        if start.name:
            owners.append(start)
    return pieces


def _starts(lines: Sequence[str], text: str, outline: str | None) -> list[_Start]:
    """Return the first lines of all definitions, and the file's first line."""
    if outline:
        found = [entry for line in outline.split("\n") if (entry := _ENTRY.fullmatch(line))]
        entries = [(int(entry[1]), len(entry[2]) // 2, entry[3]) for entry in found]
    else:
        entries = definition_lines(text)
    starts = [_Start(1, 0, "")]
    for number, depth, signature in entries:
        if number > len(lines):
            continue
        line = number
        while line - 1 > starts[-1].line and lines[line - 2].lstrip().startswith(_BEFORE):
            line -= 1
        if line > starts[-1].line:
            starts.append(_Start(line, depth, _name(signature)))
        elif number == starts[-1].line:
            starts[-1] = _Start(line, depth, _name(signature))
    return starts


def _name(signature: str) -> str:
    """Return the name in a signature: the last word before its parameters, bases or value."""
    head = re.split(r"[(=:\[{<]", signature, maxsplit=1)[0]
    words = _WORD.findall(head)
    if len(words) < 2 and "(" in signature:  # a Go method has its receiver in parentheses before its name
        words = _WORD.findall(signature.partition(")")[2].partition("(")[0]) or words
    return words[-1] if words else signature


def _divided(lines: Sequence[str], span: Passage, name: str, owners: tuple[str, ...]) -> list[Piece]:
    """Return the pieces of one definition: its docstring apart, and a long body in blocks."""
    last = span.last
    while last >= span.first and not lines[last - 1].strip():
        last -= 1
    if last < span.first:
        return []
    span = Passage(span.first, last)
    is_head = span.first == 1
    docstring = _docstring(lines, span)
    if docstring is None:
        bodies: list[tuple[Passage, ...]] = [(block,) for block in _blocks(lines, span, named=bool(name))]
        return [Piece(body, name, owners, is_head=is_head) for body in bodies]
    before, after = Passage(span.first, docstring.first - 1), Passage(docstring.last + 1, span.last)
    blocks = list(_blocks(lines, after, named=bool(name)))
    first = (before, *blocks[:1])
    return [
        Piece(tuple(part for part in first if part.first <= part.last), name, owners, is_head=is_head),
        *(Piece((block,), name, owners) for block in blocks[1:]),
        Piece((docstring,), name, owners, is_docstring=True),
    ]


def _docstring(lines: Sequence[str], span: Passage) -> Passage | None:
    """Return the lines of a long docstring after its first line; None if the definition has no long docstring."""
    for number in range(span.first, min(span.last, span.first + _HEADER) + 1):
        match = _DOCSTRING.match(lines[number - 1])
        if match is None:
            continue
        if match[1] in lines[number - 1][match.end() :]:
            return None
        for end in range(number + 1, span.last + 1):
            if match[1] in lines[end - 1]:
                return Passage(number + 1, end) if end - number >= _SHORT_DOCSTRING else None
        return None
    return None


def _blocks(lines: Sequence[str], span: Passage, *, named: bool) -> Iterable[Passage]:
    """Yield a range whole, or in blocks that end at a blank line where one is near."""
    longest = _LONGEST_PIECE if named else _BLOCK
    first = span.first
    while span.last - first >= longest:
        near = range(first + _BLOCK - 1, min(first + 2 * _BLOCK, span.last))
        end = next((number for number in near if not lines[number - 1].strip()), first + _BLOCK - 1)
        yield Passage(first, end)
        first = end + 1
    if first <= span.last:
        yield Passage(first, span.last)


def merged(ranges: Iterable[Passage]) -> list[Passage]:
    """Return ranges in order, with neighbours and overlaps joined."""
    found: list[Passage] = []
    for each in sorted(ranges, key=lambda part: (part.first, part.last)):
        if found and each.first <= found[-1].last + 1:
            found[-1] = Passage(found[-1].first, max(found[-1].last, each.last))
        else:
            found.append(each)
    return found
