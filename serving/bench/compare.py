"""A result against what was expected of the server: by its plan, or by an earlier bench."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from m3agent.serving.bench.result import Result, Row

KV_TOLERANCE = 0.03
"""What the plan promises for the room in the cache (docs/serving.md)."""
SPEED_TOLERANCE = 0.15
"""Runs of one server differ by less."""
THRESHOLD = 0.10
"""Share by which a figure has to be worse than the earlier one to be called a regression."""

ALIKE = 131_072
"""Up to so many tokens of context one stream was measured to be about equally fast (whole model, four H200: 8.5 to 9.2 ms a
token); at a million it takes half as long again."""

_SAME_LENGTH = 0.05  # lengths that were shortened to fit may differ so much

Expectation: TypeAlias = Mapping[str, float]
EXPECTED = ("kv_tokens", "tokens_per_second", "sequence")
"""`kv_tokens`: room in the cache of each rank. `tokens_per_second`: one stream's output at a context of `sequence`
tokens (the longest measured if left out)."""


@dataclass(frozen=True)
class Comparison:
    """One figure. `ratio`: measured / expected. `worse`: by more than is tolerated; None where nothing was measured."""

    name: str
    unit: Literal["tokens", "tokens/s", "s"]
    expected: float
    measured: float | None
    ratio: float | None
    worse: bool | None


def against_plan(result: Result, expected: Expectation) -> list[Comparison]:
    """The room in the cache and the speed of decoding against a plan's.

    Raises:
        ValueError: something else is expected.
    """
    if unknown := sorted(expected.keys() - set(EXPECTED)):
        raise ValueError(
            f"nothing here measures {', '.join(unknown)}: what can be expected is {', '.join(EXPECTED)}"
        )
    found: list[Comparison] = []
    if "kv_tokens" in expected:
        kv = None if result.kv_tokens is None else float(result.kv_tokens)
        found.append(_more_is_better("room in the cache", "tokens", expected["kv_tokens"], kv, KV_TOLERANCE))
    if "tokens_per_second" in expected:
        row = _decoding(result, expected.get("sequence"))
        tpot = None if row is None else row.tpot
        speed = 1 / tpot.median if tpot is not None and tpot.median else None
        at = "" if row is None else f" at {row.tokens:,} tokens"
        name = f"one stream's decoding{at}"
        found.append(_more_is_better(name, "tokens/s", expected["tokens_per_second"], speed, SPEED_TOLERANCE))
    return found


def against_baseline(
    result: Result, baseline: Result, *, threshold: float = THRESHOLD
) -> tuple[list[Comparison], list[str]]:
    """Each row's medians against an earlier bench's, and the rows that only one of the two has.

    `threshold` is the share by which a figure may be worse.
    """
    found: list[Comparison] = []
    matched: list[Row] = []
    only: list[str] = []
    for row in result.rows:
        before = next((old for old in baseline.rows if _same(row, old)), None)
        if before is None:
            only.append(f"{label(row)}: not in the baseline")
            continue
        matched.append(before)
        found += _compare(row, before, threshold)
    only += [f"{label(old)}: only in the baseline" for old in baseline.rows if old not in matched]
    return found, only


def label(row: Row) -> str:
    """What people call a row."""
    tokens = f"{row.tokens:,} tokens"
    match row.kind:
        case "streams":
            return f"{row.streams} at a time, {tokens} each"
        case "sharing":
            return f"{row.streams} sharing {tokens}"
        case "first":
            return f"first to send a shared {tokens}"
        case _:
            return f"{row.kind}, {tokens}"


def _compare(row: Row, before: Row, threshold: float) -> Iterator[Comparison]:
    pairs = (("TTFT", row.ttft, before.ttft), ("TPOT", row.tpot, before.tpot), ("E2E", row.e2e, before.e2e))
    for name, now, old in pairs:
        if old is None:
            continue
        measured = None if now is None else now.median
        ratio = None if measured is None or not old.median else measured / old.median
        worse = None if ratio is None else ratio > 1 + threshold
        yield Comparison(f"{label(row)}: {name}", "s", old.median, measured, ratio, worse)
    if row.kind == "streams" and before.tokens_per_second is not None:
        name = f"{label(row)}: output"
        yield _more_is_better(name, "tokens/s", before.tokens_per_second, row.tokens_per_second, threshold)


def _more_is_better(
    name: str, unit: Literal["tokens", "tokens/s"], expected: float, measured: float | None, tolerance: float
) -> Comparison:
    ratio = None if measured is None or not expected else measured / expected
    return Comparison(name, unit, expected, measured, ratio, None if ratio is None else ratio < 1 - tolerance)


def _decoding(result: Result, sequence: float | None) -> Row | None:
    """The row of one stream whose length is nearest to the one that is meant, if any tells about it."""
    rows = [
        row
        for row in result.rows
        if row.kind == "cold"
        and row.tpot is not None
        and not any(request.held_back for request in row.requests)
    ]
    if sequence is None:
        return rows[-1] if rows else None
    near = [row for row in rows if max(row.tokens, sequence) <= max(ALIKE, 2 * min(row.tokens, sequence))]
    return min(near, key=lambda row: abs(row.tokens - sequence), default=None)


def _same(row: Row, old: Row) -> bool:
    alike = row.kind == old.kind and row.streams == old.streams
    return alike and abs(row.tokens - old.tokens) <= _SAME_LENGTH * old.tokens
