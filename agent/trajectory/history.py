"""Return the messages of a session: the kept messages if they match the log, or messages rebuilt from the log.

Secrets, and values that a strict JSON parser rejects, are replaced before data leaves the machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from m3agent import __version__
from m3agent.agent.context.neutralise import harmless
from m3agent.agent.context.output import redact_text
from m3agent.agent.context.secrets import redact
from m3agent.agent.loop.prompt import SYSTEM
from m3agent.agent.session import log_reader as log
from m3agent.agent.session.messages import Digest, Message
from m3agent.agent.session.record import CallRecord, SessionRecord, TurnRecord
from m3agent.serving.client.messages import NO_ANSWER, reasoning_of
from m3agent.tools.registry import own_schemas
from m3agent.util.json_value import mapping

DEEPEST = 64
"""Levels of nesting that are kept: far more than a call's arguments have, far fewer than overflow a parser's stack."""


def clean(value: Any, depth: int = 0) -> Any:
    """Copy a JSON value: markers replace secrets, escapes replace lone surrogates, strings replace NaN and infinity."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, dict | list | tuple):
        return value
    if depth >= DEEPEST:
        return f"[nested more than {DEEPEST} levels deep]"
    if isinstance(value, dict):
        return {clean_text(str(key)): clean(item, depth + 1) for key, item in value.items()}
    return [clean(item, depth + 1) for item in value]


def clean_text(text: str) -> str:
    """Return a text that UTF-8 can encode, with secrets replaced."""
    return redact(text.encode("utf-8", "backslashreplace").decode(), "").text


def proven(record: SessionRecord, messages: Sequence[Message] | None) -> Sequence[Message] | None:
    """Return `messages` if their digest matches the last request in the log; else None."""
    request, digest = _last_request(record), Digest()
    count = log.whole(request, "messages")
    if not messages or count is None or not 2 <= count <= len(messages):
        return None
    digest.add(messages[:count])
    return messages if str(digest) == request.get("digest") else None


def _last_request(record: SessionRecord) -> log.Line:
    """Return the last `turn.started`, with or without an answer."""
    return next((turn.request for turn in reversed(record.turns) if turn.request), {})


def results(messages: Sequence[Message], turn: TurnRecord) -> dict[str, str]:
    """Return the results of a turn's calls as the model read them, by id, from `proven` messages."""
    found: dict[str, str] = {}
    for message in messages[(turn.sent or 0) + 1 :]:
        if message.get("role") != "tool":
            break
        found[log.text(message, "tool_call_id")] = text_in(message.get("content"))
    return found


def result_of(call: CallRecord) -> str | None:
    """Return a call's result as the model read it: without secrets, with stall notes. None means no result."""
    if not call.finished:
        return None
    told = [log.text(stall, "text") for stall in call.of_type("stall")]
    return redact_text(log.text(call.finished, "content")) + "".join(f"\n\n[note: {text}]" for text in told)


def told_after(turn: TurnRecord, *, is_last: bool) -> tuple[log.Line, str]:
    """Return the event by which the gate or a verdict told the model something after a turn, and the text.

    The text is empty if there was none, and for the last turn with an answer.
    """
    fields = {"gate": "missing", "feedback": "text"}
    for line in reversed(turn.events):
        if not is_last and (said := log.text(line, fields.get(line["type"], ""))):
            return line, said
    return {}, ""


def offered(record: SessionRecord) -> list[Any]:
    """Return the tools of each request: m3agent's tools in this version, and the session's MCP tools."""
    return [*own_schemas(), *record.other_tools]


def sent_messages(record: SessionRecord, messages: Sequence[Message]) -> list[Message] | None:
    """Return the `proven` messages up to the model's last answer; None if that answer differs from the log."""
    count = log.whole(_last_request(record), "messages") or 0
    if len(messages) <= count or not record.answered:
        return None
    last, turn = messages[count], record.answered[-1]
    if last.get("role") != "assistant" or portable(last)["content"] != turn.text:
        return None
    return [portable(message) for message in messages[: count + 1]]


def logged_messages(record: SessionRecord) -> list[Message] | None:
    """Rebuild the messages from the log, without the repository's text; None if the log lacks a message or result."""
    told: list[Message] = []
    own = system_text(record)
    turns = record.answered
    for turn in turns:
        if turn.sent != 2 + len(told):
            return None
        told.append(assistant(turn.reasoning, turn.text, [_call(call) for call in turn.asked]))
        if turn is turns[-1]:
            break
        for call in turn.asked:
            result = result_of(call)
            if result is None or call.is_interrupted:  # the model read another text than the log has
                return None
            told.append({"role": "tool", "tool_call_id": call.key, "content": result})
        if text := told_after(turn, is_last=False)[1]:
            told.append({"role": "user", "content": text})
    if not told:
        return None
    first = [{"role": "system", "content": own}] if own else []
    return [*first, {"role": "user", "content": issue_text(record)}, *told]


def system_text(record: SessionRecord) -> str:
    """Return the system message if this version wrote the session; else empty, because the log does not contain it."""
    return SYSTEM if record.started.get("m3agent") == __version__ else ""


def issue_text(record: SessionRecord) -> str:
    """Return the part of the first user message that the log contains: the issue."""
    text = harmless(log.text(mapping(record.started, "issue"), "text").strip())
    return f"Fix this issue:\n\n<issue>\n{text}\n</issue>\n"


def clean_first(text: str, record: SessionRecord) -> str:
    """Replace secrets in the issue of the first user message. Those in its files were replaced before it was sent."""
    issue = issue_text(record)
    before, found, after = text.rpartition(issue)
    return before + clean_text(issue) + after if found else clean_text(text)


def assistant(reasoning: str, text: str, calls: list[Message]) -> Message:
    """Return an assistant's message. Empty reasoning and empty calls are left out."""
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def text_in(content: Any) -> str:
    """Return the text of a message; for a message with images, its text parts."""
    if isinstance(content, list):
        return "".join(log.text(part, "text") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def portable(message: Message) -> Message:
    """Return a message with text only and its reasoning in `reasoning_content`, which templates and loaders read."""
    text = text_in(message.get("content"))
    if message.get("role") == "assistant":
        text = "" if text == NO_ANSWER else text
        return assistant(reasoning_of(message), text, message.get("tool_calls") or [])
    return {**message, "content": text}


def _call(call: CallRecord) -> Message:
    text = json.dumps(clean(call.arguments or {}), ensure_ascii=False)
    return {"id": call.key, "type": "function", "function": {"name": call.name, "arguments": text}}
