"""The results of the context benchmark as a table, and a comparison with the targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from benchmarks.sandbox_report import number

Measure = Literal["wall", "cpu", "peak"]
MB = 1_000_000


@dataclass(frozen=True)
class Sample:
    """One run: seconds of wall and CPU time, and the peak of its largest process in bytes."""

    wall: float
    cpu: float
    peak: int


@dataclass(frozen=True)
class Result:
    """The measurements of one contestant: a sample for each round, or the reason why it has none.

    tokens: the number that it prints; size: of its output, in bytes.
    """

    name: str
    samples: Sequence[Sample] | str
    tokens: str = ""
    size: int = 0

    def median(self, measure: Measure) -> float | None:
        if isinstance(self.samples, str) or not self.samples:
            return None
        return float(median(getattr(sample, measure) for sample in self.samples))

    def ratio(self, other: Result | None, measure: Measure) -> float | None:
        """Return how many times as much as `other` this takes: the median over the rounds of both."""
        if other is None or isinstance(self.samples, str) or isinstance(other.samples, str):
            return None
        pairs = list(zip(self.samples, other.samples, strict=False))
        return float(median(getattr(a, measure) / getattr(b, measure) for a, b in pairs)) if pairs else None


@dataclass(frozen=True)
class Conditions:
    """The conditions of the measurement, and further checks.

    load: before and after; shows_secret: which packers show a secret; recounted: tokens of whole outputs; same_bytes:
    whether all of our unedited packs are identical.
    """

    date: str
    repository: str
    commit: str
    commits: int
    shallow: bool
    cores: int
    kernel: str
    tools: Sequence[str]
    tokenizer: str
    rounds: int
    load: tuple[float, float]
    edited_file: str
    shows_secret: Mapping[str, bool]
    recounted: Mapping[str, int]
    same_bytes: bool


@dataclass(frozen=True)
class Target:
    """`name` should take at least `least` times as much as `base`, or less than `most` times as much."""

    text: str
    name: str
    base: str
    measure: Measure
    least: float | None = None
    most: float | None = None
    aim: float | None = None

    def verdict(self, results: Mapping[str, Result]) -> tuple[float | None, str]:
        """Return the measured ratio (None if not measured) and the verdict."""
        one = results.get(self.name)
        ratio = None if one is None else one.ratio(results.get(self.base), self.measure)
        if ratio is None:
            return None, "not measured"
        if self._reached(ratio, self.aim, self.aim):
            return ratio, "aim met"
        return ratio, "met" if self._reached(ratio, self.least, self.most) else "MISSED"

    def _reached(self, ratio: float, least: float | None, most: float | None) -> bool:
        if self.least is not None:
            return least is not None and ratio >= least
        return most is not None and ratio < most


def table(results: Sequence[Result], warm: str, cold: str) -> str:
    """Return all results as Markdown. Ratios of wall and CPU time compare runs of the same round."""
    by_name = {result.name: result for result in results}
    lines = [
        f"| | wall, s | CPU, s | peak, MB | tokens | bytes | ÷ {warm}: wall / CPU | ÷ {cold}: wall / CPU |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        wall, cpu, peak = (result.median(measure) for measure in ("wall", "cpu", "peak"))
        if wall is None or cpu is None or peak is None:
            lines.append(f"| {result.name} | {result.samples or 'not measured'} | | | | | | |")
            continue
        cells = [
            f"{wall:.3f}",
            f"{cpu:.3f}",
            number(peak / MB),
            result.tokens,
            f"{result.size:,}",
            _ratios(result, by_name.get(warm)),
            _ratios(result, by_name.get(cold)),
        ]
        lines.append(f"| {result.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratios(result: Result, base: Result | None) -> str:
    wall, cpu = result.ratio(base, "wall"), result.ratio(base, "cpu")
    return "" if wall is None or cpu is None or result is base else f"{number(wall)} / {number(cpu)}"


def verdicts(results: Sequence[Result], targets: Sequence[Target]) -> str:
    """Return each target with its measured value and verdict, as Markdown."""
    by_name = {result.name: result for result in results}
    lines = ["| wanted | measured | aim | |", "|---|---:|---:|---|"]
    for target in targets:
        ratio, word = target.verdict(by_name)
        got = "" if ratio is None else f"{number(ratio)}"
        aim = "" if target.aim is None else number(target.aim)
        lines.append(f"| {target.text} | {got} | {aim} | {word} |")
    return "\n".join(lines)


def described(on: Conditions) -> str:
    """Return the conditions as a few lines of text."""
    history = "shallow" if on.shallow else "full history"
    leaks = ", ".join(
        f"{name} {'shows' if shown else 'keeps out'}" for name, shown in on.shows_secret.items()
    )
    counts = ", ".join(f"{name} {count:,}" for name, count in on.recounted.items())
    return "\n".join(
        (
            f"{on.date}: {on.repository} at {on.commit[:12]}, {on.commits:,} commits ({history})",
            f"{on.cores} cores, Linux {on.kernel}; {', '.join(on.tools)}",
            f"{on.rounds} interleaved rounds, ratios are medians of those within a round; load {on.load[0]} to {on.load[1]}",
            f"edited file: {on.edited_file}; peak memory is that of the largest process",
            f"a secret put into a file: {leaks}",
            f"m3agent's warm, cold and first output: {'the same bytes' if on.same_bytes else 'DIFFERENT BYTES'}",
            f"whole outputs counted by {on.tokenizer}: {counts or 'not possible here'}",
        )
    )
