"""A verified session as a line of training data in chat format, as NeMo AutoModel's chat data sets read it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

from m3agent import __version__
from m3agent.agent import session_log as log
from m3agent.agent.conversation import Message
from m3agent.agent.session_log import Line
from m3agent.agent.trajectory.clean import clean, clean_text
from m3agent.agent.trajectory.history import clean_first, logged_messages, proven, sent_messages
from m3agent.agent.trajectory.story import Story, tell


def to_sft(events: Iterable[Line], messages: Sequence[Message] | None = None) -> dict[str, Any] | None:
    """One example: `messages`, `tools` (JSON text) and where they come from. docs/trajectories.md has the columns.

    events: the lines of a session's log. messages: those of its requests, if they were kept: the example holds the
    repository then. They are used only if the log's digest proves them. None for a session that is not verified, and
    for one whose conversation is not whole.
    """
    story = tell(events)
    verified = story.finished.get("status") == "verified" and story.verify.get("verdict") == "verified"
    if not verified or not story.whole:
        return None
    kept = proven(story, messages)
    conversation = (kept and sent_messages(story, kept)) or None
    included = conversation is not None
    conversation = conversation or logged_messages(story)
    if conversation is None:
        return None
    cleaned = [_clean_message(message) for message in conversation]
    if included:
        cleaned[1]["content"] = clean_first(log.text(conversation[1], "content"), story)
    return {
        "messages": cleaned,
        "tools": json.dumps(clean(story.tools), ensure_ascii=True),
        **clean(_origin(story, included)),
    }


def write_jsonl(rows: Iterable[Mapping[str, Any]], out: BinaryIO) -> int:
    """Write each row as one line and return how many. All is ASCII: some readers take U+2028 for the end of a line."""
    count = 0
    for count, row in enumerate(rows, start=1):  # noqa: B007 (the last number is the result)
        out.write(json.dumps(row, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n")
    return count


def _clean_message(message: Message) -> Message:
    """Without secrets; arguments are cleaned as what they are, for text of JSON in JSON hides line ends."""
    result: Message = clean({key: value for key, value in message.items() if key != "tool_calls"})
    if message.get("tool_calls"):
        result["tool_calls"] = [_clean_call(call) for call in message["tool_calls"]]
    return result


def _clean_call(call: Message) -> Message:
    function = log.mapping(call, "function")
    arguments = json.dumps(clean(json.loads(log.text(function, "arguments") or "{}")), ensure_ascii=False)
    name = clean_text(log.text(function, "name"))
    return {
        "id": clean(call.get("id")),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _origin(story: Story, included: bool) -> dict[str, Any]:
    """Columns of the same type in every row, so that rows of many sessions make one table."""
    repository, issue = log.mapping(story.started, "repository"), log.mapping(story.started, "issue")
    return {
        "session": log.text(story.started, "session"),
        "m3agent": log.text(story.started, "m3agent"),
        "exporter": __version__,
        "model": log.text(story.endpoint, "model"),
        "head": log.text(repository, "head"),
        "issue_digest": log.text(issue, "digest"),
        "images": len(log.items(issue, "images")),
        "repository_included": included,
        "context_digest": log.text(story.context, "digest"),
        "context_tokens": log.whole(story.context, "tokens"),
        "fixed": [test for test in log.items(story.verify, "fixed") if isinstance(test, str)],
    }
