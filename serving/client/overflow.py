"""Recognise that a prompt does not fit into the model's context window, by what servers say, and read the numbers in it."""

import re
from collections.abc import Mapping

from m3agent.serving.errors import ContextTooLong

_STATUSES = frozenset({400, 422, 500})
"""Statuses of such errors. 500 is that of older llama.cpp. Others, such as 429, are about something else."""
_TOO_LARGE = 413
"""This status says it without words; a proxy sends it with a web page."""
_CODES = re.compile(
    r"exceed_?context_?size|context_?length_?exceeded|context_?window_?exceeded|request_too_large|"
    r"prompt_too_long|max_context_length",
    re.IGNORECASE,
)
"""Types and codes, alone or in a name such as `ContextWindowExceededError`."""
_WORDINGS = {
    "vLLM, OpenAI, OpenRouter, Fireworks, xAI": (
        r"(?:maximum|max) (?:context|input) length (?:is|of|\W*\d)|maximum (?:model length|prompt length is \d)"
    ),
    "SGLang, OpenAI, LM Studio, MLX": (
        r"(?:exceed(?:s|ed|ing)?|longer than|larger than|greater than|too big for)\W+(?:the |this |its |your )?"
        r"(?:(?:model|server)(?:'s|s)? |available |maximum |max |total |input )*(?:context|window|kv)\b"
    ),
    "SGLang": r"exceeds? the maximum allowed length",
    "TensorRT-LLM": r"max_(?:seq|input|model|num)_(?:len\w*|tokens)\b",
    "llama.cpp": (
        r"context (?:size|length|window)(?: limit)? (?:has been |is |was )?(?:exceed|overflow|full|reached)"
        r"|input (?:\(\d+ tokens\) )?is too large to process|context shift is disabled|too big compared to kv"
    ),
    "LM Studio": r"reached (?:the )?context (?:length|window|limit)|context the overflows|context[ -]window overflow",
    "TGI, Together": r"inputs?`?(?: tokens)?(?: \+ `?max_new_tokens`?)? must (?:be <=|have less than) ?\d+",
    "Anthropic, Bedrock, Fireworks, Ollama, MLX": (
        r"(?:prompt|input|context|conversation)(?: is|:)? too long|exceeds? (?:the )?context limit|exceeds? max length"
    ),
    "Groq, OpenAI": r"reduce the length of (?:the |your )?(?:messages|prompt|input|either one)",
    "MiniMax, Moonshot": (
        r"exceed(?:s|ed)?\W+(?:the )?(?:model(?:'s)? )?token limit"
        r"|tokens? (?:to generate|in (?:the )?prompt)\b[^.]*exceeds? (?:the )?(?:max|limit)"
    ),
    "Google, Copilot, DashScope, older MiniMax": (
        r"(?:input|prompt|total) tokens?(?: count\b[^.]*)? exceeds?|range of input length should be"
    ),
    "Mistral": r"too large for model with \d+ maximum context length",
}
_WORDING = re.compile("|".join(_WORDINGS.values()), re.IGNORECASE)
_OTHERS = re.compile(
    r"per[ -](?:minute|min|second|hour|day)\b|\b[TR]P[MD]\b|rate[ _]limit|quota", re.IGNORECASE
)
"""Words of a limit on requests, which may sound alike."""

_NUMBER = r"([0-9][0-9,]{0,20})"  # Python refuses to read numbers with thousands of digits
_LIMIT = re.compile(
    rf"(?:context (?:length|window|size)(?! by)|maximum model length|maximum allowed length|token limit|prompt length is)"
    rf"[^0-9.]{{0,24}}?{_NUMBER}(?![0-9,)])"
    rf"|max_(?:seq|model|input)_len\w*\W{{0,4}}{_NUMBER}"
    rf"|must (?:be <=|have less than) {_NUMBER}|> {_NUMBER} maximum|(?:available context size|tokens allowed) \({_NUMBER}",
    re.IGNORECASE,
)
# The sum of prompt and answer if the message has it, otherwise the prompt.
_ASKED = (
    re.compile(rf"for a total of (?:at least )?{_NUMBER}|requested a total of {_NUMBER}", re.IGNORECASE),
    re.compile(
        rf"requested (?:about )?{_NUMBER} tokens|\(requested: {_NUMBER}|resulted in {_NUMBER}|passed {_NUMBER} input tokens"
        rf"|(?:input|prompt|request)(?: length)?\s+\((?:length )?{_NUMBER}|prompt length \(?{_NUMBER}"
        rf"|(?:has|contains)(?: at least)? {_NUMBER} (?:input )?tokens|too long: {_NUMBER}|token count \({_NUMBER}"
        rf"|given: {_NUMBER}",
        re.IGNORECASE,
    ),
)
# "(5000 > 4096 - 300)": vLLM's message if `max_tokens` does not fit; 300 is the length of the prompt in
# tokens.
_ROOM = re.compile(r"\(([0-9]{1,20}) > [0-9]+ - ([0-9]{1,20})\)")


def overflow(status: int, text: str, host: str, fields: Mapping[str, object]) -> ContextTooLong | None:
    """Return the error if a refusal says that the prompt is too long; None if it says something else."""
    if status != _TOO_LARGE and (status not in _STATUSES or not _is_too_long(text, fields)):
        return None
    return ContextTooLong(
        _first_number(text, _LIMIT) or _count(fields.get("n_ctx")),
        _asked(text) or _count(fields.get("n_prompt_tokens")),
        host=host,
    )


def _is_too_long(text: str, fields: Mapping[str, object]) -> bool:
    codes = f"{fields.get('type')} {fields.get('code')} {text}"
    return bool(_CODES.search(codes) or (_WORDING.search(text) and not _OTHERS.search(text)))


def _asked(text: str) -> int | None:
    """Return the number of tokens that was too large, as the server's message gives it."""
    room = _ROOM.search(text)
    return int(room[1]) + int(room[2]) if room else _first_number(text, *_ASKED)


def _first_number(text: str, *patterns: re.Pattern[str]) -> int | None:
    for pattern in patterns:
        if found := pattern.search(text):
            return int(next(filter(None, found.groups())).replace(",", ""))
    return None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 < value < 2**53 else None
