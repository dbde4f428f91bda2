"""The HTTP side shared by probe and client: one way to open a connection, one to read its errors."""

import email.utils
import ipaddress
import re
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from m3agent.serving.errors import (
    ContextTooLong,
    EndpointRefused,
    EndpointUnreachable,
    ModelServerError,
    StreamCut,
)

if TYPE_CHECKING:
    import openai

# How servers word a prompt that is too long. vLLM, SGLang, TensorRT-LLM, OpenAI, MiniMax; see the tests.
_TOO_LONG = re.compile(
    r"context[ _-]?(?:length|window)|maximum model length|max_(?:seq|model|input)_len|too long|input length",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    r"(?:context length|context window|maximum model length)[^0-9.]{0,24}?([0-9][0-9,]*)(?![0-9,)])"
    r"|max_(?:seq|model|input)_len\w*\W{0,4}([0-9][0-9,]*)",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"requested (?:a total of )?([0-9][0-9,]*)|resulted in ([0-9][0-9,]*)|passed ([0-9][0-9,]*)"
    r"|(?:input|prompt)\s+\((?:length )?([0-9][0-9,]*)|prompt length \(?([0-9][0-9,]*)"
    r"|has ([0-9][0-9,]*) input tokens",
    re.IGNORECASE,
)
# "(5000 > 4096 - 300)": vLLM's sum for a `max_tokens` that leaves no room, 300 tokens being the prompt.
_ROOM = re.compile(r"\(([0-9]+) > [0-9]+ - ([0-9]+)\)")


def host_of(url: str) -> str:
    """Host and port of a URL, without a user name or password in it."""
    return urlsplit(url).netloc.rpartition("@")[2] or url


def is_local(url: str) -> bool:
    """Whether a URL leads to this very machine."""
    name = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def open_client(url: str, api_key: str | None, *, connect: float, read: float | None) -> "openai.AsyncOpenAI":
    """An OpenAI client for `url`: no retries of its own, limits in seconds, no proxy for this machine.

    Without a key none is sent: the one in OPENAI_API_KEY is for OpenAI, not for any server we talk to.
    """
    import httpx2
    import openai

    timeout = httpx2.Timeout(read, connect=connect, write=60.0, pool=None)
    transport = openai.DefaultAsyncHttpxClient(timeout=timeout, trust_env=not is_local(url))
    return openai.AsyncOpenAI(
        base_url=url, api_key=api_key or "none", max_retries=0, timeout=timeout, http_client=transport
    )


def request_headers(api_key: str | None) -> "dict[str, str | openai.Omit]":
    """Headers for each request: what the SDK would add from the environment is left out."""
    import openai

    headers: dict[str, str | openai.Omit] = {
        "OpenAI-Organization": openai.Omit(),
        "OpenAI-Project": openai.Omit(),
    }
    if api_key is None:
        headers["Authorization"] = openai.Omit()
    return headers


def translate(error: "openai.APIError", host: str, api_key: str | None) -> ModelServerError:
    """Our error for one of the SDK's, with the key removed from the server's words."""
    import openai

    if isinstance(error, openai.APITimeoutError):
        return EndpointUnreachable(host, "it did not answer in time")
    if isinstance(error, openai.APIConnectionError):
        return EndpointUnreachable(host, _connection_reason(error))
    if isinstance(error, openai.APIStatusError):
        text = redact(_server_words(error), api_key)
        wait = retry_after(error.response.headers.get("retry-after"))
        return refusal(error.status_code, text, host, wait)
    # An error inside the stream. Its code is HTTP's for vLLM and SGLang, a word or absent elsewhere.
    text = redact(error.message, api_key)
    code = error.code or ""
    if code.isdigit() and 400 <= int(code) < 500:
        return refusal(int(code), text, host)
    if _TOO_LONG.search(text) and ("length" in code or code == "invalid_request_error"):
        return refusal(400, text, host)
    return StreamCut(host, f"it reported {text}")


def refusal(status: int, text: str, host: str, wait: float | None = None) -> ModelServerError:
    """The error for a status and the server's words; one about the context's length is told apart."""
    if status in (400, 413, 422) and _TOO_LONG.search(text):
        asked = _first_number(_ASKED, text)
        if room := _ROOM.search(text):
            asked = int(room[1]) + int(room[2])
        return ContextTooLong(_first_number(_LIMIT, text), asked, host=host)
    if "<html" in text[:2000].lower():
        text = "a web page"
    return EndpointRefused(status, text, host=host, retry_after=wait)


def redact(text: str, api_key: str | None) -> str:
    """The text without the key."""
    return text.replace(api_key, "[key]") if api_key else text


def retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which holds seconds or a date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        parsed = email.utils.parsedate_to_datetime(value) if "," in value else None
        return max(0.0, parsed.timestamp() - time.time()) if parsed else None


def _first_number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(next(filter(None, found.groups())).replace(",", "")) if found else None


def _server_words(error: "openai.APIStatusError") -> str:
    body = error.body
    for key in ("error", "message", "detail"):
        if isinstance(body, dict) and body.get(key):
            body = body[key]
    return str(body) if body is not None else error.response.text


def _connection_reason(error: BaseException) -> str:
    """The innermost cause says it best: "Connection refused", "Name or service not known"."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__ or error
    return str(error) or type(error).__name__
