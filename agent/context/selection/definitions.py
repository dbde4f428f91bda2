"""Choose the definitions that an issue is about, with their bodies, and their tests.

Each file near the issue is divided into pieces (`passages`). A piece gets a score from the issue's words and names, from
its file, and from its class. Tests get one from the definitions that they use. The best pieces are shown within the room.
A file of which most is shown is shown whole.

The result depends on the files and the issue only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from m3agent.agent.context.selection.kinds import FileKind
from m3agent.agent.context.selection.passages import (
    Clues,
    Passage,
    Piece,
    folded,
    line_scores,
    merged,
    pieces_of,
    read_clues,
)
from m3agent.agent.context.selection.query import Query, read_issue
from m3agent.agent.context.selection.select import bm25, highest, scaled
from m3agent.agent.context.selection.terms import codes, words

MOST_FILES = 80
MOST_BYTES = 3_000_000
"""Give at most this many files, and bytes in them: the best for the issue."""
_WITH_TESTS, _TESTS_OF_EACH = 20, 3
"""Tests named like this many of the best files are among them, at most so many for each."""
# What each sign of a piece counts; a sign is 1 for the piece where it is strongest. The weights come from a short search on fixes
# of ten repositories: docs/benchmarks.md names them. Signs that were tried and did not help: callers, callees, the best piece
# of the file, the size of a piece of code.
_WORDS, _NAME, _CLUE, _FILE = 1.0, 0.8, 0.75, 0.5
_NO_SOURCE = 0.5
"""Factor for pieces of documents, examples and settings."""
_KIN = 0.1
"""For what the best piece around it, its class, scores."""
_USES, _BESIDE = 1.0, 0.24
"""For a test: the definitions that it uses; and that its file is named like the file of a chosen definition."""
_DOCSTRING = 0.15
"""Factor for a docstring."""
_HEAD = 0.8
"""For the beginning of a file, its imports: this share of its best piece's score."""
_TEST_SIZE = 0.15
"""A test's score is divided by its size to this power."""
_TESTS_SHARE = 0.3
"""Share of the room for tests and their support; the rest is for other code."""
_WHOLE = 0.9
"""A file is shown whole if its chosen pieces take at least this share of its tokens."""
_FRAME_BYTES, _FRAME_TOKENS = 60, 20
"""Size of the delimiters around a file's passages."""
_K1, _B = 1.2, 0.5
"""Constants of BM25; by the second, the length of a piece counts against it."""
_TESTED = 40
"""Tests of this many of the best pieces of code count."""


@dataclass(frozen=True)
class Source:
    """A file that may be shown in pieces."""

    path: str
    text: str
    outline: str | None
    tokens: int
    kind: FileKind
    relevance: float
    """How much the whole file seems to matter (`select.Near`)."""


@dataclass
class _Unit:
    """A piece with what the choice needs to know of it."""

    source: int
    piece: Piece
    tokens: float
    words: Counter[str]
    clue: float = 0.0
    score: float = 0.0


class Definitions:
    """The pieces of some files, ranked for an issue."""

    def __init__(self, sources: Sequence[Source], issue: str) -> None:
        self._sources = sources
        clues = read_clues(issue)
        units = _units(sources, clues)
        _score_by_issue(units, sources, read_issue(issue), clues)
        code = [unit for unit in units if sources[unit.source].kind is not FileKind.TEST]
        tests = [unit for unit in units if sources[unit.source].kind is FileKind.TEST]
        _add_kin(code)
        _finish(code)
        _score_tests(tests, code, sources)
        _finish(tests)
        self._code, self._tests = _ranked(code, 0.0), _ranked(tests, _TEST_SIZE)

    def within(self, room: int) -> dict[int, list[Passage] | None]:
        """Return the lines that are shown in about `room` tokens, by the position of the source; None for a whole source."""
        groups = [(self._code, 1 - _TESTS_SHARE), (self._tests, _TESTS_SHARE)]
        return _filled(self._sources, groups, room)


def _units(sources: Sequence[Source], clues: Clues) -> list[_Unit]:
    strict = Clues({}, clues.strings, clues.lines)
    units: list[_Unit] = []
    for index, source in enumerate(sources):
        lines = source.text.split("\n")
        scores = line_scores(source.path, source.text, lines, strict)
        density = source.tokens / (len(source.text.encode()) + _FRAME_BYTES)
        for piece in pieces_of(source.text, source.outline):
            text = piece.text(lines)
            clue = sum(scores.get(number, 0.0) for number in piece.numbers())
            units.append(_Unit(index, piece, piece.size(lines) * density, words(text), clue))
    return units


def _score_by_issue(units: Sequence[_Unit], sources: Sequence[Source], query: Query, clues: Clues) -> None:
    by_words = scaled(_word_scores(units, query.terms))
    by_name = scaled(_name_scores(units, clues))
    by_clue = scaled([min(unit.clue, 8.0) for unit in units])
    for unit, word, name, clue in zip(units, by_words, by_name, by_clue, strict=True):
        source = sources[unit.source]
        unit.score = _WORDS * word + _NAME * name + _CLUE * clue + _FILE * source.relevance
        unit.score *= 1.0 if source.kind in (FileKind.SOURCE, FileKind.TEST) else _NO_SOURCE


