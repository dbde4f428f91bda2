"""Where a chunk of a chat completion holds what, in each server's dialect."""

from collections.abc import Iterator, Mapping
from typing import Any

from m3agent.serving.chat import ReasoningField

_TEXT_FIELDS: tuple[ReasoningField, ...] = ("reasoning", "reasoning_content")
_DETAILS: ReasoningField = "reasoning_details"


def content_of(part: Mapping[str, Any]) -> str:
    """The text of a delta or message; a refusal is what the model says, too."""
    return _plain_text(part.get("content")) or _plain_text(part.get("refusal"))


def first_choice(choices: object) -> Mapping[str, Any] | None:
    """The choice numbered 0, or the first one without a number; one is all we ask for."""
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, dict) and choice.get("index") in (0, None):
            return choice
    return None


def reasoning_pieces(part: Mapping[str, Any]) -> Iterator[tuple[ReasoningField, object, str]]:
    """Reasoning under each of its names: the name, the number of the entry where it is a list, and a piece."""
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


def _plain_text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))


def call_pieces(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The pieces of calls as the server parsed them."""
    pieces = part.get("tool_calls")
    for piece in pieces if isinstance(pieces, list) else []:
        if isinstance(piece, dict):
            yield piece
    if not pieces and isinstance(only := part.get("function_call"), dict):  # before there were several
        yield {"index": 0, "function": only}
