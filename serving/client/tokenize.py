"""Tokenize text with the server's own tokenizer. vLLM and SGLang have the page `/tokenize` beside /v1.

There are two clients: `TokenizeClient` is blocking and may be shared by threads; `count_tokens` and
`token_ids` are for an event loop. Both send the same request and parse the response in the same way.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from m3agent.serving.client.http import certificates_for, host_of, is_local, request_headers
from m3agent.serving.client.retry import page_policy
from m3agent.serving.client.server_errors import response_error, translate
from m3agent.serving.errors import EndpointUnreachable, ModelServerError
from m3agent.util.json_value import mapping

if TYPE_CHECKING:
    import httpx2
    import openai

    from m3agent.serving.client.endpoint import Endpoint

CONNECTIONS = 8
"""The most concurrent requests of one `TokenizeClient`."""

_CONNECT_SECONDS = 10.0
_READ_SECONDS = (
    300.0  # a slow tokenizer needs several seconds for a million tokens, and the request may wait in a queue
)


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text."""

    ids: list[int] | None
    """The token ids; None if the response does not have them."""
    count: int | None
    """The number of tokens; None if the response does not have it."""


def page_urls(endpoint: str) -> list[str]:
    """Return the addresses that the page may have, the more likely one first: beside /v1, and below it."""
    base = endpoint.strip().rstrip("/").removesuffix("/chat/completions")
    base = base if "://" in base else f"http://{base}"
    root = base.removesuffix("/v1").rstrip("/")
    return [f"{root}/tokenize", f"{root}/v1/tokenize"]


class TokenizeClient:
    """A blocking client for one address. Threads may share it.

    Args:
        url: One of `page_urls`.

    Raises:
        EndpointUnreachable: `url` is not an HTTP address.
    """

    def __init__(self, url: str, *, model: str | None, api_key: str | None, attempts: int = 4) -> None:
        import httpx2

        from m3agent.serving.client.bounds import PLAIN, bound

        self.host = host_of(url)
        self._url = url
        self._model = model
        self._api_key = api_key
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise self._no_address()
        headers = {"Content-Type": "application/json", **PLAIN}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._http = httpx2.Client(
            headers=headers,
            timeout=httpx2.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS, write=60.0, pool=None),
            limits=httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
            trust_env=not is_local(url),
            verify=certificates_for(url),
            event_hooks={"response": [bound]},
        )
        self._retrying = page_policy(attempts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def tokenize(self, text: str) -> Tokens | None:
        """Return the tokens of a text, without special tokens; None if the server does not have this page.

        Raises:
            ModelServerError: One of the errors of `m3agent.serving.errors`.
        """
        request = _request(self._model, text, special_tokens=False)
        return self._retrying(self._post, json.dumps(request, ensure_ascii=False).encode())

    def _post(self, content: bytes) -> Tokens | None:
        import httpx2

        try:
            response = self._http.post(self._url, content=content)
        except httpx2.TimeoutException:
            raise EndpointUnreachable(self.host, "it did not answer in time") from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise EndpointUnreachable(self.host, str(error) or type(error).__name__) from None
        except httpx2.InvalidURL:
            raise self._no_address() from None
        return _read(response, self.host, self._api_key)

    def _no_address(self) -> EndpointUnreachable:
        return EndpointUnreachable(self.host, "an endpoint must be an http:// or https:// address")


async def count_tokens(
    client: openai.AsyncOpenAI, endpoint: Endpoint, text: str, api_key: str | None
) -> int | None:
    """Return how many tokens a text has as a prompt, with special tokens; None if the server does not say."""
    try:
        tokens = await _tokenize(client, endpoint, text, api_key, special_tokens=True)
    except ModelServerError:
        return None  # the server refuses, or does not answer
    return None if tokens is None or not tokens.count else tokens.count


async def token_ids(
    client: openai.AsyncOpenAI, endpoint: Endpoint, text: str, api_key: str | None
) -> list[int] | None:
    """Return the token ids of a text, without special tokens; None if the server does not say.

    Raises:
        ModelServerError: One of the errors of `m3agent.serving.errors`.
    """
    tokens = await _tokenize(client, endpoint, text, api_key, special_tokens=False)
    return None if tokens is None else tokens.ids


async def _tokenize(
    client: openai.AsyncOpenAI, endpoint: Endpoint, text: str, api_key: str | None, *, special_tokens: bool
) -> Tokens | None:
    import httpx2
    import openai

    try:
        response = await client.post(
            page_urls(endpoint.url)[0],
            cast_to=httpx2.Response,
            body=_request(endpoint.model, text, special_tokens=special_tokens),
            options={"headers": request_headers(api_key)},
        )
    except openai.APIStatusError as error:
        response = error.response
    except openai.APIError as error:
        raise translate(error, endpoint.host, api_key) from error
    return _read(response, endpoint.host, api_key)


def _request(model: str | None, text: str, *, special_tokens: bool) -> dict[str, Any]:
    named = {} if model is None else {"model": model}
    return {**named, "prompt": text, "add_special_tokens": special_tokens}


def _read(response: httpx2.Response, host: str, api_key: str | None) -> Tokens | None:
    """Return the tokens in a response; None if it says that the server does not have this page."""
    try:
        answer = response.json()
    except (ValueError, RecursionError):
        answer = None
    if response.status_code != 200:
        if response.status_code in (404, 405, 501) and not _names_a_fault(answer):
            return None
        raise response_error(response, host, api_key)
    fields = mapping(answer)
    ids, count = fields.get("tokens"), fields.get("count")
    if not isinstance(count, int):
        count = len(ids) if isinstance(ids, list) else None
    return Tokens(ids if isinstance(ids, list) and all(map(_is_id, ids)) else None, count)


def _names_a_fault(answer: object) -> bool:
    """Return whether the server has the page and reports another error, usually an unknown model."""
    fields = mapping(answer)
    return isinstance(fields.get("error"), dict) or fields.get("object") == "error"


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
