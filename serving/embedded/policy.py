"""Compute the next message from a request, as a pure function: replay the repair over the history."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from m3agent.serving.embedded.probe import same_job
from m3agent.serving.embedded.repair import Budget, Repair, RepairStep
from m3agent.serving.embedded.request import Conversation, read
from m3agent.serving.wire import Call


@dataclass(frozen=True)
class Reply:
    """The next message of the policy.

    Attributes:
        reasoning: Its reasoning.
        text: Its text.
        calls: At most one call.
        judged: Number of candidates that the newest tool result judged.
    """

    reasoning: str
    text: str
    calls: tuple[Call, ...]
    judged: int


@dataclass(frozen=True)
class Replayed:
    """The state of the repair after the history.

    Attributes:
        repair: The repair.
        step: Its next step; None if it has ended.
        judged: Number of candidates that the newest tool result judged.
        diverged: How the history differs from the repair's own steps; empty if it does not.
    """

    repair: Repair
    step: RepairStep | None
    judged: int = 0
    diverged: str = ""


def respond(body: Mapping[str, Any], budget: Budget) -> Reply:
    """Return the next message for a chat completion request (an object with checked ``messages``)."""
    found = replay(read(body), budget)
    if found.step is None or body.get("tool_choice") == "none":
        return Reply("", found.diverged or found.repair.state.report(), (), found.judged)
    call = Call(found.step.name, found.step.arguments)
    return Reply(found.step.reasoning, "", (call,), found.judged)


def replay(conversation: Conversation, budget: Budget) -> Replayed:
    """Run the repair over the history of a conversation."""
    repair = Repair(conversation.issue, conversation.tools, budget, conversation.suites)
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
            return Replayed(repair, None, 0, diverged)
        tried = repair.state.tried
        try:
            step = steps.send(exchange.result or "error: no result")
        except StopIteration:
            step = None
    return Replayed(repair, step, repair.state.tried - tried)


def _same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Return whether a call of the history has the arguments that the repair gives it now."""
    one, other = dict(found), dict(expected)
    codes = one.pop("code", ""), other.pop("code", "")
    return one == other and all(isinstance(code, str) for code in codes) and same_job(*codes)
