"""Choose the definitions that an issue is about, with their bodies, their tests, and what they call.

Each file near the issue is divided into pieces (`pieces`). A piece gets a score from the issue's words and names, from
its file, and from the pieces that call it or are called by it. Tests get one from the definitions that they use. The best
pieces are shown within the room. A file of which most is shown is shown whole.

The result depends on the files and the issue only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
from m3agent.agent.context.selection.terms import codes, words

MOST_FILES = 80
MOST_BYTES = 3_000_000
"""Give at most this many files, and bytes in them: the best for the issue."""
_TESTS_SHARE = 0.33
"""Share of the room for tests and their support; the rest is for other code."""
_WHOLE = 0.97
"""A file is shown whole if its chosen pieces take at least this share of its tokens: their lines have numbers."""
_FRAME_BYTES, _FRAME_TOKENS = 60, 20
"""Size of the delimiters around a file's passages."""
_COMMON_NAME = 8
"""A name that more pieces than this define says nothing about who calls whom."""
_B = 0.5
"""How much the length of a piece counts against it."""
_CALLING = 40
"""Callers and callees count for this many of the best pieces."""


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


@dataclass(frozen=True)
class Weights:
    """What each sign of a piece counts; a sign is 1 for the piece where it is strongest.

    The weights were set by hand and by a short search on five repositories (benchmarks/visibility.py).
    """

    words: float = 1.0
    name: float = 0.8
    clue: float = 0.75
    file: float = 0.5
    calls: float = 0.15
    kin: float = 0.1
    """For what the best piece around it, its class, scores."""
    peak: float = 0.24
    """For what the best piece of its file scores."""
    uses: float = 1.6
    """For a test: the definitions that it uses."""
    beside: float = 0.24
    """For a test: its file is named like the file of a chosen definition."""
    docstring: float = 0.15
    """Factor for a docstring."""
    head: float = 0.8
    """For the beginning of a file, its imports: this share of its best piece's score."""
    size: float = 0.1
    """A score is divided by the piece's size to this power."""
    test_size: float = 0.3
    """The same for tests."""


DEFAULT = Weights()


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

    def __init__(self, sources: Sequence[Source], issue: str, weights: Weights = DEFAULT) -> None:
        self._sources = sources
        clues = read_clues(issue)
        units = _units(sources, clues)
        _score_by_issue(units, sources, read_issue(issue), clues, weights)
        code = [unit for unit in units if sources[unit.source].kind is not FileKind.TEST]
        tests = [unit for unit in units if sources[unit.source].kind is FileKind.TEST]
        _add_kin(code, weights)
        _add_calls(code, weights)
        _finish(code, weights)
        _score_tests(tests, code, sources, weights)
        _finish(tests, weights)
        self._code, self._tests = _ranked(code, weights.size), _ranked(tests, weights.test_size)

    def within(self, room: int) -> dict[int, list[Passage] | None]:
        """Return what is shown in about `room` tokens, by the position of the source.

        Returns:
            The lines of each source that is shown; None for one that is shown whole.
        """
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


def _score_by_issue(
    units: Sequence[_Unit], sources: Sequence[Source], query: Query, clues: Clues, weights: Weights
) -> None:
    by_words = _bm25(units, query.terms)
    by_name = _name_scores(units, clues)
    for unit, one, other, clue in zip(
        units, by_words, by_name, _scaled([min(unit.clue, 8.0) for unit in units]), strict=True
    ):
        unit.score = (
            weights.words * one
            + weights.name * other
            + weights.clue * clue
            + weights.file * sources[unit.source].relevance
        )


def _bm25(units: Sequence[_Unit], wanted: Mapping[int, float]) -> list[float]:
    """Return the words' score of each unit, scaled to 1; a word in a name counts more."""
    counts: list[dict[int, int]] = []
    for unit in units:
        found: dict[int, int] = {}
        for word, number in unit.words.items():
            for term in codes(word):
                if term in wanted:
                    found[term] = found.get(term, 0) + number
        for word in (unit.piece.name, *unit.piece.owners[-1:]):
            for term in codes(word):
                if term in wanted:
                    found[term] = found.get(term, 0) + 2
        counts.append(found)
    frequency = Counter(term for found in counts for term in found)
    rarity = {term: math.log(1 + (len(units) - n + 0.5) / (n + 0.5)) for term, n in frequency.items()}
    lengths = [sum(unit.words.values()) for unit in units]
    mean = sum(lengths) / max(1, len(units)) or 1.0
    values = [
        sum(
            wanted[term] * rarity[term] * number * 2.2 / (number + 1.2 * (1 - _B + _B * length / mean))
            for term, number in found.items()
        )
        for found, length in zip(counts, lengths, strict=True)
    ]
    return _scaled(values)


def _name_scores(units: Sequence[_Unit], clues: Clues) -> list[float]:
    """Return for each unit how clearly the issue names it; a name with few definitions counts more."""
    named: dict[str, float] = {}
    for word, weight in clues.words.items():
        named[folded(word)] = max(weight, named.get(folded(word), 0.0))
    number = Counter(folded(unit.piece.name) for unit in units if unit.piece.name)
    values: list[float] = []
    for unit in units:
        own = folded(unit.piece.name)
        value = named.get(own, 0.0) / math.sqrt(number[own]) if own else 0.0
        around = max((named.get(folded(owner), 0.0) for owner in unit.piece.owners), default=0.0)
        values.append(value * (2.0 if around and value else 1.0) + 0.2 * around)
    return _scaled(values)


