"""Find the passages of a file that an issue is about, and write an outline and passages within a size.

Everything here is a pure function of the issue, the file's text and its outline.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

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
    names = dict.fromkeys(word for code in _QUOTED_CODE.findall(issue) for word in _WORD.findall(code))
    names |= dict.fromkeys(one or other for one, other in _USED_AS_NAME.findall(issue))
    words: dict[str, float] = {}
    for word in (*names, *_WORD.findall(issue)):
        if len(words) == _MOST_WORDS:
            break
        if word not in words and len(word) > 2:
            is_name = word in names or _LOOKS_LIKE_NAME.search(word)
            words[word] = _NAME if is_name else _PLAIN
    strings = [next(filter(None, groups)).strip() for groups in _STRING_TEXT.findall(issue)]
    strings += [message.strip() for message in _ERROR.findall(issue)]
    # A single word is a clue already.
    phrases = dict.fromkeys(text for text in strings if len(text) > 3 and not _WORD.fullmatch(text))
    lines = {
        (parts, int(number)): None
        for pattern in (_FRAME, _LINE_REFERENCE)
        for path, number in pattern.findall(issue)
        if (parts := _parts(path))
    }
    return Clues(words, tuple(phrases)[:_MOST_STRINGS], tuple(lines)[:_MOST_LINES])


def find_passages(path: str, text: str, outline: str, clues: Clues) -> list[Passage]:
    """Return the passages of a file that the clues point at, best first.

    A definition is a passage with its body; anything else is a line with a few lines around it.

    Args:
        path: The file's path.
        text: The file's text.
        outline: Its outline; empty if it has none.

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

    Each line begins with its number and a tab. A line with `…` stands for lines between two passages.
    """
    lines = text.split("\n")
    shown: dict[int, str] = {}
    for number in (number for each in passages for number in range(each.first, each.last + 1)):
        if number in shown:
            continue
        line = _shortened(f"{number}\t{lines[number - 1]}")
        size -= _bytes(line) + (0 if number - 1 in shown else len("…\n".encode()))
        if size < 0:
            break
        shown[number] = line
    written: list[str] = []
    for number in sorted(shown):
        if written and number - 1 not in shown:
            written.append("…")
        written.append(shown[number])
    return "\n".join(written)


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
        range(len(definitions)),
        key=lambda i: (definitions[i].first not in named, definitions[i].depth, i),
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
    entries = [entry for line in outline.split("\n") if (entry := _ENTRY.fullmatch(line))]
    found: list[_Definition] = []
    following: list[tuple[int, int]] = []  # depth and line of later definitions, the nearest one last
    for entry in reversed(entries):
        number, depth = int(entry[1]), len(entry[2]) // 2
        while following and following[-1][0] > depth:
            following.pop()
        last = following[-1][1] - 1 if following else end
        following.append((depth, number))
        head = _WORD.findall(entry[3].partition("(")[0])
        # A Go method has its receiver in parentheses before its name.
        words = head if len(head) > 1 else _WORD.findall(entry[3])
        found.append(_Definition(number, max(number, last), depth, tuple(words)))
    return found[::-1]


def _defined(definitions: Sequence[_Definition], clues: Clues) -> list[tuple[_Definition, float]]:
    """Return each definition that a clue names, with its score."""
    wanted: dict[str, float] = {}
    for word, weight in clues.words.items():
        wanted[folded(word)] = max(weight, wanted.get(folded(word), 0.0))
    partial = [word for word, weight in wanted.items() if weight == _NAME and len(word) > 4]
    exact: dict[str, list[int]] = {}
    similar: dict[str, list[int]] = {}
    for index, definition in enumerate(definitions):
        for name in dict.fromkeys(folded(word) for word in definition.words):
            if name in wanted:
                exact.setdefault(name, []).append(index)
            for word in partial:
                if word != name and word in name:
                    similar.setdefault(word, []).append(index)
    scores: dict[int, float] = {}
    for factor, found in ((_DEFINES, exact), (_DEFINES_SIMILAR, similar)):
        for word, indexes in found.items():
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
