"""HTTP functions for the probe and the client: open connections, and translate errors."""

import email.utils
import ipaddress
import os
import re
import socket
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from m3agent.serving.client.sdk import defer_unused_types
from m3agent.serving.errors import (
    ContextTooLong,
    EndpointRefused,
    EndpointUnreachable,
    ModelServerError,
    StreamCut,
)

if TYPE_CHECKING:
    import ssl

    import httpx2
    import openai

# Error messages for a prompt that is too long: vLLM, SGLang, TensorRT-LLM, OpenAI, MiniMax. See the tests.
_NUMBER = r"([0-9][0-9,]{0,20})"  # Python refuses to read numbers with thousands of digits
_TOO_LONG = re.compile(
    r"context[ _-]?(?:length|window)|maximum model length|maximum allowed length"
    r"|max_(?:seq|model|input)_len|too long|input length",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    rf"(?:context length|context window|maximum model length|maximum allowed length)[^0-9.]{{0,24}}?{_NUMBER}(?![0-9,)])"
    rf"|max_(?:seq|model|input)_len\w*\W{{0,4}}{_NUMBER}",
    re.IGNORECASE,
)
# The sum of prompt and answer if the message has it, otherwise the prompt.
_ASKED = (
    re.compile(rf"for a total of (?:at least )?{_NUMBER}|requested a total of {_NUMBER}", re.IGNORECASE),
    re.compile(
        rf"requested {_NUMBER} tokens|resulted in {_NUMBER}|passed {_NUMBER}"
        rf"|(?:input|prompt)(?: length)?\s+\((?:length )?{_NUMBER}|prompt length \(?{_NUMBER}"
        rf"|(?:has|contains)(?: at least)? {_NUMBER} input tokens",
        re.IGNORECASE,
    ),
)
# "(5000 > 4096 - 300)": vLLM's message if `max_tokens` does not fit; 300 is the length of the prompt in
# tokens.
_ROOM = re.compile(r"\(([0-9]{1,20}) > [0-9]+ - ([0-9]{1,20})\)")


# Headers that every request needs, so they must not be omitted.
_OURS = frozenset({"accept", "authorization", "content-type", "user-agent"})


def host_of(url: str) -> str:
    """Return host and port of a URL, without user name and password; the text itself if it is no URL."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2] or url
    except ValueError:
        return url


def is_local(url: str) -> bool:
    """Return whether a URL points to this machine."""
    name = urlsplit(url).hostname or ""
    return is_loopback(name) or name.endswith(".localhost")


def is_loopback(host: str) -> bool:
    """Return whether `host`, an address or a name, is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def certificates_for(url: str) -> "ssl.SSLContext | bool":
    """Return which certificates an HTTP client for `url` needs, as `verify` of httpx2: True for the system's.

    To load the system's takes 0.05 s. Plain HTTP to this machine needs none, and the context for it trusts none.
    """
    import ssl

    return (
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_local(url) and urlsplit(url).scheme == "http" else True
    )


def open_client(url: str, api_key: str | None, *, connect: float, read: float | None) -> "openai.AsyncOpenAI":
    """Return an OpenAI client for `url` that neither retries nor follows redirections.

    Without a key, none is sent: the key in OPENAI_API_KEY is for OpenAI only. Redirections are not followed
    because the repository's content may go only to the host that the user named. Requests to this machine
    bypass any proxy. The size of responses is limited.

    Args:
        url: Base address of the API.
        api_key: Key to send, or None.
        connect: Connect timeout in seconds.
        read: Read timeout in seconds; None for no limit.
    """
    import httpx2

    defer_unused_types()
    import openai

    from m3agent.serving.client.bounds import PLAIN, bound_async

    timeout = httpx2.Timeout(read, connect=connect, write=60.0, pool=None)
    transport = openai.DefaultAsyncHttpxClient(
        timeout=timeout,
        trust_env=not is_local(url),
        follow_redirects=False,
        headers=PLAIN,
        event_hooks={"response": [bound_async]},
        verify=certificates_for(url),
    )
    return openai.AsyncOpenAI(
        base_url=url, api_key=api_key or "none", max_retries=0, timeout=timeout, http_client=transport
    )


def request_headers(api_key: str | None) -> "dict[str, str | openai.Omit]":
    """Return the headers of each request; they drop what the SDK would add from the environment."""
    import openai

    # OPENAI_CUSTOM_HEADERS has one header per line. They are meant for OpenAI, like the organisation and the
    # project.
    lines = os.environ.get("OPENAI_CUSTOM_HEADERS", "").splitlines()
    names = {name.strip() for name, colon, _ in (line.partition(":") for line in lines) if colon}
    names = {name for name in names if name.lower() not in _OURS} | {"OpenAI-Organization", "OpenAI-Project"}
    headers: dict[str, str | openai.Omit] = dict.fromkeys(names, openai.Omit())
    headers["Authorization"] = openai.Omit() if api_key is None else f"Bearer {api_key}"
    return headers


