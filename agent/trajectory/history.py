"""The messages of a session: those that were kept, if the log proves them, or put together from the log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from m3agent import __version__
from m3agent.agent import session_log as log
from m3agent.agent.context.output import redact_text
from m3agent.agent.context.text import harmless
from m3agent.agent.conversation import Digest, Message
from m3agent.agent.prompt import SYSTEM
from m3agent.agent.session_record import CallRecord, SessionRecord, TurnRecord
from m3agent.agent.trajectory.clean import clean, clean_text
from m3agent.tools.registry import own_schemas

REASONING_FIELDS = ("reasoning_content", "reasoning")


def proven(record: SessionRecord, messages: Sequence[Message] | None) -> Sequence[Message] | None:
    """`messages` if the last request of the log was made of them, by the digest that stands there; else None."""
    request, digest = _last_request(record), Digest()
    count = log.whole(request, "messages")
    if not messages or count is None or not 2 <= count <= len(messages):
        return None
    digest.add(messages[:count])
    return messages if str(digest) == request.get("digest") else None


def _last_request(record: SessionRecord) -> log.Line:
    """The last `turn.started`, answered or not."""
    return next((turn.request for turn in reversed(record.turns) if turn.request), {})


def results(messages: Sequence[Message], turn: TurnRecord) -> dict[str, str]:
    """What the model read of each of a turn's calls, by id, from messages that are `proven`."""
    found: dict[str, str] = {}
    for message in messages[(turn.sent or 0) + 1 :]:
        if message.get("role") != "tool":
            break
        found[log.text(message, "tool_call_id")] = text_in(message.get("content"))
    return found


def result_of(call: CallRecord) -> str | None:
    """What the model read of a call: the result as tools may show it, and what it was told of a repetition. None: no result."""
    if not call.finished:
        return None
    told = [log.text(stall, "text") for stall in call.of_type("stall")]
    return redact_text(log.text(call.finished, "content")) + "".join(f"\n\n[note: {text}]" for text in told)


def told_by_gate(turn: TurnRecord, *, is_last: bool) -> str:
    """What the gate told the model after a turn; empty when nothing, or when it is the last one that was answered."""
    gates = turn.of_type("gate")
    return log.text(gates[-1], "missing") if gates and not is_last else ""


def offered(record: SessionRecord) -> list[Any]:
    """The tools of each request, if this version of m3agent offered them: ours, and those of others."""
    return [*own_schemas(), *record.other_tools]


def sent_messages(record: SessionRecord, messages: Sequence[Message]) -> list[Message] | None:
    """The conversation up to the model's last words, from messages that are `proven`. None if those words differ."""
    count = log.whole(_last_request(record), "messages") or 0
    if len(messages) <= count or not record.answered:
        return None
    last, turn = messages[count], record.answered[-1]
    if last.get("role") != "assistant" or log.text(last, "content") != turn.text:
        return None
    return [portable(message) for message in messages[: count + 1]]


def logged_messages(record: SessionRecord) -> list[Message] | None:
    """The same from the log alone, without the repository's text. None where a message or a result is not in it."""
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
            if result is None or call.is_interrupted:  # the model was told other words than the log's
                return None
            told.append({"role": "tool", "tool_call_id": call.key, "content": result})
        if text := told_by_gate(turn, is_last=False):
            told.append({"role": "user", "content": text})
    if not told:
        return None
    first = [{"role": "system", "content": own}] if own else []
    return [*first, {"role": "user", "content": issue_text(record)}, *told]


def system_text(record: SessionRecord) -> str:
    """The system message: this version's, if the session is of this version; else empty, for the log has none."""
    return SYSTEM if record.started.get("m3agent") == __version__ else ""


def issue_text(record: SessionRecord) -> str:
    """The part of the first user message that the log holds."""
    text = harmless(log.text(log.mapping(record.started, "issue"), "text").strip())
    return f"Fix this issue:\n\n<issue>\n{text}\n</issue>\n"


def clean_first(text: str, record: SessionRecord) -> str:
    """The first user message as it was sent, without secrets in the issue; its files have been searched one by one."""
    issue = issue_text(record)
    before, found, after = text.rpartition(issue)
    return before + clean_text(issue) + after if found else clean_text(text)


def assistant(reasoning: str, text: str, calls: list[Message]) -> Message:
    """An assistant's message; reasoning and calls only where there are some."""
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def text_in(content: Any) -> str:
    """A message's text; of one with images, its text parts."""
    if isinstance(content, list):
        return "".join(log.text(part, "text") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def portable(message: Message) -> Message:
    """A request's message with text only, and reasoning under the one name that templates and loaders agree on."""
    text = text_in(message.get("content"))
    if message.get("role") == "assistant":
        return assistant(_reasoning(message), text, message.get("tool_calls") or [])
    return {**message, "content": text}


def _reasoning(message: Message) -> str:
    details = message.get("reasoning_details")
    if isinstance(details, list):
        return "".join(log.text(part, "text") for part in details if isinstance(part, dict))
    return next((text for key in REASONING_FIELDS if (text := log.text(message, key))), "")


def _call(call: CallRecord) -> Message:
    text = json.dumps(clean(call.arguments or {}), ensure_ascii=False)
    return {"id": call.key, "type": "function", "function": {"name": call.name, "arguments": text}}
