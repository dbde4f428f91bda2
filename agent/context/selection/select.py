"""Choose what to show of a repository that exceeds the budget.

About 40 % of the budget is for a core and outlines that do not depend on the issue, so that all issues at a
commit share the server's prefix cache. The rest is for the files that the issue seems to be about.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from m3agent.agent.context.selection.imports import ImportMap
from m3agent.agent.context.selection.kinds import FileKind, comes_last, kind_of
from m3agent.agent.context.selection.query import Query, mentioned, read_issue
from m3agent.agent.context.selection.store import Content, Progress, TermStore
from m3agent.agent.context.selection.terms import codes, words

K1, B = 1.5, 0.75
"""The usual constants of BM25."""

_LARGE = 8
"""A file is large for a room if it takes more than one part in this many."""
_MOST_TRIED = 20_000_000
"""Stop making outlines after files with this many tokens: about 15 s of parsing, the first time."""
_WORTH = 2
"""An outline is skipped if it takes more than one part in this many of the file's tokens."""

_FOR_ISSUE = 100_000
"""With an issue, this many tokens are for what it is about; only what is left of the budget is for core and outlines."""

K = TypeVar("K")
Divide = Callable[[Sequence["Near"], int], Mapping[int, int | None]]
"""Choose what is shown of the files near the issue in this many tokens. It returns the tokens of each file that is shown
in parts, by its position in the candidates, and None for one that is shown whole.
"""


@dataclass(frozen=True)
class Candidate(Content):
    """A file that may be shown."""

    tokens: int
    """Its tokens in the context."""
    order: float
    """Its place in the order that does not depend on the issue."""
    touched: float | None
    """Natural logarithm of its decayed number of changes: the sum of exp(-age/100) over the commits that
    touched it, with ages in first-parent commits. None without history.
    """


@dataclass(frozen=True)
class Near:
    """A file with its relevance for the issue."""

    index: int
    """Its position in the candidates."""
    relevance: float
    """From 0 to 1; up to 2 for a file that the issue names."""
    kind: FileKind


@dataclass(frozen=True)
class Selection:
    """What is shown, as positions in the candidates."""

    core: list[int]
    """Shown first, in the candidates' stable order; independent of the issue."""
    outlined: list[int]
    """Outlines, in the same order; independent of the issue."""
    tail: list[int]
    """Other whole files in the stable order, and files for the issue after them; the best match is last, next to the issue.
    A file may also be outlined.
    """
    dropped: list[int]
    """All other files."""
    excerpts: frozenset[int] = frozenset()
    """The files of the tail that are shown in parts."""


KINDS = {
    FileKind.SOURCE: 1.0,
    FileKind.TEST: 0.8,
    FileKind.EXAMPLE: 0.8,
    FileKind.DOC: 0.5,
    FileKind.CONFIG: 0.5,
}


@dataclass(frozen=True)
class Weights:
    """The weight of each sign.

    Each sign is first divided by its largest value over all files, so a weight is what the best file gets.
    The weights were set by hand and are fitted to no repository. On seven repositories in six languages,
    leaving out or doubling `path`, `names`, `mentions`, `recency` or `neighbours` changes the recall at a quarter
    of the tokens by less than 0.02 on average (measured with benchmarks/selection.py).
    """

    words: float = 1.0
    path: float = 0.5
    names: float = 0.25
    mentions: float = 0.5
    recency: float = 0.4
    neighbours: float = 0.25
    kinds: Mapping[FileKind, float] = field(default_factory=lambda: KINDS)
    """Factor for each kind of file."""
    size: float = 0.2
    """A file's value is divided by its tokens to this power."""
    core: float = 0.4
    """Share of the budget for the core, without outlines."""
    core_beside_outlines: float = 0.3
    """Share of the budget for the core, with outlines."""
    outlines: float = 0.1
    """Share of the budget for outlines."""


DEFAULT = Weights()


@dataclass
class Evidence:
    """The unscaled evidence for each file: one number per file in each list; greater is better."""

    words: list[float]
    path: list[float]
    names: list[float]
    mentions: list[float]
    recency: list[float]
    degree: list[float]
    linked: list[list[int]]
    kinds: list[FileKind]


