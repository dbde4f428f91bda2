"""Plot the tokens of each turn as inline SVG.

The upper panel shows prompts, with their cached part; the lower panel shows completions. Each panel has its own axis,
because a prompt is often a thousand times as long as its answer. The page's CSS sets the colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from m3agent.agent.report.axis import LEFT, RIGHT, WIDTH, Axis

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
    """Prompt tokens."""
    cached: int | None
    """Prompt tokens from the server's cache."""
    completion: int | None
    """Completion tokens."""
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
    every = next(
        step for step in _LABEL_STEPS if len(turns) / step <= MOST_LABELS or step == _LABEL_STEPS[-1]
    )
    for index, turn in enumerate(turns):
        middle = LEFT + slot * (index + 0.5)
        parts += [f'<a href="#{escape(turn.anchor)}"><title>{escape(_tooltip(turn))}</title>']
        x, height = LEFT + slot * index, COMPLETIONS[1] - PROMPTS[0]
        parts += [f'<rect class="hit" x="{x:.1f}" y="{PROMPTS[0]}" width="{slot:.1f}" height="{height}"/>']
        cached = min(turn.cached or 0, turn.prompt or 0)
        fresh = "unknown" if turn.cached is None else "fresh"
        parts += prompts.bar("cached", middle, width, 0, cached)
        parts += prompts.bar(fresh, middle, width, cached, turn.prompt or 0)
        parts += completions.bar("completion", middle, width, 0, turn.completion or 0)
        if turn.mark:
            y = PROMPTS[0] - 5
            parts += [f'<path class="mark" d="M{middle:.1f} {y}l-4.5 -8h9z"/>']
        if index == 0 or (index + 1) % every == 0:
            parts += [
                f'<text x="{middle:.1f}" y="{COMPLETIONS[1] + 16}" text-anchor="middle">{escape(turn.label)}</text>'
            ]
        parts += ["</a>"]
    parts += [
        f'<text class="name" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">turn</text>',
        "</svg>",
    ]
    return Markup("".join(parts))  # noqa: S704  # numbers, and texts escaped above


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
