"""Answers that do not stream, and a server whose every stream breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.servers.dialects import Answer, arguments
from tests.servers.misbehaving import Received, Reply, Stream

Respond = Callable[[Received], Any]


def whole(answer: Answer, *, finish: str | None = None, tokens: int = 20) -> Reply:
    """Return the answer as vLLM sends it to a request with `stream: false`."""
    made = [
        {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": arguments(call)},
        }
        for number, call in enumerate(answer.calls)
    ]
    message = {"role": "assistant", "content": answer.text, "reasoning": answer.reasoning, "tool_calls": made}
    return Reply(
        200,
        {
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": finish or answer.finish}],
            "usage": {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens},
        },
    )


def turn_of(request: Received) -> int:
    """Return the number of the requested turn, from 0."""
    return sum(message["role"] == "assistant" for message in request.json["messages"])


def breaking(answers: Sequence[Answer], broken: Callable[[Answer], Stream]) -> Respond:
    """Return a server's behaviour: every stream is `broken`, and whole answers are right."""

    def respond(request: Received) -> Any:
        said = answers[turn_of(request)]
        return broken(said) if request.json["stream"] else whole(said)

    return respond
