"""Recognise what a server's error means, wherever it stands: in a status, in a body, in the place of an answer.

A prompt that does not fit into the context window is recognised by what servers say, with the numbers in it.
"""

import email.utils
import json
import os
import re
import socket
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from m3agent.serving.client.http import host_of, mask_key, proxy_variable
from m3agent.serving.errors import (
    ContextTooLong,
    EndpointRefused,
    EndpointUnreachable,
    ModelServerError,
    NoAnswer,
    StreamCut,
)
from m3agent.util.json_value import items, mapping, mappings

if TYPE_CHECKING:
    import httpx2
    import openai

# Codes of MiniMax's own API and the equivalent HTTP status. MiniMax's list of error codes says which are worth a retry.
_STATUSES = {
    1001: 408,  # timeout
    1002: 429,  # rate limit
    1004: 401,  # not authorized
    1008: 402,  # insufficient balance
    1026: 400,  # the input is sensitive
    1027: 400,  # the output is sensitive
    1039: 429,  # token limit, of tokens a minute
    1041: 429,  # connection limit
    2013: 400,  # invalid parameters; a context that is too long, too
    2049: 401,  # invalid key
    2056: 402,  # the plan is used up
}

_OVERFLOWING = frozenset({400, 422, 500})
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


def translate(error: "openai.APIError", host: str, api_key: str | None) -> ModelServerError:
    """Convert an error of the SDK into a ModelServerError; remove the key from the server's message."""
    import openai

    if isinstance(error, openai.APITimeoutError):
        return EndpointUnreachable(host, "it did not answer in time")
    if isinstance(error, openai.APIConnectionError):
        through = proxy_variable(str(error.request.url))
        by = f" (through the proxy in {through})" if through else ""
        return EndpointUnreachable(host, f"{_connection_reason(error)}{by}")
    if isinstance(error, openai.APIStatusError):
        return response_error(error.response, host, api_key)
    return EndpointUnreachable(host, mask_key(error.message, api_key))


def response_error(response: "httpx2.Response", host: str, api_key: str | None) -> ModelServerError:
    """Return the ModelServerError for an unsuccessful response, with the key removed from the server's message."""
    status = response.status_code
    if target := response.headers.get("location") if 300 <= status < 400 else None:
        elsewhere = f"if you trust {host_of(target)}, use its address as the endpoint"
        return EndpointRefused(
            status, f"a redirection to {mask_key(target, api_key)}", host=host, advice=elsewhere
        )
    fields = _error_fields(response)
    text = mask_key(_words(fields) or response.text, api_key)
    return refusal(status, text, host, retry_after(response.headers.get("retry-after")), fields)


def reported(error: object, host: str, api_key: str | None) -> ModelServerError:
    """Return our error for an error that a server reports inside an answer that began well.

    The code in it is an HTTP status with vLLM, SGLang and OpenRouter; MiniMax has it in `http_code`.
    Elsewhere it is a word or missing.
    """
    fields = error if isinstance(error, Mapping) else {"message": error}
    text = mask_key(_words(fields) or str(error), api_key)
    code = str(fields.get("code") or fields.get("http_code") or "")
    if re.fullmatch("4[0-9][0-9]", code):
        return refusal(int(code), text, host, fields=fields)
    return overflow(400, text, host, fields) or StreamCut(host, f"it reported {text}")


def refusal(
    status: int,
    text: str,
    host: str,
    wait: float | None = None,
    fields: Mapping[str, object] = MappingProxyType({}),
) -> ModelServerError:
    """Return the error for an HTTP status and the server's message."""
    if too_long := overflow(status, text, host, fields):
        return too_long
    if "<html" in text[:2000].lower():
        text = "a web page"
    parameter = str(fields.get("param") or "")
    return EndpointRefused(status, text, host=host, retry_after=wait, parameter=parameter)


