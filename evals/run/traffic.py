"""Read from an agent's requests how it uses its model server: prefixes, returned thinking, tools, sampling, repetitions.

The three interfaces are OpenAI's chat completions and responses, and Anthropic's messages. Nothing of a request is kept
but counts, names, settings and hashes.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, JsonValue

from m3agent.evals.data.results import Record
from m3agent.util.json_value import items, json_object, mappings

SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "tool_choice", "reasoning_effort"),
    *(
        "reasoning",
        "thinking",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "chat_template_kwargs",
    ),
)
"""Names of a request's settings that decide what the model writes."""
HEAD = ("system", "instructions", "tools")
"""Parts of a request that stand before its messages in the model's prompt."""
NO_CONTENT = frozenset(["cache_control"])
"""Keys that say how to store a message, not what it says. Claude Code moves them from request to request."""
THOUGHT = re.compile(rb'"(?:reasoning_content|reasoning|thinking|reasoning_text)"\s*:\s*"[^"]|<think>')
"""The beginning of a model's thinking in the bytes of an answer."""
THINKING_KEYS = frozenset(["reasoning_content", "reasoning", "reasoning_details"])
THINKING_TYPES = frozenset(["thinking", "redacted_thinking", "reasoning"])
MOST_SETTING = 200
"""Most characters of a setting's value that are kept."""
MOST_NAMES = 200
"""Most names of tools and models that are kept."""


class Traffic(Record):
    """How an agent used its model server in one attempt."""

    requests: int = 0
    """Requests to the model that were passed on."""
    failed: int = 0
    """Those of them without an answer of status 200 to 299."""
    repeated: int = 0
    """Requests with the same body as the one before, which had failed."""
    refused: int = 0
    """Requests that were not passed on because the budget was spent."""
    spent: str = ""
    """Which budget was spent; empty if none was."""
    continuing: int = 0
    """Requests that contain an answer of the model."""
    broken_prefixes: int = 0
    """Continuing requests that begin like no earlier request of the attempt: the server's cache does not help them."""
    thought: int = 0
    """Answers with thinking."""
    returned_thinking: int = 0
    """Continuing requests that contain thinking of the model."""
    first_seconds: float | None = None
    """Median time until an answer began, in seconds."""
    seconds: float = 0.0
    """Sum of the answers' times, in seconds."""
    tools: tuple[str, ...] = ()
    """Names of the offered tools."""
    models: tuple[str, ...] = ()
    """Names of the models that were asked for."""
    sampling: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """The last value of each setting in `SAMPLING`."""


@dataclass(frozen=True)
class Exchange:
    """A request that was passed on, and how its answer came."""

    body: bytes
    is_good: bool
    """Whether the answer had a status from 200 to 299."""
    has_thinking: bool
    """Whether the answer contained thinking."""
    first_seconds: float
    """Time until the answer began."""
    seconds: float
    """Time until the answer ended."""


@dataclass
class TrafficCounter:
    """Collects what the requests of one attempt tell."""

    _counts: dict[str, int] = field(default_factory=dict[str, int])
    _spent: str = ""
    _first: list[float] = field(default_factory=list[float])
    _seconds: float = 0.0
    _tools: dict[str, None] = field(default_factory=dict[str, None])
    _models: dict[str, None] = field(default_factory=dict[str, None])
    _sampling: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    _prompts: set[bytes] = field(default_factory=set[bytes])
    """Hashes of the requests' whole prompts."""
    _failed_body: bytes | None = None
    """Hash of the previous request, if it failed."""

    def add(self, exchange: Exchange) -> None:
        """Take a request whose answer has ended."""
        digest = hashlib.sha256(exchange.body).digest()
        self._count(
            requests=True,
            failed=not exchange.is_good,
            repeated=digest == self._failed_body,
            thought=exchange.has_thinking,
        )
        self._failed_body = None if exchange.is_good else digest
        self._first.append(exchange.first_seconds)
        self._seconds += exchange.seconds
        self._read(json_object(exchange.body))

    def refuse(self, budget: str) -> None:
        """Take a request that was refused because a budget was spent."""
        self._count(refused=True)
        self._spent = budget

    def result(self) -> Traffic:
        """Return what was collected so far."""
        return Traffic(
            **self._counts,
            spent=self._spent,
            first_seconds=round(statistics.median(self._first), 3) if self._first else None,
            seconds=round(self._seconds, 3),
            tools=tuple(self._tools),
            models=tuple(self._models),
            sampling=self._sampling,
        )

    def _count(self, **events: bool) -> None:
        for name, happened in events.items():
            self._counts[name] = self._counts.get(name, 0) + happened

    def _read(self, request: Mapping[str, Any]) -> None:
        messages = messages_of(request)
        hashes = list(prefix_hashes(request, messages))
        if any(map(_is_answer, messages)):
            self._count(
                continuing=True,
                broken_prefixes=self._is_broken(request, hashes),
                returned_thinking=any(map(_has_thinking, messages)),
            )
        self._prompts.update(hashes[-1:])
        _remember(self._tools, tool_names(request))
        _remember(self._models, [request.get("model")])
        for name in SAMPLING:
            if request.get(name) is not None:
                self._sampling[name] = _short(request[name])

    def _is_broken(self, request: Mapping[str, Any], hashes: Sequence[bytes]) -> bool:
        """Return whether no earlier request is the beginning of this one. A first request may bring an invented history."""
        is_first = not self._prompts
        return not is_first and "previous_response_id" not in request and self._prompts.isdisjoint(hashes)


def messages_of(request: Mapping[str, Any]) -> Sequence[Any]:
    """Return the messages of a request of any of the three interfaces."""
    given = request.get("messages", request.get("input"))
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return items(given)


def prefix_hashes(request: Mapping[str, Any], messages: Sequence[Any]) -> Iterator[bytes]:
    """Yield a hash for each beginning of the prompt that ends after a message; the last is the whole prompt's."""
    digest = _hash(b"", [request.get(name) for name in HEAD])
    for message in messages:
        digest = _hash(digest, message)
        yield digest


def tool_names(request: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the names of the tools that a request offers."""
    for tool in mappings(request.get("tools")):
        inner = tool.get("function")
        yield (inner if isinstance(inner, dict) else tool).get("name", tool.get("type"))


def _hash(before: bytes, value: Any) -> bytes:
    text = json.dumps(_content(value), sort_keys=True)
    return hashlib.sha256(before + text.encode(errors="surrogatepass")).digest()


def _content(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _content(part) for name, part in value.items() if name not in NO_CONTENT}
    return [_content(part) for part in value] if isinstance(value, list) else value


def _is_answer(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    return message.get("role") == "assistant" or message.get("type") in ("function_call", "reasoning")


def _has_thinking(message: Any) -> bool:
    if not isinstance(message, dict) or not _is_answer(message):
        return False
    if message.get("type") in THINKING_TYPES or any(message.get(name) for name in THINKING_KEYS):
        return True
    content = message.get("content")
    if isinstance(content, str):
        return "<think>" in content
    return any(part.get("type") in THINKING_TYPES for part in mappings(content))


def _remember(names: dict[str, None], new: Iterator[Any] | Sequence[Any]) -> None:
    for name in new:
        if isinstance(name, str) and len(names) < MOST_NAMES:
            names[_storable(name[:MOST_SETTING])] = None


def _short(value: Any) -> JsonValue:
    text = json.dumps(value)
    return _storable(value) if len(text) <= MOST_SETTING else text[:MOST_SETTING]


def _storable(value: Any) -> Any:
    """Return a JSON value with a question mark for each lone surrogate, which no file can have."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
