"""The rules of other agents' loop detectors, reimplemented from their code, to be replayed on the same runs.

Each detector gets one `Move` per turn and says whether it fires. Rules that need a model (gemini-cli's judge) and plain
limits on the number of calls are left out. A call counts as failed if SWE-agent's tools refused it. The rules come from
OpenHands/software-agent-sdk (611629e69), google-gemini/gemini-cli (5411f113ca; content rule also 022f913d), cline/cline
(21cb8d2525), QwenLM/qwen-code (00aa71b4) and opencode (unpinned).
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol


@dataclass(frozen=True)
class Move:
    """One turn as a peer sees it; `tool` is the kind of the peer's tool that it corresponds to."""

    thought: str
    name: str
    tool: str
    arguments: dict[str, Any]
    result: str
    refused: bool

    @property
    def key(self) -> str:
        """The identity of the call: its name and arguments."""
        return json.dumps([self.name, self.arguments], sort_keys=True)


class Detector(Protocol):
    """A rule set with the state of one run."""

    def fires(self, move: Move) -> bool:
        """Take a turn; return whether the rules fire on it."""
        ...


class OpenHands:
    """Fires on four equal pairs of action and observation, four equal refused actions, or six alternating pairs.

    The thought belongs to the action, unless `thoughts` is False. The last 20 events, which are 10 pairs, are examined.
    The rules on messages without an action and on the context window do not apply: each recorded turn has an action.
    """

    def __init__(self, *, thoughts: bool = True) -> None:
        self._thoughts = thoughts
        self._pairs: deque[tuple[str, str, bool]] = deque(maxlen=10)

    def fires(self, move: Move) -> bool:
        """Take a turn; return whether the rules fire on it."""
        action = f"{move.thought}\0{move.key}" if self._thoughts else move.key
        self._pairs.append((action, move.result, move.refused))
        pairs = list(self._pairs)
        last = pairs[-4:]
        same_result = len({pair[1] for pair in last}) == 1 or all(pair[2] for pair in last)
        if len(last) == 4 and len({pair[0] for pair in last}) == 1 and same_result:
            return True
        six = pairs[-6:]
        return len(six) == 6 and all(six[at][:2] == six[at + 2][:2] for at in range(4))


class Gemini:
    """Fires on a cycle of one to five calls that occurs five times, or on a chunk that occurs ten times in one message."""

    def __init__(self) -> None:
        self._keys: deque[str] = deque(maxlen=25)

    def fires(self, move: Move) -> bool:
        """Take a turn; return whether the rules fire on it."""
        self._keys.append(move.key)
        keys = list(self._keys)
        for length in range(1, 6):
            last = keys[-length * 5 :]
            if len(last) == length * 5 and all(key == last[at % length] for at, key in enumerate(last)):
                return True
        return chants(move.thought)


def chants(text: str, chunk: int = 50, times: int = 10) -> bool:
    """Return whether a chunk occurs `times` times, on average at most five chunks apart, with few different texts between.

    Lines of lists, tables, headings, quotations and blocks of code restart the count.
    """
    seen: dict[str, list[int]] = {}
    code = False
    start = 0
    for line in text.splitlines(keepends=True):
        fences = line.count("```")
        code ^= bool(fences % 2)
        if fences or code or re.match(r"\s*(\|.*\||[|+-]{3,}|[*+-]\s|\d+\.\s|#+\s|>\s)", line):
            seen = {}
            start = text.index(line, start) + len(line)
            continue
        begin = text.index(line, start)
        for at in range(begin, begin + len(line)):
            piece = text[at : at + chunk]
            if len(piece) < chunk:
                break
            at_all = seen.setdefault(piece, [])
            at_all.append(at)
            recent = at_all[-times:]
            if len(recent) == times and (recent[-1] - recent[0]) / (times - 1) <= 5 * chunk:
                between = {text[a:b] for a, b in pairwise(recent)}
                if len(between) <= times // 2:
                    return True
        start = begin + len(line)
    return False


class InARow:
    """Fires on `limit` equal calls in a row: cline's soft (3) and hard (5) limit, opencode's question (3)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._last = ""
        self._count = 0

    def fires(self, move: Move) -> bool:
        """Take a turn; return whether the rules fire on it."""
        self._count = self._count + 1 if move.key == self._last else 1
        self._last = move.key
        return self._count >= self._limit


class Qwen:
    """Fires on repetition: five equal calls in a row, six equal calls, or three rounds of two calls.

    With `all_rules`, it also fires on eight reads in fifteen calls after a call that is not a read, eight calls of one
    tool in a row, eight git overviews in a row, and a repeated chunk as in gemini-cli, on which qwen-code is based.
    """

    def __init__(self, *, all_rules: bool = False) -> None:
        self._all = all_rules
        self._row = InARow(5)
        self._counts: Counter[str] = Counter()
        self._keys: deque[str] = deque(maxlen=6)
        self._tools: deque[str] = deque(maxlen=15)
        self._acted = False
        self._same_tool = 0
        self._git = 0

    def fires(self, move: Move) -> bool:
        """Take a turn; return whether the rules fire on it."""
        self._counts[move.key] += 1
        self._keys.append(move.key)
        keys = list(self._keys)
        alternating = (
            len(keys) == 6 and keys[0] != keys[1] and all(keys[at] == keys[at % 2] for at in range(6))
        )
        fired = self._row.fires(move) or self._counts[move.key] >= 6 or alternating
        return self._others(move) or fired if self._all else fired

    def _others(self, move: Move) -> bool:
        self._same_tool = self._same_tool + 1 if self._tools and self._tools[-1] == move.tool else 1
        self._tools.append(move.tool)
        reads = sum(tool in ("read_file", "search") for tool in self._tools)
        self._acted = self._acted or move.tool not in ("read_file", "search")
        overview = move.tool == "shell" and re.match(r"git (status|diff|ls-files)\s*$", str(move.arguments))
        self._git = self._git + 1 if overview else 0
        many_reads = self._acted and reads >= 8
        return self._same_tool >= 8 or many_reads or self._git >= 8 or chants(move.thought)


PEERS: dict[str, Callable[[], Detector]] = {
    "OpenHands": OpenHands,
    "OpenHands, thoughts ignored": lambda: OpenHands(thoughts=False),
    "gemini-cli": Gemini,
    "cline, soft": lambda: InARow(3),
    "cline, hard": lambda: InARow(5),
    "qwen, repetition": Qwen,
    "qwen, all rules": lambda: Qwen(all_rules=True),
    "opencode": lambda: InARow(3),
}
