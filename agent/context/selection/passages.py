"""Divide a file into pieces, find the passages that an issue is about, and write an outline and passages within a size.

Everything here is a pure function of the issue, the file's text and its outline.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from m3agent.agent.context.selection.query import LONGEST_ISSUE
from m3agent.agent.context.selection.terms import definition_lines

_MOST_WORDS = 500
_MOST_STRINGS = 50
_MOST_LINES = 100
LONGEST_LINE = 400
"""Longer lines are cut, so that one line of data does not use the whole room."""
_CONTEXT_LINES = 4
_MOST_OF_DEFINITION = 80
_HEAD_LINES = 40
"""Lines shown of a file without an outline in which nothing from the issue occurs."""
_WEAKEST = 10
"""Leave out a passage whose score is less than one part in this many of the best score."""

# How much a clue counts. A clue other than a line number is divided by the number of lines where it occurs.
_LINE, _STRING, _NAME, _PLAIN = 8.0, 4.0, 3.0, 0.2
_DEFINES, _DEFINES_SIMILAR = 3.0, 1.5
"""Factors for a definition with exactly this name, and for one whose name contains it: a test, for example."""

_WORD = re.compile(r"[^\W\d]\w+")
_QUOTED_CODE = re.compile(r"`([^`\n]{2,200})`")
# Each begins at the beginning of a word, so that a very long word takes linear time.
_USED_AS_NAME = re.compile(r"(?<!\w)([^\W\d]\w{1,200})\(|(?<=\w)\.([^\W\d]\w{1,200})")
_LOOKS_LIKE_NAME = re.compile(r"[^\W_]_+[^\W_]|[a-z][A-Z]|[A-Z][a-z]+[A-Z]|[^\W\d_]\d")
_STRING_TEXT = re.compile(r"\"([^\"\n]{4,200})\"|'([^'\n]{4,200})'|`([^`\n]{4,200})`")
_ERROR = re.compile(r"^[ \t]*[\w.]*(?:Error|Exception|Warning)\b:[ \t]*([^\n]{4,200})", re.MULTILINE)
_FRAME = re.compile(r"\bFile \"([^\"\n]{1,300})\", line (\d{1,7})")
_LINE_REFERENCE = re.compile(r"(?<![\w.@+/\\-])([\w.@+/\\-]{1,300}\.\w{1,20})(?::|#L)(\d{1,7})")
_ENTRY = re.compile(r"(\d+)\t((?:  )*)(.*)")


@dataclass(frozen=True)
class Clues:
    """What an issue says about places in files."""

    words: dict[str, float]
    """Weight of each word."""
    strings: tuple[str, ...]
    """Quoted texts and error messages."""
    lines: tuple[tuple[tuple[str, ...], int], ...]
    """Paths, as their parts in lower case, each with a line number."""

    @property
    def names(self) -> dict[str, float]:
        """Weight of each folded word."""
        ascending = sorted(self.words.items(), key=lambda item: item[1])
        return {name: weight for word, weight in ascending if (name := folded(word))}


@dataclass(frozen=True)
class Passage:
    """A range of lines, numbered from 1, with the last line included."""

    first: int
    last: int


@dataclass(frozen=True)
class _Definition:
    """A line of an outline, and the last line of what it defines."""

    first: int
    last: int
    depth: int
    words: tuple[str, ...]


def read_clues(issue: str) -> Clues:
    """Return the clues in an issue: names, quoted texts, and lines of files."""
    issue = issue[:LONGEST_ISSUE]
    strings = [next(filter(None, groups)).strip() for groups in _STRING_TEXT.findall(issue)]
    strings += [message.strip() for message in _ERROR.findall(issue)]
    # A single word is a clue already.
    phrases = dict.fromkeys(text for text in strings if len(text) > 3 and not _WORD.fullmatch(text))
    references = (*_FRAME.findall(issue), *_LINE_REFERENCE.findall(issue))
    lines = dict.fromkeys((parts, int(number)) for path, number in references if (parts := _parts(path)))
    return Clues(_weights(issue), tuple(phrases)[:_MOST_STRINGS], tuple(lines)[:_MOST_LINES])


def _weights(issue: str) -> dict[str, float]:
    """Return the weight of each word; names come first, because there is a limit."""
    names = dict.fromkeys(word for code in _QUOTED_CODE.findall(issue) for word in _WORD.findall(code))
    names |= dict.fromkeys(before or after for before, after in _USED_AS_NAME.findall(issue))
    every = dict.fromkeys(word for word in (*names, *_WORD.findall(issue)) if len(word) > 2)
    return {
        word: _NAME if word in names or _LOOKS_LIKE_NAME.search(word) else _PLAIN
        for word in islice(every, _MOST_WORDS)
    }


def find_passages(path: str, text: str, outline: str, clues: Clues) -> list[Passage]:
    """Return the passages of a file that the clues point at, best first.

    A definition is a passage with its body; anything else is a line with a few lines around it.

    Returns:
        The first lines of the file if no clue points at a line and there is no outline.
    """
    lines = text.split("\n")
    scores: dict[Passage, float] = {}

    def add(first: int, last: int, score: float) -> None:
        passage = Passage(max(1, first), min(last, len(lines)))
        scores[passage] = scores.get(passage, 0.0) + score

    for definition, score in _defined(_definitions(outline, len(lines)), clues):
        last = min(definition.last, definition.first + _MOST_OF_DEFINITION - 1)
        while last > definition.first and not lines[last - 1].strip():
            last -= 1
        add(definition.first, last, score)
    for number, score in line_scores(path, text, lines, clues).items():
        add(number - _CONTEXT_LINES, number + _CONTEXT_LINES, score)
    least = max(scores.values(), default=0.0) / _WEAKEST
    ranked = sorted(
        (-round(score, 9), passage.first, passage.last) for passage, score in scores.items() if score >= least
    )
    if not ranked and not outline:
        return [Passage(1, min(_HEAD_LINES, len(lines)))]
    return [Passage(first, last) for _, first, last in ranked]


def write_passages(text: str, passages: Sequence[Passage], size: int) -> str:
    """Return the best passages in at most `size` bytes, in the order of the file.

    Before each passage stands a line like `… lines 12-40`. Numbers of all lines would take a tenth of the tokens.
    """
    lines = text.split("\n")
    shown: dict[int, str] = {}
    for number in (number for each in passages for number in range(each.first, each.last + 1)):
        if number in shown:
            continue
        line = _shortened(lines[number - 1])
        size -= _bytes(line) + (0 if number - 1 in shown else _bytes(_heading(Passage(number, len(lines)))))
        if size < 0:
            break
        shown[number] = line
    written: list[str] = []
    for passage in merged(Passage(number, number) for number in shown):
        written += _heading(passage), *(shown[number] for number in range(passage.first, passage.last + 1))
    return "\n".join(written)


def _heading(passage: Passage) -> str:
    return f"… lines {passage.first}-{passage.last}"


def write_outline(outline: str, clues: Clues, size: int) -> str:
    """Return an outline in at most `size` bytes.

    If it is too long, the definitions that the clues name are shown first, then outer ones before inner ones.
    The last line says how many are not shown.
    """
    if _bytes(outline) <= size:
        return outline
    entries = outline.split("\n")
    definitions = _definitions(outline, 0)
    named = {definition.first for definition, _ in _defined(definitions, clues)}
    ranked = sorted(
        range(len(definitions)), key=lambda i: (definitions[i].first not in named, definitions[i].depth, i)
    )
    size -= _bytes(_rest(len(entries)))
    chosen: list[int] = []
    for index in ranked:
        size -= _bytes(entries[index])
        if size < 0:
            break
        chosen.append(index)
    if not chosen:
        return ""
    return "\n".join([*(entries[index] for index in sorted(chosen)), _rest(len(entries) - len(chosen))])


def plain_outline(text: str) -> str:
    """Return an outline made with patterns only, for files without a parser; empty without definitions."""
    return "\n".join(
        f"{number}\t{'  ' * depth}{_shortened(line)}" for number, depth, line in definition_lines(text)
    )


def _rest(number: int) -> str:
    return f"(and {number} more definitions)"


def _bytes(line: str) -> int:
    """Return the size of a line with its end."""
    return len(line.encode()) + 1


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.lower().replace("\\", "/").split("/") if part not in ("", ".", ".."))


def _definitions(outline: str, end: int) -> list[_Definition]:
    """Return the definitions of an outline; each ends before the next one that is not inside it."""
    definitions: list[_Definition] = []
    following: list[tuple[int, int]] = []  # depth and line of later definitions, the nearest one last
    for number, depth, signature in reversed(_entries(outline)):
        while following and following[-1][0] > depth:
            following.pop()
        last = following[-1][1] - 1 if following else end
        following.append((depth, number))
        head = _WORD.findall(signature.partition("(")[0])
        # A Go method has its receiver in parentheses before its name.
        words = head if len(head) > 1 else _WORD.findall(signature)
        definitions.append(_Definition(number, max(number, last), depth, tuple(words)))
    return definitions[::-1]


def _entries(outline: str) -> list[tuple[int, int, str]]:
    """Return the lines of an outline in the form of `definition_lines`."""
    entries = [entry for line in outline.split("\n") if (entry := _ENTRY.fullmatch(line))]
    return [(int(entry[1]), len(entry[2]) // 2, entry[3]) for entry in entries]


def _defined(definitions: Sequence[_Definition], clues: Clues) -> list[tuple[_Definition, float]]:
    """Return each definition that a clue names, with its score."""
    wanted = clues.names
    partial = [word for word, weight in wanted.items() if weight == _NAME and len(word) > 4]
    meant: dict[tuple[float, str], list[int]] = {}
    for index, definition in enumerate(definitions):
        for name in dict.fromkeys(folded(word) for word in definition.words):
            similar = [(_DEFINES_SIMILAR, word) for word in partial if word != name and word in name]
            exact = [(_DEFINES, name)] if name in wanted else []
            for clue in exact + similar:
                meant.setdefault(clue, []).append(index)
    scores: dict[int, float] = {}
    for (factor, word), indexes in meant.items():
        # A word of many definitions is a keyword, for example, and says little.
        for index in indexes:
            scores[index] = scores.get(index, 0.0) + factor * wanted[word] / len(indexes)
    return [(definitions[index], score) for index, score in sorted(scores.items())]


def folded(word: str) -> str:
    """Return a name in a form that is equal for `interleave_evenly` and `InterleaveEvenly`."""
    return word.replace("_", "").casefold()


def line_scores(path: str, text: str, lines: Sequence[str], clues: Clues) -> dict[int, float]:
    """Return the score of each line that a clue points at."""
    scores: dict[int, float] = {}
    where: dict[str, list[int]] = {}
    starts: list[int] = []
    position = 0
    for number, line in enumerate(lines, start=1):
        starts.append(position)
        position += len(line) + 1
        for word in dict.fromkeys(_WORD.findall(line)):
            if word in clues.words:
                where.setdefault(word, []).append(number)
    found = [(clues.words[word], numbers) for word, numbers in where.items()]
    for string in clues.strings:
        numbers = []
        position = text.find(string)
        while position >= 0:
            numbers.append(bisect_right(starts, position))
            position = text.find(string, position + len(string))
        found.append((_STRING, numbers))
    parts = _parts(path)
    found += [
        (_LINE, [number])
        for named, number in clues.lines
        # the same name, in the same folder if both have one
        if number <= len(lines)
        and all(one == other for one, other in zip(parts[:-3:-1], named[:-3:-1], strict=False))
    ]
    for weight, numbers in found:
        for number in numbers:
            scores[number] = scores.get(number, 0.0) + weight / len(numbers)
    return scores


_IDENTIFIER = re.compile(r"[^\W\d]\w*")
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
        text = sum(min(len(lines[number - 1].encode()), LONGEST_LINE) + 1 for number in self.numbers())
        return text + sum(_bytes(_heading(part)) for part in self.ranges)


@dataclass(frozen=True)
class _Start:
    """The first line of a piece."""

    line: int
    depth: int
    name: str


def pieces_of(text: str, outline: str | None) -> list[Piece]:
    """Return the pieces of a file in order. Together they hold every line that is not blank.

    Args:
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
    starts = [_Start(1, 0, "")]
    for number, depth, signature in _entries(outline) if outline else definition_lines(text):
        if number > len(lines):
            continue
        line = number
        if signature.startswith("@"):
            line = _first_decorator(lines, number, starts[-1].line)
            signature = lines[number - 1].strip() if line < number else signature
        while line - 1 > starts[-1].line and lines[line - 2].lstrip().startswith(_BEFORE):
            line -= 1
        if line > starts[-1].line:
            starts.append(_Start(line, depth, _name(signature)))
        elif number == starts[-1].line:
            starts[-1] = _Start(line, depth, _name(signature))
    return starts


def _first_decorator(lines: Sequence[str], number: int, after: int) -> int:
    """Return the line after `after` with the first decorator of the definition at a line; that line without any."""
    indent = _indent(lines[number - 1])
    first = number
    for place in range(number - 1, after, -1):
        line = lines[place - 1]
        if line.strip() and _indent(line) <= indent and not line.lstrip().startswith(("@", ")", "]", "}")):
            break
        if line.lstrip().startswith("@") and _indent(line) == indent:
            first = place
    return first


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _name(signature: str) -> str:
    """Return the name in a signature: the last word before its parameters, bases or value."""
    head = re.split(r"[(=:\[{<]", signature, maxsplit=1)[0]
    words = _IDENTIFIER.findall(head)
    if len(words) < 2 and "(" in signature:  # a Go method has its receiver in parentheses before its name
        words = _IDENTIFIER.findall(signature.partition(")")[2].partition("(")[0]) or words
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
