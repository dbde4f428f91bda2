"""The results of the client benchmark as a table, and a comparison with the targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Literal

from benchmarks.sandbox_report import number

MB = 1_000_000
EDGE = 50
"""Number of turns at the beginning and at the end that are compared to see whether the cost grows."""

Measure = Literal["median", "p90", "growth"]


@dataclass(frozen=True)
class Sample:
    """One turn: milliseconds of CPU and wall time, and the process's peak memory so far in bytes."""

    cpu: float
    wall: float
    peak: int


@dataclass(frozen=True)
class Result:
    """One contestant with one prefix (in bytes): its first turn and the others, or the reason why it has none.

    The first turn includes work that happens only once: importing, connecting, encoding the prefix.
    """

    name: str
    size: int
    samples: Sequence[Sample] | str
    first: Sample | None = None

    def cpu(self) -> list[float]:
        return [] if isinstance(self.samples, str) else [sample.cpu for sample in self.samples]

    def measured(self, measure: Measure) -> float | None:
        """Return milliseconds of CPU per turn; for `growth`, the ratio of the last turns' median to the first turns'.

        `growth` needs at least 100 turns.
        """
        cpu = self.cpu()
        if measure == "median":
            return median(cpu) if cpu else None
        if measure == "p90":
            return quantiles(cpu, n=10, method="inclusive")[-1] if len(cpu) > 1 else None
        return median(cpu[-EDGE:]) / median(cpu[:EDGE]) if len(cpu) >= 2 * EDGE else None

    def ratio(self, other: Result) -> float | None:
        """Return how many times the CPU of `other` this takes: the median over the rounds in which both took a turn."""
        pairs = [(a, b) for a, b in zip(self.cpu(), other.cpu(), strict=False) if b]
        return median(a / b for a, b in pairs) if pairs else None


@dataclass(frozen=True)
class Target:
    """A contestant's `measure` with a prefix of `size` bytes should be below `most`."""

    text: str
    name: str
    size: int
    measure: Measure
    most: float

    def verdict(self, results: Sequence[Result]) -> tuple[float | None, str]:
        """Return the measured value (None if not measured) and the verdict."""
        found = (result for result in results if (result.name, result.size) == (self.name, self.size))
        value = next((result.measured(self.measure) for result in found), None)
        if value is None:
            return None, "not measured"
        return value, "met" if value < self.most else "MISSED"


def in_bytes(size: int) -> str:
    """Return a size in kB or MB."""
    return f"{size / MB:g} MB" if size >= MB else f"{size / 1000:g} kB"


def table(results: Sequence[Result], base: str) -> str:
    """Return all results as Markdown. Times are milliseconds of CPU per turn, except the wall time."""
    lines = [
        f"| prefix | | median | p90 | first {EDGE} | last {EDGE} | the very first | wall, median | peak, MB | ÷ {base} |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    bases = {result.size: result for result in results if result.name == base}
    for result in results:
        start = f"| {in_bytes(result.size)} | {result.name} |"
        if isinstance(result.samples, str) or not result.samples or result.first is None:
            lines.append(f"{start} {result.samples or 'not measured'} | | | | | | | |")
            continue
        cpu, against = result.cpu(), bases.get(result.size)
        ratio = None if against is None or against is result else result.ratio(against)
        cells = [
            _cell(result.measured("median")),
            _cell(result.measured("p90")),
            _cell(median(cpu[:EDGE])),
            _cell(median(cpu[-EDGE:])),
            _cell(result.first.cpu),
            _cell(median(sample.wall for sample in result.samples)),
            _cell(max(sample.peak for sample in result.samples) / MB),
            _cell(ratio),
        ]
        lines.append(f"{start} {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "" if value is None else number(value)


def verdicts(results: Sequence[Result], targets: Sequence[Target]) -> str:
    """Return each target with its measured value and verdict, as Markdown."""
    lines = ["| wanted | measured | |", "|---|---:|---|"]
    for target in targets:
        value, word = target.verdict(results)
        lines.append(f"| {target.text} | {_cell(value)} | {word} |")
    return "\n".join(lines)


def goals(results: Sequence[Result], targets: Sequence[Target], ours: str, peer: str) -> str:
    """Return in one line whether the goals of a turn's cost are met: milliseconds, and less CPU than a peer from the first turn on."""
    parts = []
    for target in targets:
        value, word = target.verdict(results)
        parts.append(f"{target.text} {_cell(value)} of {target.most:g} ms {word}".replace("  ", " "))
    against = [most for _, *both in ratios(results, ours, peer) for most in both]
    word = "not measured" if not against else "met" if max(against) < 1 else "MISSED"
    return f"goals: {'; '.join(parts)}; {ours} below {peer}'s, the first too: {word}"


def ratios(results: Sequence[Result], ours: str, peer: str) -> list[tuple[int, float, float]]:
    """Return by prefix how many times the CPU of a peer's turns ours take: the later turns, and the first."""
    peers = {result.size: result for result in results if result.name == peer}
    parts: list[tuple[int, float, float]] = []
    for result in results:
        other = peers.get(result.size)
        if result.name != ours or other is None or result.first is None or other.first is None:
            continue
        if (each := result.ratio(other)) is not None and other.first.cpu:
            parts.append((result.size, each, result.first.cpu / other.first.cpu))
    return parts


def ratio(results: Sequence[Result], ours: str, peer: str) -> str:
    """Return in one line how much CPU our turns take, compared with a peer's: the first turn and the others."""
    found = ratios(results, ours, peer)
    parts = (f"{in_bytes(size)}: {each:.2f}, first turn {first:.2f}" for size, each, first in found)
    return f"CPU of {ours} ÷ {peer}: {'; '.join(parts) or 'not measured'}"
