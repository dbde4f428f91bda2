"""Compute the next message from a request, as a pure function: replay the repair over the history."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from m3agent.serving.embedded.probe import same_job
from m3agent.serving.embedded.repair import Budget, Repair
from m3agent.serving.embedded.request import read
from m3agent.serving.wire import Call


@dataclass(frozen=True)
class Reply:
    """The next message of the policy."""

    reasoning: str
    text: str
    calls: tuple[Call, ...]
    """At most one call."""
    judged: int
    """Number of candidates that the newest tool result judged."""


def respond(body: Mapping[str, Any], budget: Budget) -> Reply:
    """Return the next message for a chat completion request (an object with checked ``messages``)."""
    conversation = read(body)
    repair = Repair(conversation, budget)
    steps = repair.steps()
    step = next(steps, None)
    tried = 0
    for exchange in conversation.exchanges:
        if step is None or exchange.name != step.name or not _same(exchange.arguments, step.arguments):
            expected = step.name if step is not None else "no further call"
            diverged = (
                f"No change: this conversation does not follow my own steps (expected {expected}, found "
                f"{exchange.name}), so I cannot tell what was done, and I stop here."
            )
            return Reply("", diverged, (), 0)
        tried = repair.state.tried
        try:
            step = steps.send(exchange.result or "error: no result")
        except StopIteration:
            step = None
    judged = repair.state.tried - tried
    if step is None or body.get("tool_choice") == "none":
        return Reply("", repair.state.report(), (), judged)
    return Reply(step.reasoning, "", (Call(step.name, step.arguments),), judged)


def _same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Return whether a call of the history has the arguments that the repair gives it now."""
    one, other = found.get("code", ""), expected.get("code", "")
    same = isinstance(one, str) and same_job(one, other)
    return same and {**found, "code": ""} == {**expected, "code": ""}