def select(
    candidates: Sequence[Candidate],
    issue: str,
    budget: int,
    terms: TermStore,
    *,
    outline_tokens: Callable[[int], int | None] | None = None,
    divide: Divide | None = None,
    progress: Progress | None = None,
) -> Selection:
    """Choose what to show of `candidates` in at most `budget` tokens.

    Args:
        outline_tokens: Returns the tokens of a candidate's outline, or None if it has none. It is called only
            for files whose outline may be shown.
        divide: Chooses parts of the files that are near the issue, best first. Without it, files are whole.
    """
    signs = read_signs(candidates, read_issue(issue), terms, progress)
    by_issue = by_prior = _ranked(candidates, static_values(candidates, signs))
    if issue.strip():
        by_issue = _ranked(candidates, issue_values(candidates, signs))
    else:
        divide = None
    stable = max(0, budget - _FOR_ISSUE) if divide else budget
    core, outlined, used = _core(candidates, by_prior, outline_tokens, stable)
    shown = set(core)
    ranked = [i for i in by_issue if i not in shown]
    divided: Mapping[int, int | None] = {}
    if divide:
        divided = divide(_near(candidates, signs, shown), min(budget - used, _FOR_ISSUE))
        used += sum(candidates[i].tokens if part is None else part for i, part in divided.items())
    others = [i for i in _last(candidates, signs, ranked) if i not in divided]
    more = _fill(candidates, others, budget - used)[0]
    last = {*divided} if divide else {*more}
    tail = [*_in_order(candidates, set(more) - last), *(i for i in ranked[::-1] if i in last)]
    dropped = sorted({*range(len(candidates))}.difference(core, outlined, tail))
    parts = frozenset(i for i, part in divided.items() if part is not None)
    return Selection(_in_order(candidates, core), _in_order(candidates, outlined), tail, dropped, parts)


def _core(
    candidates: Sequence[Candidate],
    ranked: Sequence[int],
    outline_tokens: Callable[[int], int | None] | None,
    budget: int,
) -> tuple[list[int], list[int], int]:
    """Return the files and the outlines that all issues share, and their total tokens."""
    if outline_tokens is None:
        core, used = _fill(candidates, ranked, int(budget * DEFAULT.core))
        return core, [], used
    core, used = _fill(candidates, ranked, int(budget * DEFAULT.core_beside_outlines))
    shown = set(core)
    rest = [i for i in ranked if i not in shown]
    outlined, more = _outlines(candidates, rest, outline_tokens, int(budget * DEFAULT.outlines))
    return core, outlined, used + more


def _in_order(candidates: Sequence[Candidate], chosen: Iterable[int]) -> list[int]:
    return sorted(chosen, key=lambda i: (candidates[i].order, candidates[i].path))


def _near(candidates: Sequence[Candidate], signs: Evidence, shown: Collection[int]) -> list[Near]:
    """Return the files that are not shown yet, best first, whatever their size."""
    values = scaled(relevance(signs, DEFAULT))
    return [
        Near(i, values[i] + signs.mentions[i], signs.kinds[i])
        for i in _last(candidates, signs, _ranked(candidates, values))
        if i not in shown
    ]


def _last(candidates: Sequence[Candidate], signs: Evidence, ranked: Sequence[int]) -> list[int]:
    """Return a ranking with the files at its end that matter least, unless the issue names them."""
    paths = {candidate.path for candidate in candidates}
    return sorted(ranked, key=lambda i: not signs.mentions[i] and comes_last(candidates[i].path, paths))


def _ranked(candidates: Sequence[Candidate], values: list[float]) -> list[int]:
    """Return the positions, best first.

    Values are rounded, because their last bits can differ between machines.
    """
    return sorted(range(len(candidates)), key=lambda i: (-round(values[i], 9), candidates[i].path))


def _fill(candidates: Sequence[Candidate], ranked: Iterable[int], room: int) -> tuple[list[int], int]:
    """Return the best files that fit into `room` tokens, and their total tokens.

    Files that are large for the room are skipped. The first other file that does not fit ends the choice: if smaller ones
    filled the rest, a change of one line would exchange many of them, and a server could reuse little of the prompt.
    """
    chosen: list[int] = []
    used = 0
    for index in ranked:
        tokens = candidates[index].tokens
        if used + tokens <= room:
            chosen.append(index)
            used += tokens
        elif tokens <= room // _LARGE:
            break
    return chosen, used


def _outlines(
    candidates: Sequence[Candidate], ranked: Iterable[int], cost: Callable[[int], int | None], room: int
) -> tuple[list[int], int]:
    """Return the outlines that fit into `room` tokens, and their total tokens.

    Making an outline takes time, so the search stops at the first that does not fit.
    """
    chosen: list[int] = []
    used = tried = 0
    for index in ranked:
        if tried > _MOST_TRIED:
            break
        tried += candidates[index].tokens
        tokens = cost(index)
        if tokens is None or tokens * _WORTH > candidates[index].tokens:
            continue
        if used + tokens > room:
            break
        chosen.append(index)
        used += tokens
    return chosen, used


