"""Types that the client and the agent loop exchange: an assistant's message, its calls, its usage."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

FinishReason: TypeAlias = Literal["stop", "tool_calls", "length", "content_filter"]
ReasoningField: TypeAlias = Literal["reasoning", "reasoning_content", "reasoning_details"]
"""The keys under which servers send reasoning and take it back; `reasoning_details` holds a list."""

NO_ANSWER = "(no answer)"
"""Stands for an answer without text and calls in later requests, because some servers refuse an empty message."""


NO_TEXT = "(no text)"
"""What stands in the history for an answer without text and calls."""


@dataclass(frozen=True)
class Usage:
    """Token counts of one turn, as the server reported them; None means unknown, which is not zero."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True)
class ToolCall:
    """One tool call that the model requested.

    If the arguments are not a JSON object, `arguments` is None and `error` gives the reason. The loop must
    answer such a call with its error and must never run it.
    """

    id: str
    name: str
    arguments: dict[str, Any] | None
    arguments_text: str
    error: str | None = None

    def to_request(self) -> dict[str, Any]:
        """Return the call for the message history, without malformed arguments: servers reject those."""
        arguments = json.dumps(self.arguments or {}, ensure_ascii=False)
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


@dataclass(frozen=True)
class AssistantMessage:
    """The model's message of one turn.

    `reasoning` must be sent back in full, or M3 loses its line of thought.
    """

    reasoning: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()

    def to_request(self, reasoning_field: str) -> dict[str, Any]:
        """Return the message for the next request; equal messages give equal bytes."""
        empty = not self.calls and not self.text.strip()  # servers refuse a message without text and calls
        message: dict[str, Any] = {"role": "assistant", "content": NO_TEXT if empty else self.text}
        if self.reasoning and reasoning_field == "reasoning_details":
            message[reasoning_field] = [{"type": "reasoning.text", "text": self.reasoning}]
        elif self.reasoning:
            message[reasoning_field] = self.reasoning
        if self.calls:
            message["tool_calls"] = [call.to_request() for call in self.calls]
        return message


def reasoning_of(message: Mapping[str, Any]) -> str:
    """Return the reasoning in an assistant's message of a request, under whichever key it was sent."""
    for field in get_args(ReasoningField):
        value = message.get(field)
        if isinstance(value, list):
            texts = (part.get("text") for part in value if isinstance(part, Mapping))
            value = "".join(text for text in texts if isinstance(text, str))
        if isinstance(value, str) and value:
            return value
    return ""


@dataclass(frozen=True)
class TurnTokens:
    """The tokens of one turn, as the server reported them."""

    prompt: tuple[int, ...]
    """Ids of the prompt."""
    completion: tuple[int, ...]
    """Ids of the answer."""
    logprobs: tuple[float, ...] = ()
    """Log probability of each token of the answer; empty if the server did not say."""


@dataclass(frozen=True)
class Turn:
    """One finished answer."""

    message: AssistantMessage
    """The model's message."""
    usage: Usage
    """Token counts as the server reported them."""
    finish: FinishReason
    """Why the answer ended."""
    seconds: float
    """Duration, measured from the start of the attempt that succeeded."""
    first_token_seconds: float | None
    """Seconds from that start to the first event; None if no event came."""
    tokens: TurnTokens | None = None
    """The tokens; None if they were not requested or the server does not report them."""


@dataclass(frozen=True)
class Delta:
    """A piece of an answer that is still arriving, for display.

    The kind `call` carries the name of a tool as soon as it is known. The kind `reset` revokes all earlier
    deltas of this answer. That happens if the stream broke and the request is repeated, or if text turned out
    to be reasoning; the reasoning then follows in new deltas.
    """

    kind: Literal["reasoning", "text", "call", "reset"]
    text: str
