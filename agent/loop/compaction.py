"""Track how full the model's context window is, and choose what a summary of the conversation keeps.

A summary has two costs. The model loses its memory of what it did, and the server loses the cached part of the prompt
behind the repository. Summaries are therefore rare: one is made only when the next step may not fit, and it replaces
most of the tail at once. The rules, the repository and the issue stay unchanged, so their cached prefix stays valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from m3agent.agent.context.chunk_format import estimate
from m3agent.agent.session.messages import FIRST, Message
from m3agent.serving.client.messages import Usage
from m3agent.util.sanitize import printable_line

MOST_CONVERSATION = 131_072
"""Most tokens kept free for the conversation when the repository is packed; a quarter of the window if that is less."""
MOST_STEP = 32_768
"""Most tokens reserved for one more answer and its results; an eighth of the window if that is less. With less left,
the conversation is summarised."""
MOST_SUMMARY = 4000
"""Most tokens that a summary may take."""
MOST_CALLS = 100
"""Most calls listed if the model wrote no summary itself."""
SHOWN = 160
"""Most characters shown of a call's arguments, and of its result."""
NOTES = re.compile(r"<notes>\n(.*)\n</notes>", re.DOTALL)
"""The model's notes in a summary (`prompt.summary`)."""


def conversation_room(window: int) -> int:
    """Return how many tokens of a window the packed repository leaves for the conversation."""
    return min(MOST_CONVERSATION, window // 4)


@dataclass
class Window:
    """Tracks how full the model's context window is."""

    limit: int | None
    """Most tokens that prompt and answer may have together; None if unknown."""
    _tokens: int | None = None
    _messages: int = 0

    @property
    def _step(self) -> int:
        """Tokens reserved for one more step."""
        return min(MOST_STEP, (self.limit or 8 * MOST_STEP) // 8)

    @property
    def summary_tokens(self) -> int:
        """Most tokens that a summary may take, thinking included."""
        return min(MOST_SUMMARY, max(1, self._step // 2))

    def record_usage(self, usage: Usage, messages: int) -> None:
        """Record the token counts of the last request.

        Args:
            messages: Number of messages in the conversation, the request's answer included.
        """
        if usage.prompt is not None and usage.completion is not None:
            self._tokens, self._messages = usage.prompt + usage.completion, messages

    def refused(self, limit: int | None, messages: Sequence[Message]) -> bool:
        """Record that a request was too long.

        Args:
            limit: The window in tokens, from the server's error; None if the error does not state it.

        Returns whether a summary would make the conversation shorter.
        """
        self.limit = min(filter(None, (self.limit, limit)), default=None)
        return self.kept_steps(messages).start > FIRST

    def forget(self) -> None:
        """Forget the token count after a summary; the next answer brings a new one."""
        self._tokens = None

    def is_nearly_full(self, messages: Sequence[Message]) -> bool:
        """Return whether one more step may not fit and a summary would help.

        Tokens of messages that the server has not counted yet are estimated from their bytes.
        """
        if self.limit is None or self._tokens is None:
            return False
        used = self._tokens + tokens(messages[self._messages :])
        # a summary that removes little of the tail would be followed by the next one at once
        is_worth_it = tokens(messages[FIRST:]) > self._step
        return used > self.limit - self._step and is_worth_it

    def kept_steps(self, messages: Sequence[Message]) -> range:
        """Return the positions of the last steps, which a summary keeps. A step is an answer and all replies to it."""
        begin, used = len(messages), 0
        for position in range(len(messages) - 1, FIRST - 1, -1):
            used += tokens([messages[position]])
            if used > self._step // 2:
                break
            if messages[position]["role"] == "assistant":
                begin = position
        return range(begin, len(messages))


def tokens(messages: Iterable[Message]) -> int:
    """Estimate the number of tokens in messages; the estimate is rather too high."""
    return sum(estimate(json.dumps(message).encode()) for message in messages)


def calls_made(messages: Sequence[Message]) -> str:
    """Describe what the model did so far, for a summary that the model could not write itself.

    Returns the notes of earlier summaries, and the calls with the first line of each result.
    """
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
