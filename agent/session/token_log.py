"""Keep the tokens of each turn beside a session's log, for programs that train a model with them.

A prompt repeats all earlier turns. So a line of the file has only the tokens that are new in the prompt: it begins at
the position where the prompt differs from the last prompt and its answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from m3agent.serving.client.messages import TurnTokens
from m3agent.util.append_only import AppendOnlyFile
from m3agent.util.json_lines import json_lines

FILE = "tokens.jsonl"


def read_tokens(folder: Path) -> dict[int, TurnTokens]:
    """Return the tokens of each turn of a session, by the turn's number. Torn and damaged lines end the reading."""
    try:
        content = (folder / FILE).read_bytes()
    except OSError:
        return {}
    found = dict[int, TurnTokens]()
    before = tuple[int, ...]()
    for _, line in json_lines(content):
        try:
            entry: dict[str, Any] = json.loads(line)
            prompt = (*before[: entry["kept"]], *entry["prompt"])
            tokens = TurnTokens(prompt, tuple(entry["completion"]), tuple(entry["logprobs"]))
            found[entry["turn"]] = tokens
        except (ValueError, KeyError, TypeError):
            break
        before = prompt + tokens.completion
    return found


class TokenLog:
    """Writes the tokens of a session's turns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        known = read_tokens(folder)
        last = known[max(known)] if known else TurnTokens((), ())
        self._before = last.prompt + last.completion
        self._file: AppendOnlyFile | None = None

    def add(self, turn: int, tokens: TurnTokens) -> tuple[int, int]:
        """Write the tokens of a turn.

        Returns how many tokens of the last prompt and its answer the prompt begins with, and how many these
        are. A trainer can use both turns as one sequence only if the numbers are equal.

        Raises EnvironmentFault: The file cannot be written.
        """
        expected = len(self._before)
        pairs = enumerate(zip(self._before, tokens.prompt, strict=False))
        kept = next((place for place, (old, new) in pairs if old != new), min(expected, len(tokens.prompt)))
        entry = {
            "turn": turn,
            "kept": kept,
            "prompt": tokens.prompt[kept:],
            "completion": tokens.completion,
            "logprobs": tokens.logprobs,
        }
        self._file = self._file or AppendOnlyFile(self._folder / FILE)
        self._file.append(json.dumps(entry, separators=(",", ":")).encode())
        self._before = tokens.prompt + tokens.completion
        return kept, expected

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
