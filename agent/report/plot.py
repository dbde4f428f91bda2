"""Plot the tokens of each turn as inline SVG.

The upper panel shows prompts, with their cached part; the lower panel shows completions. Each panel has its own axis,
because a prompt is often a thousand times as long as its answer. The page's CSS sets the colours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from m3agent.agent.report.text import short_count

WIDTH = 760
LEFT, RIGHT = 62, 14


class Axis:
    """The vertical axis of a panel, from 0 to a round number.

    Args:
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
            middle: Horizontal position of its middle, in SVG units.
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


HEIGHT = 350
PROMPTS = (40, 194)  # top and bottom of the upper panel
COMPLETIONS = (242, 312)
WIDEST_BAR = 30
MOST_LABELS = 16  # turns named below the axis
_LABEL_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True)
class TurnTokens:
    """The tokens of one turn; None means unknown."""

    label: str
    """Number of the turn, as shown."""
    anchor: str
    """Id of the turn's element on the page."""
    prompt: int | None
    cached: int | None
    completion: int | None
    mark: str = ""
    """What deserves attention in this turn, such as a stall; empty for nothing."""


def plot(turns: Sequence[TurnTokens]) -> Markup:
    """Draw the plot as an SVG element; empty if the tokens of all turns are unknown."""
    if all(turn.prompt is None and turn.completion is None for turn in turns):
        return Markup("")
    slot = (WIDTH - LEFT - RIGHT) / len(turns)
    width = max(1.0, min(WIDEST_BAR, slot * 0.72))
    prompts = Axis(max(turn.prompt or 0 for turn in turns), *PROMPTS)
    completions = Axis(max(turn.completion or 0 for turn in turns), *COMPLETIONS)
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Tokens of each turn">',
        *prompts.drawn("prompt tokens"),
        *completions.drawn("completion tokens"),
    ]
    for index, turn in enumerate(turns):
        middle = LEFT + slot * (index + 0.5)
        x, height = LEFT + slot * index, COMPLETIONS[1] - PROMPTS[0]
        cached = min(turn.cached or 0, turn.prompt or 0)
        parts += [
            f'<a href="#{escape(turn.anchor)}"><title>{escape(_tooltip(turn))}</title>',
            f'<rect class="hit" x="{x:.1f}" y="{PROMPTS[0]}" width="{slot:.1f}" height="{height}"/>',
            *prompts.bar("cached", middle, width, 0, cached),
            *prompts.bar(
                "unknown" if turn.cached is None else "fresh", middle, width, cached, turn.prompt or 0
            ),
            *completions.bar("completion", middle, width, 0, turn.completion or 0),
            *_signs(turn, middle, is_labelled=index == 0 or (index + 1) % _label_step(len(turns)) == 0),
            "</a>",
        ]
    parts += [
        f'<text class="name" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">turn</text>',
        "</svg>",
    ]
    return Markup("".join(parts))  # noqa: S704  # numbers, and texts escaped above


def _label_step(turns: int) -> int:
    """Return the step between turns that have a label."""
    return next((step for step in _LABEL_STEPS if turns / step <= MOST_LABELS), _LABEL_STEPS[-1])


def _signs(turn: TurnTokens, middle: float, *, is_labelled: bool) -> Iterator[str]:
    """Yield the mark of a turn, and its label below the axis."""
    if turn.mark:
        yield f'<path class="mark" d="M{middle:.1f} {PROMPTS[0] - 5}l-4.5 -8h9z"/>'
    if is_labelled:
        place = f'x="{middle:.1f}" y="{COMPLETIONS[1] + 16}"'
        yield f'<text {place} text-anchor="middle">{escape(turn.label)}</text>'


def legend(turns: Sequence[TurnTokens]) -> list[tuple[str, str]]:
    """Return the legend for what the plot shows, as pairs of CSS class and meaning."""
    entries = (
        ("cached", "prompt, from the server's cache", any(turn.cached for turn in turns)),
        ("fresh", "prompt, computed", any(turn.cached is not None and turn.prompt for turn in turns)),
        (
            "unknown",
            "prompt, cached part unknown",
            any(turn.cached is None and turn.prompt for turn in turns),
        ),
        ("completion", "completion (thinking included)", any(turn.completion for turn in turns)),
        ("mark", "stall, retry, or sent back by the gate", any(turn.mark for turn in turns)),
    )
    return [(name, meaning) for name, meaning, there in entries if there]


def _tooltip(turn: TurnTokens) -> str:
    """Return the tooltip of a turn."""
    known = [
        f"{value:,} {name}"
        for value, name in ((turn.prompt, "prompt"), (turn.cached, "cached"), (turn.completion, "completion"))
        if value is not None
    ]
    return f"turn {turn.label}: {', '.join(known) or 'tokens unknown'}" + (
        f"; {turn.mark}" if turn.mark else ""
    )