def read_signs(
    candidates: Sequence[Candidate], query: Query, terms: TermStore, progress: Progress | None = None
) -> Evidence:
    """Compare all candidates with the query."""
    number = len(candidates)
    imports = ImportMap([candidate.path for candidate in candidates])
    wanted = frozenset(query.terms)
    lengths = [0] * number
    hits: list[dict[int, int]] = [{}] * number
    names: list[frozenset[int]] = [frozenset()] * number
    edges: list[dict[int, float]] = [{}] * number
    for index, found in terms.terms(candidates, progress):
        lengths[index] = found.length
        if common := wanted.intersection(found.terms):
            hits[index] = {term: found.counts[found.terms.index(term)] for term in common}
        names[index] = query.names.intersection(found.defined)
        edges[index] = imports.targets(index, found.imports)
    degree = [0.0] * number
    linked: list[list[int]] = [[] for _ in range(number)]
    for index, targets in enumerate(edges):
        for target, part in targets.items():
            degree[target] += part
            linked[target].append(index)
            linked[index].append(target)
    in_path = [_path_hits(candidate.path, wanted) for candidate in candidates]
    return Evidence(
        words=bm25(hits, lengths, query.terms, k1=K1, b=B),
        path=_rarity(in_path, query.terms),
        names=_rarity(names),
        mentions=mentioned([candidate.path for candidate in candidates], query),
        recency=[
            0.0 if c.touched is None else math.log1p(math.exp(min(c.touched, 50.0))) for c in candidates
        ],
        degree=[math.log1p(each) for each in degree],
        linked=linked,
        kinds=[kind_of(candidate.path) for candidate in candidates],
    )


def bm25(
    hits: Sequence[Mapping[int, int]],
    lengths: Sequence[int],
    weights: Mapping[int, float],
    *,
    k1: float,
    b: float,
) -> list[float]:
    """Return the BM25 score of each text, from the number of its hits by term, and its length."""
    rarity = _idf(hits)
    mean = sum(lengths) / max(1, len(lengths)) or 1.0
    values: list[float] = []
    for tally, length in zip(hits, lengths, strict=True):
        norm = k1 * (1 - b + b * length / mean)
        scores = (
            weights[term] * rarity[term] * count * (k1 + 1) / (count + norm) for term, count in tally.items()
        )
        values.append(sum(scores))
    return values


def highest(scores: Iterable[tuple[K, float]]) -> dict[K, float]:
    """Return the highest score of each key."""
    best: dict[K, float] = {}
    for key, score in scores:
        best[key] = max(best.get(key, 0.0), score)
    return best


def scaled(values: list[float]) -> list[float]:
    """Return values of which the largest is 1."""
    most = max(values, default=0.0)
    return [value / most for value in values] if most > 0 else values


def _idf(terms: Sequence[Iterable[int]]) -> dict[int, float]:
    frequency = Counter(term for each in terms for term in each)
    number = len(terms)
    return {term: math.log(1 + (number - n + 0.5) / (n + 0.5)) for term, n in frequency.items()}


def _rarity(terms: Sequence[Collection[int]], weights: Mapping[int, float] | None = None) -> list[float]:
    """Return for each file the sum over its terms; rare terms count more."""
    rarity = _idf(terms)
    if weights is not None:
        rarity = {term: weights[term] * value for term, value in rarity.items()}
    return [sum(rarity[term] for term in each) for each in terms]


def _path_hits(path: str, wanted: frozenset[int]) -> frozenset[int]:
    folder, _, name = path.rpartition("/")
    return wanted & (_terms_of_path(folder) | _terms_of_path(name))


@lru_cache(maxsize=8192)
def _terms_of_path(path: str) -> frozenset[int]:
    return frozenset(term for word in words(path) for term in codes(word))


def static_values(
    candidates: Sequence[Candidate], signs: Evidence, weights: Weights = DEFAULT
) -> list[float]:
    """Return the value of each file whatever the issue, from its importers, kind and size.

    The choice should survive a small commit. So recent changes do not count, since their age changes with every commit; and
    the size counts in powers of two.
    """
    degree = scaled(signs.degree)
    return [
        (1 + degree[index])
        * weights.kinds[signs.kinds[index]] ** 2
        / 2 ** (weights.size * round(math.log2(max(candidate.tokens, 1))))
        for index, candidate in enumerate(candidates)
    ]


def issue_values(candidates: Sequence[Candidate], signs: Evidence, weights: Weights = DEFAULT) -> list[float]:
    """Return the value of each file for the issue: its relevance in relation to its size."""
    return [
        value / float(max(candidate.tokens, 1) ** weights.size)
        for candidate, value in zip(candidates, relevance(signs, weights), strict=True)
    ]


def relevance(signs: Evidence, weights: Weights) -> list[float]:
    """Return how much each file seems to matter for the issue, whatever its size."""
    own = [0.0] * len(signs.kinds)
    for weight, sign in (
        (weights.words, signs.words),
        (weights.path, signs.path),
        (weights.names, signs.names),
        (weights.mentions, signs.mentions),
        (weights.recency, signs.recency),
    ):
        own = [value + weight * more for value, more in zip(own, scaled(sign), strict=True)]
    values: list[float] = []
    for value, kind, linked in zip(own, signs.kinds, signs.linked, strict=True):
        best = sorted((own[other] for other in linked), reverse=True)[:3]
        values.append((value + weights.neighbours * sum(best) / 3) * weights.kinds[kind])
    return values
