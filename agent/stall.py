"""Notices a loop that repeats itself. Pure: fed with what each call was and gave, asked for a verdict.

The plainest rule, from the first day: the same call with the same result, again and again. The result is part of the
identity, so polling something that changes is never a stall.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

TELL = 3
"""Equal call and equal result so many times in a row: the model is told, inside that result."""
STOP = 5
"""So many: the loop stops and hands in the current diff."""


@dataclass(frozen=True)
class Verdict:
    """What to do about a repetition; `text` goes to the model (tell) or into the result (stop)."""

    action: Literal["tell", "stop"]
    rule: str
    count: int
    text: str


class StallDetector:
    """Counts equal (tool, arguments, result) in a row."""

    def __init__(self) -> None:
        self._last: tuple[str, str, str] | None = None
        self._count = 0

    def see(self, name: str, arguments: dict[str, Any] | None, digest: str) -> Verdict | None:
        """Feed one finished call; `digest` is of its whole result."""
        identity = (name, json.dumps(arguments, sort_keys=True), digest)
        self._count = self._count + 1 if identity == self._last else 1
        self._last = identity
        if self._count < TELL:
            return None
        what = f"{name} was called {self._count} times in a row with the same arguments and the same result"
        if self._count >= STOP:
            return Verdict("stop", "same-call-same-result", self._count, what)
        text = (
            f"{what}. Calling it again will not change it: read the result above and do something different."
        )
        return Verdict("tell", "same-call-same-result", self._count, text)
