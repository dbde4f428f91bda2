"""Convert calls and their results into the input of the stall detector."""

from __future__ import annotations

from m3agent.agent.stall.observation import ObservedCall
from m3agent.serving.client.messages import ToolCall
from m3agent.tools.base import ToolResult


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