def retry_after(value: str | None) -> float | None:
    """Return the seconds in a Retry-After header, which holds seconds or a date; None if it holds neither."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _error_fields(response: "httpx2.Response") -> Mapping[str, object]:
    """Return the `error` object in the body of a response; its words alone become `message`.

    FastAPI lists its errors in `detail`. Each may repeat a part of the request, so only message and place are taken.
    """
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return {}
    error = (body.get("error") or body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return {"message": error}
    listed = mappings(error.get("detail"))
    if not listed or error.get("message"):
        return error
    places = [_place(each.get("loc")) for each in listed]
    words = [
        f"{place}: {each.get('msg')}".removeprefix(": ") for place, each in zip(places, listed, strict=True)
    ]
    return {"message": "; ".join(words), "param": places[0]}


def _place(loc: object) -> str:
    parts = [str(part) for part in items(loc)]
    return ".".join(parts[1:] if parts[:1] == ["body"] else parts)


def _words(fields: Mapping[str, object]) -> str:
    """Return the message of an `error` object. OpenRouter adds what the provider said."""
    words = str(fields.get("message") or fields.get("detail") or "")
    raw = mapping(fields.get("metadata")).get("raw")
    return f"{words}: {raw}" if words and raw else words


def _connection_reason(error: BaseException) -> str:
    """Return the innermost cause, such as "Connection refused" or "Name or service not known".

    An error of the operating system is preferred: what surrounds it may be an error that the caller was handling.
    """
    import ssl

    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(inner)
    for cause in reversed(chain):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"certificate verify failed, {cause.verify_message} (SSL_CERT_FILE names certificates to trust)"
        if isinstance(cause, (socket.gaierror, ssl.SSLError)):  # their numbers are not those of `errno`
            return str(cause.strerror or cause)
        if isinstance(cause, OSError) and cause.errno is not None:
            return os.strerror(cause.errno)  # asyncio's own text has the address again
    return str(chain[-1]) or type(chain[-1]).__name__


def raise_if_error(answer: Mapping[str, Any], host: str, api_key: str | None) -> None:
    """Raise the error that an event or an answer reports, if any.

    The report may be in OpenAI's form, vLLM's older form, or MiniMax's.
    """
    if error := answer.get("error"):
        raise reported(error, host, api_key)
    if answer.get("base_resp") and (found := hosted_error(answer)):
        status, text = found
        raise refusal(status, mask_key(text, api_key), host)
    if answer.get("object") == "error":
        raise reported(answer, host, api_key)


def whole_answer(body: bytes, kind: str, host: str, api_key: str | None) -> Mapping[str, Any]:
    """Return the answer of a server that does not stream, as one chunk.

    Raises:
        NoAnswer: The body is not a chat completion.
        ModelServerError: The body reports an error.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict):
        raise_if_error(answer, host, api_key)
    if not isinstance(answer, dict) or "choices" not in answer:
        said = mask_key(body.decode(errors="replace").strip(), api_key)
        is_page = "html" in kind or "<html" in said[:2000].lower()
        what = f"something that is not a chat completion, {said}" if said else "nothing"
        raise NoAnswer("a web page" if is_page else what, host=host)
    return answer


def hosted_error(answer: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return MiniMax's own error, which comes with HTTP status 200: the equivalent status and the server's message.

    Return None if there is no error. An unknown code counts as a server fault, status 500.
    """
    answered = mapping(answer.get("base_resp"))
    code = answered.get("status_code")
    if not isinstance(code, int) or code == 0:
        return None
    return _STATUSES.get(code, 500), f"{answered.get('status_msg') or 'an error'} ({code})"


def overflow(status: int, text: str, host: str, fields: Mapping[str, object]) -> ContextTooLong | None:
    """Return the error if a refusal says that the prompt is too long; None if it says something else."""
    if status != _TOO_LARGE and (status not in _OVERFLOWING or not _is_too_long(text, fields)):
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
