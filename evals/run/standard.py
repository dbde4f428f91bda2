"""The parts of a real run: checkouts that prove themselves, images built from the data, the strict grader."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from m3agent.agent.settings import state_dir
from m3agent.evals.checkout import checkout
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.grader import Grader
from m3agent.evals.run.parts import Agent, Parts

CACHE = Path("evals", "code")
"""In the state folder: unpacked archives and fetched commits."""


def standard_parts(
    agent: Agent,
    seconds: dict[str, float],
    say: Callable[[str], None],
    *,
    official: bool = False,
    invalid: Mapping[str, str] | None = None,
) -> Parts:
    """Parts that keep what they can in this machine's state folder; `say` is told notes for the person.

    official: ask for the official verdict, too. invalid: instances that are known not to be gradable, and why.
    """
    state = state_dir(os.environ)
    cache = state / CACHE
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    grader = Grader(state, say, official=official)
    return Parts(
        partial(checkout, cache=cache), Environments(state, say), grader, agent, seconds, invalid or {}
    )
