"""What the detector is fed, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Seen:
    """One finished call.

    content: what the model reads of the result. digest: of the whole result. tree: state of the work tree after the
    call, empty where it is not known. failing: ids that failed or errored in a test run, None for other calls.
    running: a process is still alive, so asking again is sensible. infrastructure: the sandbox or a server was at fault.
    """

    name: str
    arguments: dict[str, Any] | None
    content: str
    digest: str
    is_error: bool
    exit_code: int | None
    tree: str
    failing: frozenset[str] | None = None
    running: bool = False
    infrastructure: bool = False


Action = Literal["tell", "force", "stop"]


@dataclass(frozen=True)
class Verdict:
    """What to do about a loop.

    action: `tell` puts `text` into the next tool result, `force` asks for a different move there (with the state of the
    tests and the diff, which the caller adds), `stop` ends the run with `text` as its reason. count: of whatever the
    rule counts.
    """

    action: Action
    rule: str
    count: int
    text: str
