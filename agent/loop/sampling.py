"""Vary the attempts at one issue: by temperature, and by a hint at the very end of the prompt."""

from __future__ import annotations

from dataclasses import dataclass

from m3agent.serving.client.parameters import Sampling

HINTS = (
    "",
    "Begin with a test that fails because of the issue, before you look for its cause.",
    "Do not stop where the wrong value appears: trace it back to its origin, and fix it there.",
    "Before you change anything, think of at least three possible causes, and rule out all but one of them.",
    "Look for code in this repository that does something similar and does it right, and at all callers of what you change.",
)
TEMPERATURES = (1.0, 0.7)
"""The first is MiniMax's temperature for M3. The first attempt uses it, like a fix with a single attempt."""


@dataclass(frozen=True)
class Variation:
    """What distinguishes one attempt from the others."""

    number: int = 1
    """Number of the attempt, from 1."""
    of: int = 1
    """Number of attempts."""
    hint: str = ""
    """Text at the end of the prompt; empty for none."""
    temperature: float = TEMPERATURES[0]
    """Sampling temperature."""
    seed: int | None = None
    """Sampling seed, which only the embedded engine uses. None leaves the choice to the server."""

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters of the attempt's requests."""
        return Sampling(temperature=self.temperature, seed=self.seed)


def variations(attempts: int, seed: int | None) -> list[Variation]:
    """Return one variation for each attempt. The first is the same as in a fix with a single attempt."""
    found = [Variation(of=attempts)]
    for index in range(1, attempts):
        hint, temperature = HINTS[index % len(HINTS)], TEMPERATURES[index % len(TEMPERATURES)]
        found.append(Variation(index + 1, attempts, hint, temperature, (seed or 0) + index))
    return found
