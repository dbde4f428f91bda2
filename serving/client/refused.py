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
_ECHO = re.compile(rf"{_MARK}(?:input|body|request|messages|prompt|content){_MARK}\s*:")
"""Where a server begins to repeat the request, which may contain any word."""
_NAMED = re.compile(rf"\b(model|function|tool|role) {_MARK}[^\"'`]*{_MARK}", re.IGNORECASE)
"""A name that is not a parameter's."""
_ELSEWHERE = re.compile(
    r"\binvalid (?:\w+ ){0,3}schema|\bschema (?:for|of)\b|\b(?:messages|tools|input)[.\[]\d", re.IGNORECASE
)
"""Words of an error in a tool's schema or in a message."""
_NO_PARAMETERS = frozenset({"messages", "tools", "model", "input"})
_NO_PROVIDER = "No endpoints found that support"
"""OpenRouter's words, with status 404, where no provider takes a parameter."""


def refused_parameter(error: EndpointRefused, sent: Mapping[str, Any]) -> str | None:
    """Return the parameter that an error is about; None if it is about something else."""
    text = _NAMED.sub(r"\1", _ECHO.split(error.text)[0])
    place = re.split(r"[.\[]", error.parameter)[0]
    if error.status not in _STATUSES or place in _NO_PARAMETERS or _ELSEWHERE.search(text):
        return None
    if error.status == 404 and not place and not text.startswith(_NO_PROVIDER):
        return None
    for name in sent:
        words = (name, *_OPTIONAL.get(name, ()))
        if name in _OPTIONAL and any(place == word or _names(text, word) for word in words):
            return name
        if name in _OTHER_NAME and (place == name or _names(text, name)) and _OTHER_NAME[name] in text:
            return name
    return None


def without(parameters: Mapping[str, Any], refused: set[str]) -> dict[str, Any]:
    """Return the parameters without those that the server refused; what has another name gets that one."""
    kept = {name: value for name, value in parameters.items() if name not in refused}
    renamed = [name for name in _OTHER_NAME if name in refused and name in parameters]
    return kept | {
        _OTHER_NAME[name]: parameters[name] for name in renamed if _OTHER_NAME[name] not in refused
    }


def _names(text: str, word: str) -> bool:
    """Return whether an error's words name a parameter. A plain word such as `thinking` must be marked as a name."""
    if "_" in word:
        return re.search(rf"(?<!\w){word}(?!\w)", text) is not None
    marked = (
        rf"{_MARK}(?:body\.)?{word}(?:\.\w+)*{_MARK}|(?i:param(?:eter)?s?|arguments?|fields?|property|supplied|inputs?)[:,]? {word}\b"
        rf"|^{word}\b|\b{word}(?: parameter|: )"
    )
    return re.search(marked, text) is not None
