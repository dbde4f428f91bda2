"""Find the optional parameter that a server refuses, so that the request can be sent again without it."""

import re
from collections.abc import Mapping
from typing import Any

from m3agent.serving.errors import EndpointRefused

_STATUSES = frozenset({400, 404, 415, 422, 501})
_OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "chat_template_kwargs": ("thinking_mode", "extra_body"),
    "top_k": (),
    "top_p": (),
    "min_p": (),
    "temperature": (),
    "seed": (),
    "stream_options": ("include_usage",),
    "parallel_tool_calls": (),
    "tool_choice": (),
    "thinking": (),
    "reasoning": (),
    "reasoning_effort": (),
    "reasoning_split": (),
    "logprobs": (),
    "return_token_ids": (),
    "routed_dp_rank": (),
}
"""Parameters that an answer does not need, each with other names by which servers mean it."""
_OTHER_NAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""Parameters that some servers know by another name only."""
_MARK = "[\"'`]"


def refused_parameter(error: EndpointRefused, sent: Mapping[str, Any]) -> str | None:
    """Return the parameter that an error is about; None if it is about something else.

    Args:
        error: The server's error.
        sent: The parameters of the request.
    """
    if error.status not in _STATUSES:
        return None
    for name in sent:
        if name in _OPTIONAL and any(_names(error, word) for word in (name, *_OPTIONAL[name])):
            return name
        if name in _OTHER_NAME and _names(error, name) and _OTHER_NAME[name] in error.text:
            return name
    return None


def without(parameters: Mapping[str, Any], refused: set[str]) -> dict[str, Any]:
    """Return the parameters without those that the server refused; what has another name gets that one."""
    kept = {name: value for name, value in parameters.items() if name not in refused}
    renamed = [name for name in _OTHER_NAME if name in refused and name in parameters]
    return kept | {
        _OTHER_NAME[name]: parameters[name] for name in renamed if _OTHER_NAME[name] not in refused
    }


def _names(error: EndpointRefused, word: str) -> bool:
    """Return whether an error names a parameter. A plain word such as `thinking` must be marked as a name."""
    if error.parameter.partition(".")[0] == word:
        return True
    if "_" in word:
        return re.search(rf"(?<!\w){word}(?!\w)", error.text) is not None
    marked = (
        rf"{_MARK}(?:body\.)?{word}(?:\.\w+)*{_MARK}|(?i:param(?:eter)?s?|arguments?|fields?|property|supplied|inputs?)[:,]? {word}\b"
        rf"|^{word}\b|\b{word}(?: parameter|: )"
    )
    return re.search(marked, error.text) is not None