def _add_kin(units: Sequence[_Unit], weights: Weights) -> None:
    """Raise the score of what stands in the same class or in the same file as the best units."""
    best: dict[tuple[int, str], float] = {}
    for unit in units:
        for around in _around(unit):
            best[around] = max(best.get(around, 0.0), unit.score)
    for unit in units:
        file, *classes = (best[around] for around in _around(unit))
        unit.score += weights.peak * file + weights.kin * max(classes, default=0.0)


def _around(unit: _Unit) -> list[tuple[int, str]]:
    return [
        (unit.source, ""),
        *((unit.source, name) for name in (*unit.piece.owners, unit.piece.name) if name),
    ]


def _add_calls(units: Sequence[_Unit], weights: Weights) -> None:
    """Raise the score of what the best units call, and of what calls them."""
    defined: dict[str, list[_Unit]] = {}
    for unit in units:
        if unit.piece.name and not unit.piece.is_docstring:
            defined.setdefault(unit.piece.name, []).append(unit)
    few = {name: found for name, found in defined.items() if len(found) <= _COMMON_NAME}
    best = sorted(units, key=lambda unit: -round(unit.score, 9))[:_CALLING]
    names = {unit.piece.name: unit.score for unit in reversed(best) if unit.piece.name in few}
    more: dict[int, float] = {}

    def credit(unit: _Unit, score: float) -> None:
        more[id(unit)] = max(more.get(id(unit), 0.0), score)

    for unit in best:
        for name in unit.words.keys() & few.keys() - {unit.piece.name}:
            for callee in few[name]:
                credit(callee, unit.score / len(few[name]))
    for unit in units:
        for name in unit.words.keys() & names.keys() - {unit.piece.name}:
            credit(unit, names[name] / len(few[name]))
    for unit in units:
        unit.score += weights.calls * more.get(id(unit), 0.0)


def _score_tests(
    tests: Sequence[_Unit], code: Sequence[_Unit], sources: Sequence[Source], weights: Weights
) -> None:
    """Raise the score of tests that use the best definitions, and of those in the files named like theirs."""
    best = sorted(code, key=lambda unit: -round(unit.score, 9))[:_CALLING]
    names: dict[str, float] = {}
    stems: dict[str, float] = {}
    most = best[0].score if best else 1.0
    for unit in best:
        score = unit.score / most
        for name in (unit.piece.name, *unit.piece.owners):
            if len(name) > 2:
                names[name] = max(names.get(name, 0.0), score)
        for stem in _stems(sources[unit.source].path):
            stems[stem] = max(stems.get(stem, 0.0), score)
    frequency = Counter(name for unit in tests for name in unit.words.keys() & names.keys())
    uses = _scaled(
        [
            sum(
                names[name] * math.log(1 + len(tests) / frequency[name])
                for name in sorted(unit.words.keys() & names.keys())
            )
            for unit in tests
        ]
    )
    for unit, value in zip(tests, uses, strict=True):
        beside = max((stems.get(stem, 0.0) for stem in _stems(sources[unit.source].path)), default=0.0)
        unit.score += weights.uses * value + weights.beside * beside


def _stems(path: str) -> set[str]:
    """Return the names by which a file and its test file correspond."""
    folder, _, name = path.rpartition("/")
    stem = name.partition(".")[0].lower().strip("_")
    for affix in ("test_", "tests_"):
        stem = stem.removeprefix(affix)
    for affix in ("_test", "_tests", "_spec", "test"):
        stem = stem.removesuffix(affix)
    stem = stem.strip("_")
    if stem in ("init", "main", "index", "", "conftest"):
        stem = folder.rpartition("/")[2].lower()
    return {stem} if stem else set()


def _finish(units: Iterable[_Unit], weights: Weights) -> None:
    """Set the scores of docstrings and of beginnings of files, which depend on those of the other units."""
    best: dict[int, float] = {}
    units = list(units)
    for unit in units:
        if not unit.piece.is_docstring:
            best[unit.source] = max(best.get(unit.source, 0.0), unit.score)
    for unit in units:
        if unit.piece.is_docstring:
            unit.score *= weights.docstring
        elif unit.piece.is_head:
            unit.score = max(unit.score, weights.head * best[unit.source])


def _filled(
    sources: Sequence[Source], groups: Sequence[tuple[list[_Unit], float]], room: int
) -> dict[int, list[Passage] | None]:
    """Return what is shown of each source.

    Args:
        sources: The files.
        groups: The ranked units of each group, with its share of the room. What one group leaves, the next may use.
        room: About the largest number of tokens.
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
            unit.source,
            unit.piece.ranges[0].first,
        ),
    )


def _part(source: Source, units: Sequence[_Unit]) -> list[Passage] | None:
    if sum(unit.tokens for unit in units) + _FRAME_TOKENS >= _WHOLE * source.tokens:
        return None
    return merged(lines for unit in units for lines in unit.piece.ranges)


def _scaled(values: list[float]) -> list[float]:
    most = max(values, default=0.0)
    return [value / most for value in values] if most > 0 else values