def _word_scores(units: Sequence[_Unit], wanted: dict[int, float]) -> list[float]:
    """Return the words' score of each unit; a word in a name counts more."""
    hits: list[dict[int, int]] = []
    for unit in units:
        tally = Counter[int]()
        named = ((word, 2) for word in (unit.piece.name, *unit.piece.owners[-1:]))
        for word, number in (*unit.words.items(), *named):
            for term in codes(word):
                if term in wanted:
                    tally[term] += number
        hits.append(tally)
    return bm25(hits, [unit.words.total() for unit in units], wanted, k1=_K1, b=_B)


def _name_scores(units: Sequence[_Unit], clues: Clues) -> list[float]:
    """Return for each unit how clearly the issue names it; a name with few definitions counts more."""
    named = clues.names
    number = Counter(folded(unit.piece.name) for unit in units)
    values: list[float] = []
    for unit in units:
        own = folded(unit.piece.name)
        value = named.get(own, 0.0) / math.sqrt(number[own])
        around = max((named.get(folded(owner), 0.0) for owner in unit.piece.owners), default=0.0)
        values.append(value * (2.0 if around and value else 1.0) + 0.2 * around)
    return values


def _add_kin(units: Sequence[_Unit]) -> None:
    """Raise the score of what stands in the same class as the best units."""
    best = highest((around, unit.score) for unit in units for around in _around(unit))
    for unit in units:
        unit.score += _KIN * max((best[around] for around in _around(unit)), default=0.0)


def _around(unit: _Unit) -> list[tuple[int, str]]:
    return [(unit.source, name) for name in (*unit.piece.owners, unit.piece.name) if name]


def _score_tests(tests: Sequence[_Unit], code: Sequence[_Unit], sources: Sequence[Source]) -> None:
    """Raise the score of tests that use the best definitions, and of those in the files named like theirs."""
    best = sorted(code, key=lambda unit: -round(unit.score, 9))[:_TESTED]
    most = best[0].score if best else 1.0
    names = highest(
        (name, unit.score / most)
        for unit in best
        for name in (unit.piece.name, *unit.piece.owners)
        if len(name) > 2
    )
    stems = highest((stem, unit.score / most) for unit in best if (stem := _stem(sources[unit.source].path)))
    used = [sorted(unit.words.keys() & names.keys()) for unit in tests]
    frequency = Counter(name for each in used for name in each)
    uses = scaled(
        [sum(names[name] * math.log(1 + len(tests) / frequency[name]) for name in each) for each in used]
    )
    for unit, value in zip(tests, uses, strict=True):
        unit.score += _USES * value + _BESIDE * stems.get(_stem(sources[unit.source].path), 0.0)


def beside_their_tests(files: Sequence[tuple[str, FileKind]]) -> list[int]:
    """Return the positions of ranked files (path and kind), with tests after the best files that they are named like.

    A test often has no word of the issue, so that alone its rank would be low.
    """
    tests: dict[str, list[int]] = {}
    for place, (path, kind) in enumerate(files):
        if kind is FileKind.TEST and (stem := _stem(path)):
            tests.setdefault(stem, []).append(place)
    order: dict[int, None] = {}
    for place, (path, _) in enumerate(files):
        order[place] = None
        if place < _WITH_TESTS:
            order |= dict.fromkeys(tests.get(_stem(path), [])[:_TESTS_OF_EACH])
    return list(order)


def _stem(path: str) -> str:
    """Return the name by which a file and its test file correspond; empty without one."""
    folder, _, name = path.rpartition("/")
    stem = name.partition(".")[0].lower().strip("_")
    for affix in ("test_", "tests_"):
        stem = stem.removeprefix(affix)
    for affix in ("_test", "_tests", "_spec", "test"):
        stem = stem.removesuffix(affix)
    stem = stem.strip("_")
    return folder.rpartition("/")[2].lower() if stem in ("init", "main", "index", "", "conftest") else stem


def _finish(units: Sequence[_Unit]) -> None:
    """Set the scores of docstrings and of beginnings of files, which depend on those of the other units."""
    best = highest((unit.source, unit.score) for unit in units if not unit.piece.is_docstring)
    for unit in units:
        if unit.piece.is_docstring:
            unit.score *= _DOCSTRING
        elif unit.piece.is_head:
            unit.score = max(unit.score, _HEAD * best[unit.source])


def _filled(
    sources: Sequence[Source], groups: Sequence[tuple[list[_Unit], float]], room: int
) -> dict[int, list[Passage] | None]:
    """Return what is shown of each source in about `room` tokens.

    Each group of ranked units has its share of the room. What one group leaves, the next may use.
    """
    taken: dict[int, list[_Unit]] = {}
    waiting: list[_Unit] = []
    left = 0.0
    for group, share in (*groups, (waiting, 0.0)):
        left += room * share
        for unit in [*group]:
            cost = unit.tokens + (0 if unit.source in taken else _FRAME_TOKENS)
            if cost <= left:
                taken.setdefault(unit.source, []).append(unit)
                left -= cost
            else:
                waiting.append(unit)
    return {index: _part(sources[index], units) for index, units in taken.items()}


def _ranked(units: Iterable[_Unit], power: float) -> list[_Unit]:
    return sorted(
        units,
        key=lambda unit: (
            -round(unit.score / max(unit.tokens, 20.0) ** power, 9),
            unit.piece.ranges[0].first,  # files with equal pieces share the room
            unit.source,
        ),
    )


def _part(source: Source, units: Sequence[_Unit]) -> list[Passage] | None:
    if sum(unit.tokens for unit in units) + _FRAME_TOKENS >= _WHOLE * source.tokens:
        return None
    return merged(lines for unit in units for lines in unit.piece.ranges)
