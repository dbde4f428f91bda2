"""Draw a run's plots as inline SVG.

There is one of the verdicts by repository, and histograms of tokens, money and time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup, escape

from m3agent.agent.report.axis import LEFT, RIGHT, WIDTH, Axis, round_step
from m3agent.agent.report.text import one_line, plain
from m3agent.evals.data.results import Verdict

MOST_ROWS = 40
"""Largest number of repositories in the plot; the table lists all."""

STACK = (
    Verdict.RESOLVED,
    Verdict.UNRESOLVED,
    Verdict.EMPTY,
    Verdict.TIMEOUT,
    Verdict.ERROR,
    Verdict.INFRA,
    Verdict.INVALID,
)
"""Order of the verdicts, from left to right. The name of a verdict is its CSS class."""

_NAMES = 210  # width of the repositories' names
_ROW, _BAR = 24, 16
_TOP, _BOTTOM = 40, 170  # of a histogram's panel
_BINS = 14  # about the largest number of bins


def verdict_bars(rows: Sequence[tuple[str, Mapping[Verdict, int]]]) -> Markup:
    """Return a plot with a bar of verdicts for each repository; empty if there are no attempts."""
    drawn = [(name, counts) for name, counts in rows if sum(counts.values())][:MOST_ROWS]
    if not drawn:
        return Markup("")
    scale = (WIDTH - _NAMES - RIGHT - 40) / max(sum(counts.values()) for _, counts in drawn)
    height = len(drawn) * _ROW + 4
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Verdicts of each repository">'
    ]
    for index, (name, counts) in enumerate(drawn):
        y = index * _ROW + (_ROW - _BAR) / 2
        label = escape(plain(one_line(name, 32)))
        parts += [f'<text x="{_NAMES - 8}" y="{y + 12:.1f}" text-anchor="end">{label}</text>']
        x = float(_NAMES)
        for verdict in STACK:
            if count := counts.get(verdict, 0):
                told = escape(f"{plain(one_line(name, 200))}: {count:,} {verdict}")
                place = f'x="{x:.1f}" y="{y:.1f}" width="{count * scale:.1f}" height="{_BAR}"'
                parts += [f'<rect class="{verdict}" {place}><title>{told}</title></rect>']
                x += count * scale
        parts += [f'<text x="{x + 6:.1f}" y="{y + 12:.1f}">{sum(counts.values()):,}</text>']
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  # numbers, and texts escaped above


def histogram(
    title: str,
    resolved: Sequence[float],
    others: Sequence[float],
    tick: Callable[[float], str],
    *,
    smallest: float = 1,
) -> Markup:
    """Return a histogram of an amount per attempt; empty if there are no values.

    Attempts that resolved their instance are drawn below the others.

    Args:
        title: Name of the amount.
        resolved: Amounts of the attempts that resolved their instance.
        others: Amounts of the other attempts.
        tick: Formats an amount.
        smallest: Smallest width of a bin. A value on an edge belongs to the bin above it.
    """
    values = [*resolved, *others]
    if not values:
        return Markup("")
    width = round_step(max(values) / _BINS, smallest)
    bins = int(max(values) / width) + 1
    good, bad = _counts(resolved, width, bins), _counts(others, width, bins)
    axis = Axis(max(a + b for a, b in zip(good, bad, strict=True)), _TOP, _BOTTOM)
    slot = (WIDTH - LEFT - RIGHT) / bins
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {_BOTTOM + 36}" role="img" aria-label="{escape(title)} of each attempt">',
        *axis.drawn(f"attempts by {escape(title)}"),
    ]
    for index, (below, above) in enumerate(zip(good, bad, strict=True)):
        if below + above:
            span = f"{tick(index * width)} to {tick((index + 1) * width)}"
            told = escape(f"{span}: {below:,} resolved, {above:,} not")
            middle = LEFT + slot * (index + 0.5)
            parts += [f"<g><title>{told}</title>"]
            parts += axis.bar(Verdict.RESOLVED, middle, slot * 0.86, 0, below)
            parts += axis.bar(Verdict.UNRESOLVED, middle, slot * 0.86, below, below + above)
            parts += ["</g>"]
    every = 1 if bins <= 8 else 2
    for edge in range(0, bins + 1, every):
        parts += [
            f'<text x="{LEFT + slot * edge:.1f}" y="{_BOTTOM + 16}" text-anchor="middle">{escape(tick(edge * width))}</text>'
        ]
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  # numbers, and texts escaped above


def _counts(values: Sequence[float], width: float, bins: int) -> list[int]:
    counts = [0] * bins
    for value in values:
        counts[min(int(value / width), bins - 1)] += 1
    return counts
