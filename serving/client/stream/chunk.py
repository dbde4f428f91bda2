"""Read the parts of a chat completion chunk, in each server's dialect: text, reasoning, calls, usage, tokens."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, get_args

from m3agent.serving.client.messages import ReasoningField, TurnTokens, Usage
from m3agent.util.json_value import items, mapping, mappings

_DETAILS: ReasoningField = "reasoning_details"
_TEXT_FIELDS: tuple[ReasoningField, ...] = tuple(
    field for field in get_args(ReasoningField) if field != _DETAILS
)
_MOST = 2**53
"""Larger numbers are not counts, and may not even fit into a float."""

# Where each count may be: OpenAI's place first (vLLM, SGLang, TensorRT-LLM, Dynamo, OpenRouter, MiniMax),
# then other dialects that proxies pass on.
_PLACES: dict[str, tuple[tuple[str, ...], ...]] = {
    "prompt": (("prompt_tokens",), ("input_tokens",)),
    "cached": (
        ("prompt_tokens_details", "cached_tokens"),
        ("input_tokens_details", "cached_tokens"),
        ("cached_tokens",),
        ("prompt_cache_hit_tokens",),
        ("cache_read_input_tokens",),
    ),
    "completion": (("completion_tokens",), ("output_tokens",)),
    "reasoning": (
        ("completion_tokens_details", "reasoning_tokens"),
        ("output_tokens_details", "reasoning_tokens"),
        ("reasoning_tokens",),  # SGLang
    ),
}


def content_of(part: Mapping[str, Any]) -> str:
    """Return the text of a delta or message; a refusal counts as text."""
    content = part.get("content") or part.get("refusal")
    if isinstance(content, str) or not content:
        return content or ""
    return "".join(str(inner.get("text") or "") for inner in mappings(content))


def first_choice(choices: object) -> Mapping[str, Any] | None:
    """Return the choice numbered 0, or the first one without a number; requests ask for only one."""
    return next((choice for choice in mappings(choices) if choice.get("index") in (0, None)), None)


def reasoning_pieces(part: Mapping[str, Any]) -> Iterator[tuple[ReasoningField, object, str]]:
    """Yield each piece of reasoning: the field's name, the number of the list entry or None, and the text."""
    for name in _TEXT_FIELDS:
        if isinstance(text := part.get(name), str) and text:
            yield name, None, text
    for place, detail in enumerate(items(part.get(_DETAILS))):
        if isinstance(detail, dict):
            entry = detail.get("index")
            text = detail.get("text") or detail.get("summary")
            if isinstance(text, str):
                yield _DETAILS, entry if isinstance(entry, int) else place, text


def call_pieces(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the pieces of calls as the server parsed them."""
    yield from mappings(part.get("tool_calls"))
    # OpenAI's older format has one call at most.
    if not part.get("tool_calls") and isinstance(only := part.get("function_call"), dict):
        yield {"index": 0, "function": only}


def read_usage(reported: Mapping[str, Any], before: Usage = Usage()) -> Usage:  # noqa: B008 it is frozen
    """Read the counts in a `usage` object; counts that it lacks keep their value in `before`.

    Some servers report with every chunk and count from the start each time, so the last report counts.
    """
    known = {count.name: next(_counts(reported, count.name), None) for count in fields(Usage)}
    return Usage(**{name: getattr(before, name) if value is None else value for name, value in known.items()})


def _counts(reported: Mapping[str, Any], name: str) -> Iterator[int]:
    for *path, last in _PLACES[name]:
        value = mapping(reported, *path).get(last)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST:
            yield value


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
        for entry in mappings(mapping(choice.get("logprobs")).get("content")):
            value = entry.get("logprob")
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
