"""Draw a benchmark as a self-contained SVG.

The upper panel shows the time to first token by prompt length, the lower one the output speed by number of
streams.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import escape

from m3agent.agent.report.text import duration, short_count
from m3agent.serving.bench.result import BenchResult, BenchRow

WIDTH, HEIGHT = 760, 640
LEFT, RIGHT = 72, 24
TTFT = (64, 330)  # top and bottom of the upper panel
OUTPUT = (412, 584)

_STYLE = """\
svg{background:#fff;font:12px system-ui,"Segoe UI",Roboto,"Liberation Sans","DejaVu Sans",sans-serif;fill:#1c2128}
.grid{stroke:#e6e9ed}.axis{stroke:#5b6470}.name{font-weight:600}.soft{fill:#5b6470}
path{fill:none}.cold,.streams{stroke:#2f6fb4}.cached{stroke:#17723a}.cold,.cached,.streams{stroke-width:2}
circle{stroke-width:2;fill:#fff}
@media(prefers-color-scheme:dark){svg{background:#14171b;fill:#dde2e8}.grid{stroke:#262b32}.axis{stroke:#97a1ad}
.soft{fill:#97a1ad}.cold,.streams{stroke:#5d9fe3}.cached{stroke:#6fce91}circle{fill:#14171b}}"""

Point = tuple[float, float]


@dataclass(frozen=True)
class VerticalAxis:
    """The vertical axis of a panel."""

    ticks: Callable[[Sequence[float]], list[float]]
    """Returns ticks that enclose values, in ascending order."""
    scale: Callable[[float], float]
    """Returns a value's place on the axis, in any unit."""
    shown: Callable[[float], str]
    """Returns the label of a tick."""


def plot(result: BenchResult) -> str:
    """Return the text of the SVG. A panel without measurements says so."""
    ttft = {kind: _waits(result.rows, kind) for kind in ("cold", "cached")}
    output = [
        (float(row.streams), row.tokens_per_second)
        for row in result.rows
        if row.kind == "streams" and row.tokens_per_second
    ]
    title = (
        f"{result.model} ({result.flavour}{' ' + result.version if result.version else ''}), {result.started}"
    )
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<text class="soft" x="{LEFT}" y="20">{escape(title)}</text>',
        *_panel("time to first token (median)", "prompt tokens", TTFT, ttft, LOGARITHMIC),
        *_panel("output tokens a second", "streams at a time", OUTPUT, {"streams": output}, LINEAR),
        "</svg>\n",
    ]
    return "".join(parts)


def _waits(rows: Sequence[BenchRow], kind: str) -> list[Point]:
    """Return pairs of prompt tokens and median seconds to the first token."""
    return [
        (float(row.tokens), row.ttft.median)
        for row in rows
        if row.kind == kind and row.ttft and row.ttft.median
    ]


def _panel(
    title: str,
    below: str,
    place: tuple[int, int],
    curves: dict[str, list[Point]],
    axis: VerticalAxis,
) -> Iterator[str]:
    """Yield the SVG elements of a panel. Its horizontal axis is logarithmic."""
    top, bottom = place
    yield f'<text class="name" x="{LEFT}" y="{top - 18}">{title}</text>'
    points = [point for curve in curves.values() for point in curve]
    if not points:
        yield f'<text class="soft" x="{LEFT}" y="{(top + bottom) // 2}">not measured</text>'
        return
    places = sorted({x for x, _ in points})
    lowest, highest = (math.log(end) for end in (places[0], places[-1]))
    ticks, scale, tick = axis.ticks([y for _, y in points]), axis.scale, axis.shown
    low, high = scale(ticks[0]), scale(ticks[-1])

    def at(x: float, y: float) -> tuple[str, str]:
        across = (math.log(x) - lowest) / (highest - lowest) if highest > lowest else 0.5
        up = (scale(y) - low) / (high - low)
        return (
            f"{LEFT + 20 + across * (WIDTH - LEFT - RIGHT - 60):.1f}",
            f"{bottom - up * (bottom - top):.1f}",
        )

    for value in ticks:
        _, y = at(places[0], value)
        kind = "axis" if value == ticks[0] else "grid"
        yield f'<path class="{kind}" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
        yield f'<text x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{escape(tick(value))}</text>'
    for place_ in places:
        x, _ = at(place_, ticks[0])
        yield f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{short_count(place_)}</text>'
    yield f'<text class="soft" x="{WIDTH - RIGHT}" y="{bottom + 38}" text-anchor="end">{below}</text>'
    for name, curve in curves.items():
        if curve:
            yield from _curve(name, sorted(curve), [at(*point) for point in sorted(curve)], tick)
        if curve and len(curves) > 1:
            x, y = at(*max(curve))
            yield f'<text x="{float(x) + 9:.1f}" y="{float(y) + 4:.1f}">{name}</text>'


def _curve(
    name: str, points: Sequence[Point], where: Sequence[tuple[str, str]], tick: Callable[[float], str]
) -> Iterator[str]:
    """Yield the SVG elements of a curve through the places `where`."""
    yield f'<path class="{name}" d="M{"L".join(map(" ".join, where))}"/>'
    for (x, y), (amount, value) in zip(where, points, strict=True):
        told = f"{name}, {short_count(amount)}: {tick(value)}"
        yield f'<circle class="{name}" cx="{x}" cy="{y}" r="4"><title>{escape(told)}</title></circle>'


def _powers_of_ten(values: Sequence[float]) -> list[float]:
    """Return the powers of ten that enclose the values, at least two."""
    first = math.floor(math.log10(min(values)))
    last = max(first + 1, math.ceil(math.log10(max(values))))
    return [10.0**power for power in range(first, last + 1)]


def _even(values: Sequence[float]) -> list[float]:
    """Return round steps from 0 up to at least the largest value."""
    power = 10.0 ** math.floor(math.log10(max(values)))
    step = next(power * part for part in (0.2, 0.25, 0.5, 1, 2, 2.5) if 5 * power * part >= max(values))
    return [step * number for number in range(math.ceil(max(values) / step) + 1)]


LOGARITHMIC = VerticalAxis(_powers_of_ten, math.log10, duration)
LINEAR = VerticalAxis(_even, float, lambda value: short_count(round(value, 1)))
