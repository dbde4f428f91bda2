"""Convert a verified session into a line of training data in the chat format of NeMo AutoModel's data sets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

from m3agent import __version__
from m3agent.agent.session import log_reader as log
from m3agent.agent.session.messages import Message
from m3agent.agent.session.record import SessionRecord
from m3agent.agent.trajectory.history import (
    clean,
    clean_first,
    clean_text,
    logged_messages,
    offered,
    proven,
    sent_messages,
)
from m3agent.util.json_value import items, mapping


def to_sft(record: SessionRecord, messages: Sequence[Message] | None = None) -> dict[str, Any] | None:
    """Return one training example. docs/trajectories.md describes its columns.

    Args:
        messages: The session's messages, if they were kept. They are used only if their digest matches the log. The
            example then contains the repository.

    Returns `messages`, `tools` (JSON text) and their origin; None if the session is not verified or its
    conversation is incomplete.
    """
    verified = record.ended.get("status") == "verified" and record.verdict.get("verdict") == "verified"
    if not verified or not record.is_whole:
        return None
    kept = proven(record, messages)
    conversation = (kept and sent_messages(record, kept)) or None
    included = conversation is not None
    conversation = conversation or logged_messages(record)
    if conversation is None:
        return None
    cleaned = [_clean_message(message) for message in conversation]
    if included:
        cleaned[1]["content"] = clean_first(log.text(conversation[1], "content"), record)
    return {
        "messages": cleaned,
        "tools": json.dumps(clean(offered(record)), ensure_ascii=True),
        **clean(_origin(record, included)),
    }


def write_jsonl(rows: Iterable[Mapping[str, Any]], out: BinaryIO) -> int:
    """Write each row as one line; return the number of rows.

    The lines are ASCII, because some readers take U+2028 for the end of a line.
    """
    count = 0
    for count, row in enumerate(rows, start=1):  # noqa: B007 (the last number is the result)
        out.write(json.dumps(row, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n")
    return count


def _clean_message(message: Message) -> Message:
    """Replace secrets in a message. Arguments are parsed first, because JSON text in JSON hides line ends."""
    result: Message = clean({key: value for key, value in message.items() if key != "tool_calls"})
    if message.get("tool_calls"):
        result["tool_calls"] = [_clean_call(call) for call in message["tool_calls"]]
    return result


def _clean_call(call: Message) -> Message:
    function = mapping(call, "function")
    arguments = json.dumps(clean(json.loads(log.text(function, "arguments") or "{}")), ensure_ascii=False)
    name = clean_text(log.text(function, "name"))
    return {
        "id": clean(call.get("id")),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _origin(record: SessionRecord, included: bool) -> dict[str, Any]:
    """Return the columns about the origin. Their types are the same in every row, so that the rows form one table."""
    repository, issue = mapping(record.started, "repository"), mapping(record.started, "issue")
    context, endpoint = record.last_prepared("context.packed"), record.last_prepared("endpoint.probed")
    return {
        "session": log.text(record.started, "session"),
        "m3agent": log.text(record.started, "m3agent"),
        "exporter": __version__,
        "model": log.text(endpoint, "model"),
        "head": log.text(repository, "head"),
        "issue_digest": log.text(issue, "digest"),
        "images": len(items(issue, "images")),
        "repository_included": included,
        "context_digest": log.text(context, "digest"),
        "context_tokens": log.whole(context, "tokens"),
        "fixed": [test for test in items(record.verdict, "fixed") if isinstance(test, str)],
    }
