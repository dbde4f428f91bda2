"""The results of the sandbox benchmark as a table and bars, and a comparison with the targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

OURS = "m3agent"
BAR = 40
"""Length of the longest bar in characters."""


@dataclass(frozen=True)
class Row:
    """One measurement: its title, unit, and each contestant's samples, or the reason why it has none.

    `more_is_better` is for throughput. Ratios always say how many times better ours is.
    """

    title: str
    unit: str
    samples: Mapping[str, Sequence[float] | str]
    more_is_better: bool = False

    def medians(self) -> dict[str, float]:
        """Return the medians of the contestants that have samples, in their order."""
        return {
            name: median(each) for name, each in self.samples.items() if not isinstance(each, str) and each
        }

    def ratios(self) -> dict[str, float]:
        """Return how many times better our first contestant is than each other one."""
        medians = self.medians()
        if OURS not in medians or not medians[OURS]:
            return {}
        ours = medians[OURS]
        return {
            name: (ours / value if self.more_is_better else value / ours)
            for name, value in medians.items()
            if name != OURS and value
        }


@dataclass(frozen=True)
class Target:
    """Ours should be at least `least` times better than `peer` in `row` (a title); the aim is `aim` times."""

    row: str
    peer: str
    least: float
    aim: float

    def verdict(self, rows: Sequence[Row]) -> tuple[float | None, str]:
        """Return the measured ratio (None if not measured) and the verdict."""
        found = next((row for row in rows if row.title == self.row), None)
        ratio = None if found is None else found.ratios().get(self.peer)
        if ratio is None:
            return None, "not measured"
        return ratio, "aim met" if ratio >= self.aim else "met" if ratio >= self.least else "MISSED"


def number(value: float) -> str:
    """Return a number with three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(rows: Sequence[Row], targets: Sequence[Target]) -> str:
    """Return all rows and targets as Markdown."""
    lines = ["| what | with | median | ratio to ours |", "|---|---|---:|---:|"]
    for row in rows:
        medians, ratios = row.medians(), row.ratios()
        for name, samples in row.samples.items():
            if name in medians:
                times = f"{number(ratios[name])}x" if name in ratios else ""
                lines.append(f"| {row.title} | {name} | {number(medians[name])} {row.unit} | {times} |")
            else:
                lines.append(f"| {row.title} | {name} | {samples if isinstance(samples, str) else ''} | |")
    lines += ["", "| at least | aim | measured | |", "|---|---:|---:|---|"]
    for target in targets:
        ratio, word = target.verdict(rows)
        got = "" if ratio is None else f"{number(ratio)}x"
        wanted = f"{target.row}: {target.least:g}x better than {target.peer}"
        lines.append(f"| {wanted} | {target.aim:g}x | {got} | {word} |")
    return "\n".join(lines)


def bars(row: Row) -> str:
    """Return one row as a bar chart in plain text."""
    medians = row.medians()
    longest = max(medians.values(), default=0)
    width = max((len(name) for name in medians), default=0)
    lines = [f"{row.title} ({row.unit})"]
    for name, value in medians.items():
        length = round(BAR * value / longest) if longest else 0
        lines.append(f"  {name:<{width}} {'█' * max(value > 0, length)} {number(value)}")
    return "\n".join(lines)
