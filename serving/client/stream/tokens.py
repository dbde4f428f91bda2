"""Collect the token ids and log probabilities of an answer, as vLLM reports them (`return_token_ids`, `logprobs`)."""

from collections.abc import Mapping
from typing import Any

from m3agent.serving.client.messages import TurnTokens


class TokenCollector:
    """Takes the chunks of one answer. The first chunk has the prompt's ids, each further one the ids of its tokens."""

    def __init__(self) -> None:
        self._prompt: list[int] = []
        self._completion: list[int] = []
        self._logprobs: list[float] = []

    def add(self, chunk: Mapping[str, Any], choice: Mapping[str, Any] | None) -> None:
        """Take a chunk and its choice."""
        self._prompt = self._prompt or _ids(chunk.get("prompt_token_ids"))
        if choice is None:
            return
        self._completion += _ids(choice.get("token_ids"))
        logprobs = choice.get("logprobs")
        entries = logprobs.get("content") if isinstance(logprobs, Mapping) else None
        for entry in entries if isinstance(entries, list) else []:
            value = entry.get("logprob") if isinstance(entry, Mapping) else None
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._logprobs.append(float(value))

    def found(self) -> TurnTokens | None:
        """Return the tokens; None if the server reported none. Log probabilities that do not match are left out."""
        if not self._prompt or not self._completion:
            return None
        matching = len(self._logprobs) == len(self._completion)
        return TurnTokens(
            tuple(self._prompt), tuple(self._completion), tuple(self._logprobs) if matching else ()
        )


def _ids(value: object) -> list[int]:
    """Return a list of token ids; empty if it is something else."""
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        return []
    return value