async def post_chat(
    client: "openai.AsyncOpenAI",
    body: bytes,
    api_key: str | None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> "httpx2.Response":
    """Send an encoded chat completion request; return once the response headers have arrived.

    Args:
        client: The connections.
        body: The encoded request.
        api_key: The key to send, or None.
        more: Further headers.

    Raises:
        openai.APIError: The SDK's errors, not translated.
    """
    import httpx2
    import openai

    headers = {"Content-Type": "application/json", **request_headers(api_key), **more}
    try:
        return await client.post(
            "/chat/completions",
            cast_to=httpx2.Response,
            content=body,
            options={"headers": headers},
            stream=True,
            stream_cls=None,
        )
    except httpx2.HTTPError as error:  # the body of an error broke off, which the SDK does not expect
        request = httpx2.Request("POST", client.base_url)
        raise openai.APIConnectionError(request=request) from httpx2.ReadError(str(error))


def translate(error: "openai.APIError", host: str, api_key: str | None) -> ModelServerError:
    """Convert an error of the SDK into a ModelServerError; remove the key from the server's message."""
    import openai

    if isinstance(error, openai.APITimeoutError):
        return EndpointUnreachable(host, "it did not answer in time")
    if isinstance(error, openai.APIConnectionError):
        return EndpointUnreachable(host, _connection_reason(error))
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
    text = mask_key(_server_words(response), api_key)
    return refusal(status, text, host, retry_after(response.headers.get("retry-after")))


def reported(error: object, host: str, api_key: str | None) -> ModelServerError:
    """Return our error for an error that a server reports inside an answer that began well.

    The code in it is an HTTP status with vLLM, SGLang and OpenRouter; MiniMax has it in `http_code`.
    Elsewhere it is a word or missing.

    Args:
        error: The server's `error` object, or its message.
        host: Host of the server.
        api_key: Key to remove from the message.
    """
    fields = error if isinstance(error, Mapping) else {"message": error}
    text = mask_key(str(fields.get("message") or error), api_key)
    code = str(fields.get("code") or fields.get("http_code") or "")
    if re.fullmatch("4[0-9][0-9]", code):
        return refusal(int(code), text, host)
    if _TOO_LONG.search(text) and ("length" in code or "invalid_request_error" in (code, fields.get("type"))):
        return refusal(400, text, host)
    return StreamCut(host, f"it reported {text}")


def refusal(status: int, text: str, host: str, wait: float | None = None) -> ModelServerError:
    """Return the error for an HTTP status and the server's message.

    Args:
        status: The HTTP status.
        text: The server's message. If it is about the context length, the result is ContextTooLong.
        host: Host of the server.
        wait: Seconds from the Retry-After header, or None.
    """
    if status in (400, 413, 422) and _TOO_LONG.search(text):
        return ContextTooLong(_first_number(text, _LIMIT), _requested_tokens(text), host=host)
    if "<html" in text[:2000].lower():
        text = "a web page"
    return EndpointRefused(status, text, host=host, retry_after=wait)


def mask_key(text: str, api_key: str | None) -> str:
    """Return the text without a key that is known."""
    return text.replace(api_key, "[key]") if api_key else text


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


def _requested_tokens(text: str) -> int | None:
    """Return the number of tokens that was too large, as the server's message gives it."""
    room = _ROOM.search(text)
    return int(room[1]) + int(room[2]) if room else _first_number(text, *_ASKED)


def _first_number(text: str, *patterns: re.Pattern[str]) -> int | None:
    for pattern in patterns:
        if found := pattern.search(text):
            return int(next(filter(None, found.groups())).replace(",", ""))
    return None


def _server_words(response: "httpx2.Response") -> str:
    try:
        said = response.json()
    except (ValueError, RecursionError):
        return response.text
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(key):
            said = said[key]
    return response.text if said is None else str(said)


def _connection_reason(error: BaseException) -> str:
    """Return the innermost cause, such as "Connection refused" or "Name or service not known".

    An error of the operating system is preferred: what surrounds it may be an error that the caller was handling.
    """
    import ssl

    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(inner)
    for cause in reversed(chain):
        if isinstance(cause, (socket.gaierror, ssl.SSLError)):  # their numbers are not those of `errno`
            return str(cause.strerror or cause)
        if isinstance(cause, OSError) and cause.errno is not None:
            return os.strerror(cause.errno)  # asyncio's own text has the address again
    return str(chain[-1]) or type(chain[-1]).__name__
