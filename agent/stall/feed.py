"""Calls and their results as the detector is fed them."""

from __future__ import annotations

from m3agent.agent.stall.seen import Seen
from m3agent.serving.chat import ToolCall
from m3agent.tools.base import ToolResult


def as_seen(call: ToolCall, result: ToolResult, content: str, tree: str) -> Seen:
    """A finished call as the stall detector is fed it. content: the result as the model reads it; tree: the work tree's state after it."""
    data = result.data
    return Seen(
        name=call.name,
        arguments=call.arguments,
        content=content,
        digest=result.digest,
        is_error=result.is_error,
        exit_code=result.exit_code,
        tree=tree,
        failing=frozenset([*data["failed"], *data["errored"]]) if "passed" in data else None,
    )
