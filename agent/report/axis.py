"""The vertical axis of a plot in SVG: from 0 to a round number, with bars on it. Colours come from the page's CSS."""

from __future__ import annotations

import math
from collections.abc import Callable

from m3agent.agent.report.text import short_count

WIDTH = 760
LEFT, RIGHT = 62, 14


class Axis:
    """A panel's vertical axis. top, bottom: where it is; tick: how its values are written; smallest: its least step."""

    def __init__(
        self,
        largest: float,
        top: int,
        bottom: int,
        *,
        tick: Callable[[float], str] = short_count,
        smallest: float = 1,
    ) -> None:
        self.top, self.bottom = top, bottom
        self._tick = tick
        self.step = round_step(largest / (4 if bottom - top > 100 else 3), smallest)
        self.end = self.step * max(1, math.ceil(largest / self.step))

    def y(self, value: float) -> float:
        """Where a value is."""
        return self.bottom - (self.bottom - self.top) * value / self.end

    def bar(self, name: str, middle: float, width: float, low: float, high: float) -> list[str]:
        """A bar from one value to another; at least half a unit high, so that little is not nothing."""
        if high <= low:
            return []
        height = max(0.5, self.y(low) - self.y(high))
        y = self.y(low) - height
        return [
            f'<rect class="{name}" x="{middle - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
        ]

    def drawn(self, title: str) -> list[str]:
        """The axis with its grid, and the panel's title above it."""
        parts = [f'<text class="name" x="{LEFT}" y="{self.top - 24}">{title}</text>']
        for tick in range(round(self.end / self.step) + 1):
            y = self.y(tick * self.step)
            kind = "axis" if tick == 0 else "grid"
            parts += [
                f'<path class="{kind}" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>',
                f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{self._tick(tick * self.step)}</text>',
            ]
        return parts


def round_step(at_least: float, smallest: float = 1) -> float:
    """The next of 1, 2 or 5 times a power of ten, and `smallest` at least: there are no parts of a token."""
    if at_least <= smallest:
        return smallest
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= at_least)
