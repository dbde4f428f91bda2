"""Check requests as a strict server would, in the order in which they arrived."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, get_args

from m3agent.serving.client.messages import ReasoningField
from tests.servers.dialects import Answer, Dialect
from tests.servers.misbehaving import Received, messages_bytes

REASONING = get_args(ReasoningField)
OURS = frozenset(
    {
        "accept",
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "host",
        "user-agent",
        "x-dynamo-session-id",  # routers keep a session where its prefix is
        "x-session-id",
    }
)
"""Headers with a purpose. The SDK's headers about the machine (x-stainless-…) are accepted as well."""


def faults(requests: Sequence[Received], dialect: Dialect, answers: Sequence[Answer]) -> list[str]:
    """Return what is wrong with the requests of one conversation in which the model gave these answers.

    `requests` includes failed requests; `answers` excludes answers that broke off.
    """
    found = [fault for request in requests for fault in _alone(request, dialect)]
    bodies = [request.body for request in requests]
    for earlier, later in itertools.pairwise(bodies):
        if not messages_bytes(later).startswith(messages_bytes(earlier)):
            found.append("a later request rewrote an earlier message")
    history = json.loads(bodies[-1])["messages"]
    said = [message for message in history if message["role"] == "assistant"]
    for message, answer in zip(said, answers, strict=False):
        found += _kept(message, answer, dialect)
    return found


def _alone(request: Received, dialect: Dialect) -> list[str]:
    """Return what is wrong with a single request."""
    found = [f"an unknown parameter: {name}" for name in sorted(request.json.keys() - dialect.accepts)]
    names = {name for name in request.headers if not name.startswith("x-stainless-")}
    found += [f"a header without a purpose: {name}" for name in sorted(names - OURS)]
    waiting: list[str] = []
    for message in request.json["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] in waiting:
                waiting.remove(message["tool_call_id"])
            else:
                found.append("a tool result without its call")
            continue
        if waiting:
            found.append("a call without its result right behind it")
        calls = message.get("tool_calls", [])
        waiting = [made["id"] for made in calls]
        if len(set(waiting)) < len(waiting):
            found.append("two calls with one id")
        found += [fault for made in calls for fault in _call_faults(made)]
        found += [
            f"reasoning under {name}" for name in REASONING if name in message and name != dialect.field
        ]
    return found + (["a call without its result at the end"] if waiting else [])


def _call_faults(made: dict[str, Any]) -> list[str]:
    try:
        arguments = json.loads(made["function"]["arguments"])
    except ValueError:
        return ["arguments that are not JSON"]
    return (
        [] if isinstance(arguments, dict) and made["function"]["name"] else ["arguments that are no object"]
    )


def _kept(message: dict[str, Any], answer: Answer, dialect: Dialect) -> list[str]:
    """Return what the client lost or changed of an answer."""
    reasoning = message.get(dialect.field, "")
    if isinstance(reasoning, list):
        reasoning = "".join(entry["text"] for entry in reasoning)
    found = [] if reasoning == answer.reasoning else [f"reasoning that is not what was said: {reasoning!r}"]
    if message["content"] != answer.text:
        found.append(f"text that is not what was said: {message['content']!r}")
    return found
