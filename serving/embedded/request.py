"""Read a chat completion request for the policy."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from m3agent.util.json_value import mapping, mappings

ISSUE_TAIL = 8000
"""Number of characters, at the end of the first messages, that count as the issue if it is not marked."""


@dataclass(frozen=True)
class Exchange:
    """One tool call of the history, and its result."""

    name: object
    arguments: Mapping[str, Any]
    result: str | None


@dataclass(frozen=True)
class NamedSuite:
    """A suite of tests that the first message names: its runner, and its folder (empty for the root)."""

    runner: str
    folder: str


@dataclass(frozen=True)
class Conversation:
    """The contents of a request."""

    issue: str
    tools: Mapping[str, frozenset[str]]
    """Names of the offered tools, with their parameters' names."""
    exchanges: tuple[Exchange, ...]
    """The tool calls so far."""
    suites: tuple[NamedSuite, ...] = ()
    """The suites that the first messages name; none if all tests are Python's."""


def text_of(content: object) -> str:
    """Return the text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return ""


def _task(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the first messages, which describe the task."""
    first = itertools.takewhile(lambda message: message["role"] != "assistant", messages)
    return "\n".join(text_of(message.get("content")) for message in first if message["role"] == "user")


def _issue(text: str) -> str:
    marked = re.findall(r"<issue>\n?(.*?)</issue>", text[-200_000:], re.DOTALL)
    return str(marked[-1]) if marked else text[-ISSUE_TAIL:]


def _suites(text: str) -> tuple[NamedSuite, ...]:
    """Return the suites of the last sentence before the issue that names some: `go in tools (found by tools/go.mod), ...`."""
    named = re.findall(
        r"^The tool test_runner runs these tests: (.*)\.$", text.rpartition("<issue>")[0], re.MULTILINE
    )
    found = re.findall(r"(?:^|, )([\w-]+)(?: in ([^()]+))? \([^()]*\)", named[-1] if named else "")
    return () if [runner for runner, _ in found] == ["pytest"] else tuple(NamedSuite(*each) for each in found)


def _tools(tools: object) -> dict[str, frozenset[str]]:
    functions = (mapping(tool, "function") for tool in mappings(tools))
    return {
        function["name"]: frozenset(mapping(function, "parameters", "properties"))
        for function in functions
        if isinstance(function.get("name"), str)
    }


def read(body: Mapping[str, Any]) -> Conversation:
    """Read a request body; its messages must already be checked to be objects with a role."""
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    results = {
        message.get("tool_call_id"): text_of(message.get("content"))
        for message in messages
        if message["role"] == "tool"
    }
    exchanges: list[Exchange] = []
    for message in messages:
        for call in (message.get("tool_calls") or []) if message["role"] == "assistant" else ():
            function = call.get("function") or {}
            try:
                arguments = json.loads(function.get("arguments") or "{}")
            except ValueError:
                arguments = {}
            exchanges.append(Exchange(function.get("name"), mapping(arguments), results.get(call.get("id"))))
    task = _task(messages)
    return Conversation(_issue(task), _tools(body.get("tools")), tuple(exchanges), _suites(task))
