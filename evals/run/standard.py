"""The parts of a real run: checkouts that prove themselves, images built from the data, the strict grader."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from m3agent.evals.checkout import checkout
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.grader import Grader
from m3agent.evals.run.parts import Agent, Parts

CACHE = Path("evals", "code")
"""In the state folder: unpacked archives and fetched commits."""


def standard_parts(agent: Agent, seconds: dict[str, float], state: Path, say: Callable[[str], None]) -> Parts:
    """Parts that keep what they can in the state folder; `say` is told notes for the person."""
    cache = state / CACHE
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Parts(partial(checkout, cache=cache), Environments(state, say), Grader(state, say), agent, seconds)
