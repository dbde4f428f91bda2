"""A chat completion request as the policy reads it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ISSUE_TAIL = 8000
"""Characters at the end of the first messages that are taken for the issue where nothing marks it."""


@dataclass(frozen=True)
class Exchange:
    """One call that has been made, and its result."""

    name: object
    arguments: Mapping[str, Any]
    result: str | None


@dataclass(frozen=True)
class Conversation:
    """What a request says: the issue, the tools, and the turns so far."""

    issue: str
    tools: Mapping[str, frozenset[str]]
    exchanges: tuple[Exchange, ...]


def text_of(content: object) -> str:
    """Return the text of a message's content, given as a text or as a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return ""


def _issue(messages: Sequence[Mapping[str, Any]]) -> str:
    texts = []
    for message in messages:
        if message["role"] == "assistant":
            break
        if message["role"] == "user":
            texts.append(text_of(message.get("content")))
    text = "\n".join(texts)
    marked = re.findall(r"<issue>\n?(.*?)</issue>", text[-200_000:], re.DOTALL)
    return str(marked[-1]) if marked else text[-ISSUE_TAIL:]


def _tools(tools: object) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            found[function["name"]] = frozenset(properties or ())
    return found


def read(body: Mapping[str, Any]) -> Conversation:
    """Read a request body whose messages have been checked to be objects with a role."""
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    results = {
        message.get("tool_call_id"): text_of(message.get("content"))
        for message in messages
        if message["role"] == "tool"
    }
    exchanges: list[Exchange] = []
    for message in messages:
        if message["role"] != "assistant":
            continue
        calls = message.get("tool_calls") or []
        for call in calls:
            function = call.get("function") or {}
            try:
                arguments = json.loads(function.get("arguments") or "{}")
            except ValueError:
                arguments = {}
            given = arguments if isinstance(arguments, dict) else {}
            exchanges.append(Exchange(function.get("name"), given, results.get(call.get("id"))))
    return Conversation(_issue(messages), _tools(body.get("tools")), tuple(exchanges))
