"""How attempts at one issue differ: in the temperature, and in a hint at the very end of what they are told."""

from __future__ import annotations

from dataclasses import dataclass

from m3agent.serving.parameters import Sampling

HINTS = (
    "",
    "Begin with a test that fails because of the issue, before you look for its cause.",
    "Do not stop where the wrong value shows: follow it back to where it first comes about, and fix it there.",
    "Before you change anything, think of at least three possible causes, and rule out all but one of them.",
    "Look for code in this repository that does something similar and does it right, and at all callers of what you change.",
)
TEMPERATURES = (1.0, 0.7)
"""The first is MiniMax's for M3, which the first attempt has like a fix without attempts."""


@dataclass(frozen=True)
class Variation:
    """What is an attempt's own. number: from 1. seed: heeded by the embedded engine only; None leaves it the server's."""

    number: int = 1
    of: int = 1
    hint: str = ""
    temperature: float = TEMPERATURES[0]
    seed: int | None = None

    @property
    def sampling(self) -> Sampling:
        """How the model draws its tokens."""
        return Sampling(temperature=self.temperature, seed=self.seed)


def variations(attempts: int, seed: int | None) -> list[Variation]:
    """As many as there are attempts; the first is what a fix with one attempt does."""
    found = [Variation(of=attempts)]
    for index in range(1, attempts):
        hint, temperature = HINTS[index % len(HINTS)], TEMPERATURES[index % len(TEMPERATURES)]
        found.append(Variation(index + 1, attempts, hint, temperature, (seed or 0) + index))
    return found
