"""Order the candidates for trial, and rank those that pass."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from m3agent.serving.embedded.localise import Scores
from m3agent.serving.embedded.mutants import SUSPICION, propose, rank
from m3agent.serving.embedded.operators.base import TABLES, Hints, Mutation
from m3agent.serving.embedded.rewrites import propose_plain
from m3agent.serving.embedded.scope import Kinds
from m3agent.serving.embedded.source import signatures, splice

DOUBTFUL: Mapping[str, float] = TABLES["doubtful"]


@dataclass(frozen=True)
class PatchCandidate:
    """A mutation of one file."""

    path: str
    mutation: Mutation
    suspicion: float
    """Suspicion of the changed line, from 0 to 1."""

    @property
    def order(self) -> float:
        """The rank for trial; smaller is earlier."""
        return rank(self.mutation.cost, self.suspicion)

    def doubt(self) -> float:
        """Return how little to trust a candidate that passes; smaller is better."""
        extra = sum(DOUBTFUL.get(part, 0.0) for part in self.mutation.operator.split(" and "))
        added = sum(len(edit.text) - (edit.end - edit.start) for edit in self.mutation.edits)
        return self.mutation.cost + extra + SUSPICION / 2 * (1 - self.suspicion) + max(0, added) / 200

    def changed(self, text: str) -> str:
        """Return the text of the file with this change."""
        return splice(text, self.mutation.edits)


@lru_cache(maxsize=32)
def _proposed(path: str, text: str, known: str, hints: Hints, most: int) -> list[tuple[float, Mutation]]:
    """Propose changes, once for equal arguments; `known` is JSON of the suspected lines and the types."""
    lines, kinds = json.loads(known)
    if path.endswith(".py"):
        return propose(path, text, dict(lines), kinds, hints, most)
    return propose_plain(path, text, dict(lines), hints, most)


def candidates(
    texts: Mapping[str, str], scores: Scores, kinds: Kinds, hints: Hints, most: int, seed: int
) -> list[PatchCandidate]:
    """Return at most `most` candidates for `texts` (by path), in order of trial; `seed` orders equal ranks."""
    every: list[PatchCandidate] = []
    python = (text for path, text in texts.items() if path.endswith(".py"))
    hints = replace(hints, signatures=frozenset().union(*map(signatures, python)))
    position = {path: number for number, path in enumerate(texts)}
    for path, lines in scores.items():
        own = {where: names for where, names in kinds.items() if where.rsplit(":", 1)[0] == path}
        known = json.dumps([sorted(lines.items()), own], sort_keys=True)
        proposals = _proposed(path, texts[path], known, hints, most)
        every += [PatchCandidate(path, mutation, suspicion) for suspicion, mutation in proposals]

    def key(candidate: PatchCandidate) -> tuple[float, int, int, tuple[object, ...]]:
        edits, number = candidate.mutation.edits, position[candidate.path]
        tie = zlib.crc32(f"{seed} {number} {edits}".encode())
        return round(candidate.order, 6), tie, number, edits

    return sorted(every, key=key)[:most]


def _shared(old: list[str], new: list[str]) -> int:
    """Return the number of lines with which both texts begin."""
    return next(
        (at for at, (mine, other) in enumerate(zip(old, new, strict=False)) if mine != other),
        min(len(old), len(new)),
    )


def minimal_edit(before: str, after: str) -> tuple[str, str]:
    """Return a passage of whole lines that is unique in `before`, and what replaces it to give `after`."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    start = _shared(old, new)
    end = _shared(old[start:][::-1], new[start:][::-1])
    while True:
        passage = "".join(old[start : len(old) - end])
        if passage and before.count(passage) == 1:
            return passage, "".join(new[start : len(new) - end])
        if start == 0 and end == 0:
            return before, after
        start, end = max(0, start - 1), max(0, end - 1)
