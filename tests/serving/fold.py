"""Run the chunks of an answer through the accumulator, without a server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from m3agent.serving.client.messages import AssistantMessage, Delta, FinishReason
from m3agent.serving.client.stream.accumulator import Accumulator

STRING = {"type": "string"}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("file_write", path=STRING, content=STRING),
    tool("file_read", path=STRING, end={"type": "integer"}),
]


def fold(
    chunks: Iterable[Any], *, tools: list[dict[str, Any]] = TOOLS, limit_reached: bool = False
) -> tuple[AssistantMessage, FinishReason, Accumulator]:
    """Return the message, its finish reason, and the accumulator. Assert that the shown deltas equal the message."""
    accumulator = Accumulator(tools, turn=1)
    shown: list[Delta] = []
    for chunk in chunks:
        shown += accumulator.add(chunk)
    shown += accumulator.close()
    message, reason = accumulator.finish(limit_reached)
    resets = [place for place, delta in enumerate(shown) if delta.kind == "reset"]
    shown = shown[resets[-1] + 1 :] if resets else shown
    for kind, whole in (("reasoning", message.reasoning), ("text", message.text)):
        assert "".join(delta.text for delta in shown if delta.kind == kind) == whole
    return message, reason, accumulator


def calls_of(message: AssistantMessage) -> list[tuple[str, dict[str, Any] | None]]:
    return [(call.name, call.arguments) for call in message.calls]
