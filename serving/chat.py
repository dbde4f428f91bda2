"""What the client and the loop exchange: an assistant's message, its calls, its usage."""

import json
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

FinishReason: TypeAlias = Literal["stop", "tool_calls", "length", "content_filter"]
ReasoningField: TypeAlias = Literal["reasoning", "reasoning_content", "reasoning_details"]


@dataclass(frozen=True)
class Usage:
    """Tokens of one turn as the server counted them; None is unknown, which is not zero."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True)
class ToolCall:
    """One call the model asked for.

    `arguments` is None, and `error` says why, where the text is not a JSON object: such a call must be
    answered with its error and never run.
    """

    id: str
    name: str
    arguments: dict[str, Any] | None
    arguments_text: str
    error: str | None = None

    def to_request(self) -> dict[str, Any]:
        """The call as it stands in the history; malformed arguments stay out of it, or the server refuses."""
        arguments = json.dumps(self.arguments or {}, ensure_ascii=False)
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


@dataclass(frozen=True)
class AssistantMessage:
    """What the model said in one turn; `reasoning` goes back to it whole, or M3 loses its thread."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()

    def to_request(self, reasoning_field: str) -> dict[str, Any]:
        """The message as the next request carries it: equal messages give equal bytes.

        `reasoning_field` is the one key that the server reads reasoning from (`Endpoint.reasoning_field`).
        """
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning and reasoning_field == "reasoning_details":
            message[reasoning_field] = [{"type": "reasoning.text", "text": self.reasoning}]
        elif self.reasoning:
            message[reasoning_field] = self.reasoning
        if self.calls:
            message["tool_calls"] = [call.to_request() for call in self.calls]
        return message


@dataclass(frozen=True)
class Turn:
    """One finished answer: how it ended, and how long it took in seconds from the request that succeeded."""

    message: AssistantMessage
    usage: Usage
    finish: FinishReason
    seconds: float
    first_token_seconds: float | None


@dataclass(frozen=True)
class Delta:
    """A piece of an answer on its way, for people to watch.

    `call` carries the name of a tool as soon as it is known. `reset` takes back every delta of this answer so
    far: its stream broke and it is asked for again, or text turned out to be reasoning and follows as such.
    """

    kind: Literal["reasoning", "text", "call", "reset"]
    text: str
