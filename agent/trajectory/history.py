"""The messages of a session: those that were kept, if the log proves them, or put together from the log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from m3agent import __version__
from m3agent.agent import session_log as log
from m3agent.agent.context.text import harmless
from m3agent.agent.conversation import Digest, Message
from m3agent.agent.prompt import SYSTEM
from m3agent.agent.trajectory.clean import clean, clean_text
from m3agent.agent.trajectory.story import Story, Turn

REASONING_FIELDS = ("reasoning_content", "reasoning")


def proven(story: Story, messages: Sequence[Message] | None) -> Sequence[Message] | None:
    """`messages` if the last request of the log was made of them, by the digest that stands there; else None."""
    if not messages or not story.asked:
        return None
    count, digest = log.whole(story.asked[-1], "messages"), Digest()
    if count is None or not 2 <= count <= len(messages):
        return None
    digest.add(messages[:count])
    return messages if str(digest) == story.asked[-1].get("digest") else None


def results(messages: Sequence[Message], turn: Turn) -> dict[str, str]:
    """What the model read of each of a turn's calls, by id, from messages that are `proven`."""
    found: dict[str, str] = {}
    for message in messages[(turn.sent or 0) + 1 :]:
        if message.get("role") != "tool":
            break
        found[log.text(message, "tool_call_id")] = text_in(message.get("content"))
    return found


def sent_messages(story: Story, messages: Sequence[Message]) -> list[Message] | None:
    """The conversation up to the model's last words, from messages that are `proven`. None if those words differ."""
    count = log.whole(story.asked[-1], "messages") or 0
    if len(messages) <= count or not story.turns:
        return None
    last, turn = messages[count], story.turns[-1]
    if last.get("role") != "assistant" or log.text(last, "content") != turn.text:
        return None
    return [portable(message) for message in messages[: count + 1]]


def logged_messages(story: Story) -> list[Message] | None:
    """The same from the log alone, without the repository's text. None where a message or a result is not in it."""
    told: list[Message] = []
    own = system_text(story)
    for index, turn in enumerate(story.turns):
        if turn.sent != 2 + len(told):
            return None
        told.append(
            assistant(turn.reasoning, turn.text, [_call(c.id, c.name, c.arguments) for c in turn.calls])
        )
        if index + 1 == len(story.turns):
            break
        for call in turn.calls:
            if (
                call.result is None or call.interrupted
            ):  # the log's words for those are not what the model was told
                return None
            told.append({"role": "tool", "tool_call_id": call.id, "content": call.result})
        if text := story.told(index):
            told.append({"role": "user", "content": text})
    if not told:
        return None
    first = [{"role": "system", "content": own}] if own else []
    return [*first, {"role": "user", "content": issue_text(story)}, *told]


def system_text(story: Story) -> str:
    """The system message: this version's, if the session is of this version; else empty, for the log has none."""
    return SYSTEM if story.started.get("m3agent") == __version__ else ""


def issue_text(story: Story) -> str:
    """The part of the first user message that the log holds."""
    text = harmless(log.text(log.mapping(story.started, "issue"), "text").strip())
    return f"Fix this issue:\n\n<issue>\n{text}\n</issue>\n"


def clean_first(text: str, story: Story) -> str:
    """The first user message as it was sent, without secrets in the issue; its files have been searched one by one."""
    issue = issue_text(story)
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


def _call(identity: str, name: str, arguments: dict[str, Any] | None) -> Message:
    text = json.dumps(clean(arguments or {}), ensure_ascii=False)
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": text}}
