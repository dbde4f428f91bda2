"""Define the input of the stall detector (a finished call) and its output (a verdict)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from m3agent.serving.client.messages import ToolCall
from m3agent.tools.base import ToolResult


@dataclass(frozen=True)
class ObservedCall:
    """One finished call."""

    name: str
    """Name of the tool."""
    arguments: dict[str, Any] | None
    """Arguments of the call; None if they were not a JSON object."""
    content: str
    """The result as the model reads it."""
    digest: str
    """Digest of the whole result."""
    is_error: bool
    """Whether the result is an error."""
    exit_code: int | None
    """Exit status of the command; None without one."""
    tree: str
    """State of the work tree after the call; empty if unknown."""
    failing: frozenset[str] | None = None
    """Ids that failed or errored in a test run; None for calls that ran no tests."""
    running: bool = False
    """Whether a process is still running, so that a repeated call makes sense."""
    infrastructure: bool = False
    """Whether the sandbox or a server caused the result; the detector ignores such calls."""


def as_seen(call: ToolCall, result: ToolResult, content: str, tree: str) -> ObservedCall:
    """Return a finished call as input of the stall detector.

    Args:
        call: The model's call.
        result: The tool's result.
        content: The result as the model reads it.
        tree: State of the work tree after the call.
    """
    data = result.data
    return ObservedCall(
        name=call.name,
        arguments=call.arguments,
        content=content,
        digest=result.digest,
        is_error=result.is_error,
        exit_code=result.exit_code,
        tree=tree,
        failing=frozenset([*data["failed"], *data["errored"]]) if "passed" in data else None,
    )


Action = Literal["tell", "force", "stop"]


@dataclass(frozen=True)
class StallVerdict:
    """What to do about a loop."""

    action: Action
    """`tell` puts `text` into the next tool result. `force` demands a different move there; the caller adds the state
    of the tests and the diff. `stop` ends the run with `text` as its reason."""
    rule: str
    """Name of the rule that found the loop."""
    count: int
    """Count of the rule, in its own unit."""
    text: str
    """The note to the model, or the reason for the end."""
