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

from m3agent.serving.client.overflow import overflow
from m3agent.serving.client.sdk import defer_unused_types
from m3agent.serving.errors import EndpointRefused, EndpointUnreachable, ModelServerError, StreamCut

if TYPE_CHECKING:
    import ssl

    import httpx2
    import openai

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
    detail = error.get("detail")
    listed = [each for each in detail if isinstance(each, dict)] if isinstance(detail, list) else []
    if not listed or error.get("message"):
        return error
    places = [_place(each.get("loc")) for each in listed]
    words = [
        f"{place}: {each.get('msg')}".removeprefix(": ") for place, each in zip(places, listed, strict=True)
    ]
    return {"message": "; ".join(words), "param": places[0]}


def _place(loc: object) -> str:
    parts = [str(part) for part in loc] if isinstance(loc, list) else []
    return ".".join(parts[1:] if parts[:1] == ["body"] else parts)


def _words(fields: Mapping[str, object]) -> str:
    """Return the message of an `error` object. OpenRouter adds what the provider said."""
    words = str(fields.get("message") or fields.get("detail") or "")
    metadata = fields.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
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
        if isinstance(cause, (socket.gaierror, ssl.SSLError)):  # their numbers are not those of `errno`
            return str(cause.strerror or cause)
        if isinstance(cause, OSError) and cause.errno is not None:
            return os.strerror(cause.errno)  # asyncio's own text has the address again
    return str(chain[-1]) or type(chain[-1]).__name__
