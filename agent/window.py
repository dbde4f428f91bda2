"""How full the model's window is, and what stays of a conversation when its tail is summarised.

A summary costs the model its memory of what it did, and the server the cached part behind the repository, so it comes
rarely: only when the next step may not fit, and then most of the tail goes at once. The rules, the repository and the
issue stay as they are, so their cached prefix does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from m3agent.agent.context.forms import estimate
from m3agent.agent.conversation import FIRST, Message
from m3agent.agent.printable import printable_line
from m3agent.serving.chat import Usage

MOST_CONVERSATION = 131_072
"""Tokens of the window kept free for the conversation when the repository is packed, or a quarter of a small window."""
MOST_STEP = 32_768
"""Tokens that one more answer and its results may take, or an eighth of a small window: with less left it is summarised."""
MOST_SUMMARY = 4000
MOST_CALLS = 100
"""Calls listed where the model gave no summary of its own."""
SHOWN = 160
"""Characters of each of them."""
NOTES = re.compile(r"<notes>\n(.*)\n</notes>", re.DOTALL)
"""What stands in a summary (`prompt.summary`)."""


def conversation_room(window: int) -> int:
    """Tokens of a window that the packed repository leaves to the conversation."""
    return min(MOST_CONVERSATION, window // 4)


@dataclass
class Window:
    """limit: tokens that prompt and answer may have together, None where nobody said."""

    limit: int | None
    _tokens: int | None = None
    _messages: int = 0

    @property
    def _step(self) -> int:
        """Tokens that have to be left for one more step."""
        return min(MOST_STEP, (self.limit or 8 * MOST_STEP) // 8)

    @property
    def summary_tokens(self) -> int:
        """Tokens that a summary may take, thinking included."""
        return min(MOST_SUMMARY, max(1, self._step // 2))

    def told(self, usage: Usage, messages: int) -> None:
        """What the server counted for the last request, whose answer is the last of so many messages."""
        if usage.prompt is not None and usage.completion is not None:
            self._tokens, self._messages = usage.prompt + usage.completion, messages

    def refused(self, limit: int | None, messages: Sequence[Message]) -> bool:
        """A request was too long, `limit` is what the server says of its window; whether a summary makes it shorter."""
        self.limit = self.limit or limit
        return self.kept_steps(messages).start > FIRST

    def forget(self) -> None:
        """The conversation was shortened: what it takes now is not known before the next answer."""
        self._tokens = None

    def is_nearly_full(self, messages: Sequence[Message]) -> bool:
        """Whether one more step may not fit, and a summary would help. What came since the server last counted is
        estimated from its bytes."""
        if self.limit is None or self._tokens is None:
            return False
        used = self._tokens + tokens(messages[self._messages :])
        return used > self.limit - self._step and self._is_worth_it(messages)

    def kept_steps(self, messages: Sequence[Message]) -> range:
        """Positions of the last steps, each an answer with all that it was told after it, that stay beside a summary."""
        begin, used = len(messages), 0
        for position in range(len(messages) - 1, FIRST - 1, -1):
            used += tokens([messages[position]])
            if used > self._step // 2:
                break
            if messages[position]["role"] == "assistant":
                begin = position
        return range(begin, len(messages))

    def _is_worth_it(self, messages: Sequence[Message]) -> bool:
        """Whether a good part of the tail would go: else the next summary would come at once."""
        return tokens(messages[FIRST:]) > self._step


def tokens(messages: Iterable[Message]) -> int:
    """About as many tokens, rather too many."""
    return sum(estimate(json.dumps(message).encode()) for message in messages)


def calls_made(messages: Sequence[Message]) -> str:
    """What a conversation's tail did, for where the model cannot say it: the notes of an earlier summary, and the calls
    with the first line of each result."""
    results = {m["tool_call_id"]: str(m["content"]) for m in messages if m["role"] == "tool"}
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    lines = [
        f"- {call['function']['name']} {_line(call['function']['arguments'])}: {_line(results.get(call['id'], ''))}"
        for call in calls
    ]
    left_out = [f"- {len(lines) - MOST_CALLS} calls before these"] if len(lines) > MOST_CALLS else []
    earlier = [
        found[1] for m in messages if m["role"] == "user" and (found := NOTES.search(str(m["content"])))
    ]
    return "\n".join([*earlier, "The calls so far:", *left_out, *lines[-MOST_CALLS:]])


def _line(text: str) -> str:
    return printable_line(text.strip().partition("\n")[0], SHOWN)
