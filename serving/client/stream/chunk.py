"""Read the parts of a chat completion chunk, in each server's dialect."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from m3agent.serving.client.messages import ReasoningField

_DETAILS: ReasoningField = "reasoning_details"
_TEXT_FIELDS: tuple[ReasoningField, ...] = tuple(
    field for field in get_args(ReasoningField) if field != _DETAILS
)


def content_of(part: Mapping[str, Any]) -> str:
    """Return the text of a delta or message; a refusal counts as text."""
    content = part.get("content") or part.get("refusal")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(str(inner.get("text") or "") for inner in content if isinstance(inner, dict))


def first_choice(choices: object) -> Mapping[str, Any] | None:
    """Return the choice numbered 0, or the first one without a number; requests ask for only one."""
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, dict) and choice.get("index") in (0, None):
            return choice
    return None


def reasoning_pieces(part: Mapping[str, Any]) -> Iterator[tuple[ReasoningField, object, str]]:
    """Yield each piece of reasoning: the field's name, the number of the list entry or None, and the text."""
    for name in _TEXT_FIELDS:
        if isinstance(text := part.get(name), str) and text:
            yield name, None, text
    details = part.get(_DETAILS)
    for place, detail in enumerate(details if isinstance(details, list) else []):
        if isinstance(detail, dict):
            entry = detail.get("index")
            text = detail.get("text") or detail.get("summary")
            if isinstance(text, str):
                yield _DETAILS, entry if isinstance(entry, int) else place, text


def call_pieces(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the pieces of calls as the server parsed them."""
    pieces = part.get("tool_calls")
    for piece in pieces if isinstance(pieces, list) else []:
        if isinstance(piece, dict):
            yield piece
    # OpenAI's older format has one call at most.
    if not pieces and isinstance(only := part.get("function_call"), dict):
        yield {"index": 0, "function": only}
