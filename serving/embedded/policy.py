"""From a request to the next message, as a pure function: the repair is replayed over the history."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from m3agent.serving.embedded.repair import Budget, Repair, Step
from m3agent.serving.embedded.request import Conversation, read
from m3agent.serving.wire import Call


@dataclass(frozen=True)
class Reply:
    """What the policy says: reasoning, text, and at most one call. `tried` counts candidates over the whole history."""

    reasoning: str
    text: str
    calls: tuple[Call, ...]
    tried: int


def respond(body: Mapping[str, Any], budget: Budget) -> Reply:
    """Return the next message for a chat completion request (an object with checked ``messages``)."""
    conversation = read(body)
    if body.get("tool_choice") == "none":
        repair, _, diverged = replay(conversation, budget)
        return Reply("", diverged or repair.state.report(), (), repair.state.tried)
    repair, step, diverged = replay(conversation, budget)
    if diverged:
        return Reply("", diverged, (), repair.state.tried)
    if step is None:
        again = "I have nothing to add. " if conversation.finished else ""
        return Reply(
            "",
            again + repair.state.report() if not repair.state.unchanged else repair.state.report(),
            (),
            repair.state.tried,
        )
    return Reply(step.reasoning, "", (Call(step.name, step.arguments, ""),), repair.state.tried)


def replay(conversation: Conversation, budget: Budget) -> tuple[Repair, Step | None, str]:
    """Run the repair over the history; return it, its next step (None when it has ended) and how it diverged, if so."""
    repair = Repair(conversation.issue, conversation.tools, budget)
    steps = repair.steps()
    step = next(steps, None)
    for exchange in conversation.exchanges:
        if step is None or (exchange.name, dict(exchange.arguments)) != (step.name, step.arguments):
            expected = step.name if step is not None else "no further call"
            return (
                repair,
                None,
                (
                    f"No change: this conversation does not go on as I would have ({expected} expected, {exchange.name} found), "
                    "so I cannot tell what has been done and stop here."
                ),
            )
        try:
            step = steps.send(exchange.result or "error: no result")
        except StopIteration:
            step = None
    return repair, step, ""
