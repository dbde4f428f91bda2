"""A model that answers from a script, with what `m3agent.serving.client.client.Client` promises and no server."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from m3agent.serving.client.client import Client, Messages
from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.client.messages import AssistantMessage, Delta, FinishReason, ToolCall, Turn, Usage
from m3agent.serving.client.parameters import Sampling
from m3agent.serving.errors import ModelServerError
from m3agent.serving.wire import ThinkingMode

HOST = "model.invalid"
ENDPOINT = Endpoint(f"http://{HOST}/v1", "scripted", "vllm", None, None, "reasoning", local=True)
USAGE = Usage(prompt=100, cached=60, completion=10, reasoning=4)


@dataclass(frozen=True)
class Asked:
    """A request as it was when it was made."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    tool_choice: str | Mapping[str, Any] = "auto"
    max_tokens: int | None = None
    thinking: ThinkingMode = "adaptive"
    sampling: Sampling = Sampling()  # noqa: RUF009  # it is frozen
    deadline: float | None = None


Answer = Turn | ModelServerError | Sequence[Delta | Turn | ModelServerError]
"""A whole answer, an error in the place of one, or the items of a stream one by one."""


class ScriptedClient(Client):
    """Gives the answers of its script one after the other, and keeps what it was asked."""

    def __init__(self, answers: Iterable[Answer], endpoint: Endpoint = ENDPOINT) -> None:
        super().__init__(endpoint, api_key=None)
        self.answers = list(answers)
        self.asked: list[Asked] = []
        self.closed = 0
        """Streams that came to their end or were closed."""

    async def complete(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], **how: Any
    ) -> AsyncGenerator[Delta | Turn, None]:
        sent = copy.deepcopy([dict(message) for message in messages])
        self.asked.append(Asked(sent, copy.deepcopy([dict(tool) for tool in tools]), **how))
        assert self.answers, f"the script has no answer to {sent[-1]}"
        answer = self.answers.pop(0)
        try:
            for item in answer if isinstance(answer, Sequence) else stream_of(answer):
                if isinstance(item, ModelServerError):
                    raise item
                yield item
        finally:
            self.closed += 1


def stream_of(answer: Turn | ModelServerError) -> list[Delta | Turn | ModelServerError]:
    """The stream of an answer: its pieces, then itself."""
    if isinstance(answer, ModelServerError):
        return [answer]
    said = answer.message
    pieces = [Delta("reasoning", said.reasoning), Delta("text", said.text)]
    pieces += [Delta("call", call.name) for call in said.calls]
    return [*(piece for piece in pieces if piece.text), answer]


def says(text: str, *, reasoning: str = "hm", finish: FinishReason = "stop", usage: Usage = USAGE) -> Turn:
    """An answer in words."""
    return Turn(AssistantMessage(reasoning, text), usage, finish, 2.0, 0.5)


def calls(*made: ToolCall, text: str = "", usage: Usage = USAGE) -> Turn:
    """An answer that makes these calls."""
    return Turn(AssistantMessage("hm", text, made), usage, "tool_calls", 2.0, 0.5)


def call(ident: str, name: str, /, **arguments: Any) -> ToolCall:
    """A call of a tool; `ident` is its id."""
    return ToolCall(ident, name, arguments, json.dumps(arguments))
