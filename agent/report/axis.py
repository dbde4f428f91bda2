"""Draw the vertical axis of an SVG plot, from 0 to a round number, and bars on it. The page's CSS sets the colours."""

from __future__ import annotations

import math
from collections.abc import Callable

from m3agent.agent.report.text import short_count

WIDTH = 760
LEFT, RIGHT = 62, 14


class Axis:
    """The vertical axis of a panel, from 0 to a round number.

    Args:
        largest: Largest value to show.
        top: Upper end of the axis, in SVG units.
        bottom: Lower end of the axis, in SVG units.
        tick: Formats the values at the ticks.
        smallest: Least step between two ticks.
    """

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
        """Return the vertical position of a value, in SVG units."""
        return self.bottom - (self.bottom - self.top) * value / self.end

    def bar(self, name: str, middle: float, width: float, low: float, high: float) -> list[str]:
        """Draw a bar as SVG elements; it is at least half a unit high, so that small values stay visible.

        Args:
            name: CSS class of the bar.
            middle: Horizontal position of its middle, in SVG units.
            width: Width in SVG units.
            low: Value at the lower end.
            high: Value at the upper end.
        """
        if high <= low:
            return []
        height = max(0.5, self.y(low) - self.y(high))
        y = self.y(low) - height
        return [
            f'<rect class="{name}" x="{middle - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
        ]

    def drawn(self, title: str) -> list[str]:
        """Draw the axis with its grid, and the panel's title above it, as SVG elements."""
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
    """Round up to 1, 2 or 5 times a power of ten, and to at least `smallest`: half a token makes no sense."""
    if at_least <= smallest:
        return smallest
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= at_least)
