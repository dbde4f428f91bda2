"""The parts of a real run: verified checkouts, images built from the data, and the strict grader."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

from m3agent.agent.settings.settings import state_dir
from m3agent.evals.code.checkout import checkout
from m3agent.evals.code.codebase import CODE
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.grader import Grader
from m3agent.evals.run.protocols import AttemptParts, EvaluatedAgent


def standard_parts(
    agent: EvaluatedAgent,
    seconds: dict[str, float],
    say: Callable[[str], None],
    *,
    official: bool = False,
    invalid: Mapping[str, str] | None = None,
) -> AttemptParts:
    """Return parts that cache their data in this machine's state folder.

    Args:
        agent: The agent.
        seconds: Time limits of the phases, in seconds.
        say: Receives notes for the user.
        official: Whether to compute the official verdict, too.
        invalid: Ids of instances that cannot be graded, with the reason.
    """
    state = state_dir(os.environ)
    cache = state / CODE
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    grader = Grader(state, say, official=official)
    return AttemptParts(
        partial(checkout, cache=cache), Environments(state, say), grader, agent, seconds, invalid or {}
    )
