"""Compare a result with what a plan or an earlier bench expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from m3agent.serving.bench.result import BenchResult, BenchRow

KV_TOLERANCE = 0.03
"""Tolerance of a plan's KV cache capacity, as a share (docs/serving.md)."""
SPEED_TOLERANCE = 0.15
"""Tolerance of a speed, as a share; runs of one server differ by less."""
THRESHOLD = 0.10
"""Share by which a value must be worse than the earlier value to count as a regression."""

ALIKE = 131_072
"""Context in tokens up to which the speed of one stream is about constant.

Measured with the whole model on four H200: 8.5 to 9.2 ms a token up to this length, and half as long again at
a million.
"""

Unit: TypeAlias = Literal["tokens", "tokens/s", "s"]

_SAME_LENGTH = 0.05  # largest relative difference of two lengths; the bench may have shortened one to fit


@dataclass(frozen=True)
class BenchComparison:
    """Comparison of one value."""

    name: str
    unit: Unit
    expected: float
    measured: float | None
    ratio: float | None
    """`measured / expected`; None if nothing was measured."""
    worse: bool | None
    """True if the value is worse than the tolerance allows; None if nothing was measured."""


def against_plan(result: BenchResult, expected: Mapping[str, float]) -> list[BenchComparison]:
    """Compare a result with a plan.

    Args:
        expected: `kv_tokens`, the KV cache capacity of each rank, and `tokens_per_second`, the output of one stream at a context of
            `sequence` tokens; without `sequence` that is the longest measured context.
    """
    comparisons: list[BenchComparison] = []
    if "kv_tokens" in expected:
        kv = None if result.kv_tokens is None else float(result.kv_tokens)
        comparisons.append(_compared("KV cache capacity", "tokens", expected["kv_tokens"], kv, KV_TOLERANCE))
    if "tokens_per_second" in expected:
        row = _decoding(result, expected.get("sequence"))
        tpot = None if row is None else row.tpot
        speed = 1 / tpot.median if tpot is not None and tpot.median else None
        at = "" if row is None else f" at {row.tokens:,} tokens"
        name = f"decode speed of one stream{at}"
        wanted = expected["tokens_per_second"]
        comparisons.append(_compared(name, "tokens/s", wanted, speed, SPEED_TOLERANCE))
    return comparisons


def against_baseline(
    result: BenchResult, baseline: BenchResult, *, threshold: float = THRESHOLD
) -> tuple[list[BenchComparison], list[str]]:
    """Compare the medians of each row with an earlier result.

    Returns:
        The comparisons, and a sentence for each row that only one of the results has.
    """
    comparisons: list[BenchComparison] = []
    matched: list[BenchRow] = []
    only: list[str] = []
    for row in result.rows:
        before = next((old for old in baseline.rows if _same(row, old)), None)
        if before is None:
            only.append(f"{label(row)}: not in the baseline")
            continue
        matched.append(before)
        comparisons += _compare(row, before, threshold)
    only += [f"{label(old)}: only in the baseline" for old in baseline.rows if old not in matched]
    return comparisons, only


def label(row: BenchRow) -> str:
    """Return the name of a row for people."""
    tokens = f"{row.tokens:,} tokens"
    labels = {
        "streams": f"{row.streams} at a time, {tokens} each",
        "sharing": f"{row.streams} sharing {tokens}",
        "first": f"first to send a shared {tokens}",
    }
    return labels.get(row.kind, f"{row.kind}, {tokens}")


def _compare(row: BenchRow, before: BenchRow, threshold: float) -> Iterator[BenchComparison]:
    pairs = (("TTFT", row.ttft, before.ttft), ("TPOT", row.tpot, before.tpot), ("E2E", row.e2e, before.e2e))
    for name, now, old in pairs:
        if old is None:
            continue
        measured = None if now is None else now.median
        yield _compared(f"{label(row)}: {name}", "s", old.median, measured, threshold)
    if row.kind == "streams" and before.tokens_per_second is not None:
        name = f"{label(row)}: output"
        yield _compared(name, "tokens/s", before.tokens_per_second, row.tokens_per_second, threshold)


def _compared(
    name: str, unit: Unit, expected: float, measured: float | None, tolerance: float
) -> BenchComparison:
    """Compare one value; of seconds fewer are better, of all else more."""
    if measured is None or not expected:
        return BenchComparison(name, unit, expected, measured, None, None)
    ratio = measured / expected
    worse = ratio > 1 + tolerance if unit == "s" else ratio < 1 - tolerance
    return BenchComparison(name, unit, expected, measured, ratio, worse)


def _decoding(result: BenchResult, sequence: float | None) -> BenchRow | None:
    """Return the row of one stream nearest to the expected length in tokens, or None.

    A row counts only if its lengths are comparable and the server held no tokens back.
    """
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


def _same(row: BenchRow, old: BenchRow) -> bool:
    alike = row.kind == old.kind and row.streams == old.streams
    return alike and abs(row.tokens - old.tokens) <= _SAME_LENGTH * old.tokens
