"""Count tokens through the model server: POST /tokenize, as in vLLM and SGLang."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from m3agent.agent.context.cache import read_file, write_file
from m3agent.agent.context.tokenizer.check import adds_up
from m3agent.agent.context.tokenizer.source import TokenizerSource
from m3agent.agent.errors import UsageError
from m3agent.serving.errors import EndpointRefused, EndpointUnreachable, ModelServerError
from m3agent.serving.http import host_of, is_local, redact, refusal, retry_after

_CONNECTIONS = 8
_LONGEST_WAIT = 10.0  # seconds between attempts
_READ_SECONDS = 300.0  # a million tokens take several seconds, and the request may have to queue

# Enough words, scripts, numbers, white space and symbols to distinguish two tokenizers of the same model
# family.
_PROBE = (
    '<file path="a/b.py">\ndef naïve_Sum(values: list[int]) -> int:\n\t"""Adds 1234567 \u2013 “quoted”, it\'s."""\r\n'
    "    return   sum(x**2 for x in values)  # 漢字かな交じり, русский, العربية, हिन्दी, 한국어, ไทย 😀👩‍💻\n"
    'if __name__ == "__main__":\n        print(0x7fff, 3.14159e-10, "https://example.org/?q=%20", {})\n\n\n</file>\n'
)


def find_server(endpoint: str | None, *, model: str | None, api_key: str | None) -> tuple[str, str, str]:
    """Return the identity of the server's tokenizer, the address that counts, and a label for people.

    The identity is a hash of the token ids for a test text.

    Raises:
        UsageError: There is no endpoint, or the server does not tokenize.
        ModelServerError: The server does not answer, or refuses.
    """
    if endpoint is None:
        raise UsageError("--tokenizer server asks the model server: say which with --endpoint.")
    host = host_of(endpoint)
    for url in _addresses(endpoint):
        server = _Server(url, model, api_key, attempts=2)  # fail fast: the address may be mistyped
        with server.client:
            ids = server.ids(_PROBE)
        if ids is not None:
            return sha256(json.dumps([model, ids]).encode()).hexdigest()[:32], url, f"the server at {host}"
    raise _cannot_tokenize(host)


class ServerCounter:
    """Count through the server, with one request per text and eight at a time.

    Raises the errors of `find_server`.
    """

    def __init__(self, source: TokenizerSource) -> None:
        self._server = _Server(source.location, source.model, source.api_key)
        self.exact = self._adds_up(f"{source.cache}/tokenizers", source.id)
        self.note = "" if self.exact else "it joins the end of a file and the start of the next"

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        if not text:
            return 0
        ids = self._server.ids(text)
        if ids is None:
            raise _cannot_tokenize(self._server.host)
        return len(ids)

    def count_many(self, texts: Sequence[str], threads: int = _CONNECTIONS) -> list[int]:
        """Return the number of tokens of each text.

        `threads` is ignored, because waiting for a server costs nothing.
        """
        pool = ThreadPoolExecutor(_CONNECTIONS)
        try:
            return list(pool.map(self.count, texts))
        finally:
            pool.shutdown(cancel_futures=True)

    def _adds_up(self, folder: str, name: str) -> bool:
        kept = f"{folder}/{name}.adds"
        known = read_file(kept)
        if known in (b"yes", b"no"):
            return known == b"yes"
        found = adds_up(self.count_many, shifts=1)
        with suppress(OSError):  # otherwise it is tested again next time
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(kept, b"yes" if found else b"no")
        return found


def _addresses(endpoint: str) -> list[str]:
    """Return the possible addresses of /tokenize: next to /v1, and below it."""
    base = endpoint.strip().rstrip("/").removesuffix("/chat/completions")
    base = base if "://" in base else f"http://{base}"
    root = base.removesuffix("/v1").rstrip("/")
    return [f"{root}/tokenize", f"{root}/v1/tokenize"]


class _Server:
    """An address that converts texts to token ids."""

    def __init__(self, url: str, model: str | None, api_key: str | None, *, attempts: int = 4) -> None:
        import httpx2

        self.host = host_of(url)
        self._url = url
        self._model = {} if model is None else {"model": model}
        self._api_key = api_key
        self._attempts = attempts
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise self._no_address()
        headers = {"Content-Type": "application/json"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self.client = httpx2.Client(
            headers=headers,
            timeout=httpx2.Timeout(_READ_SECONDS, connect=10.0, write=60.0, pool=None),
            limits=httpx2.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS),
            trust_env=not is_local(url),
        )

    def ids(self, text: str) -> list[int] | None:
        """Return the token ids of a non-empty text, with retries; None if the server has no /tokenize."""
        body = {**self._model, "prompt": text, "add_special_tokens": False}
        content = json.dumps(body, ensure_ascii=False).encode()
        for attempt in range(1, self._attempts):
            try:
                return self._post(content)
            except ModelServerError as error:
                if not error.retriable:
                    raise
                wait = 0.25 * 2**attempt if error.retry_after is None else error.retry_after
                time.sleep(min(wait, _LONGEST_WAIT))
        return self._post(content)

    def _post(self, content: bytes) -> list[int] | None:
        import httpx2

        try:
            answer = self.client.post(self._url, content=content)
        except httpx2.TimeoutException:
            raise EndpointUnreachable(self.host, "it did not answer in time") from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise EndpointUnreachable(self.host, str(error) or type(error).__name__) from None
        except httpx2.InvalidURL:
            raise self._no_address() from None
        try:
            said = answer.json()
        except ValueError:
            said = None
        if answer.status_code != 200:
            if answer.status_code in (404, 405, 501) and not _names_a_fault(said):
                return None
            text = redact(_words(said) or answer.text, self._api_key)
            raise refusal(answer.status_code, text, self.host, retry_after(answer.headers.get("retry-after")))
        ids = said.get("tokens") if isinstance(said, dict) else None
        if not isinstance(ids, list) or not all(isinstance(number, int) for number in ids):
            advice = "count with the model's tokenizer.json or its folder instead (--tokenizer)"
            raise EndpointRefused(200, "no tokens", host=self.host, advice=advice)
        return ids or None  # empty: the server reads another field than `prompt`

    def _no_address(self) -> EndpointUnreachable:
        return EndpointUnreachable(self.host, "an endpoint is an http:// or https:// address")


def _names_a_fault(said: object) -> bool:
    """Return whether a server that knows the address reports another fault, mostly an unknown model."""
    return isinstance(said, dict) and (isinstance(said.get("error"), dict) or said.get("object") == "error")


def _words(said: object) -> str:
    """Return the server's message from a JSON response."""
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(key):
            said = said[key]
    return said if isinstance(said, str) else ""


def _cannot_tokenize(host: str) -> UsageError:
    return UsageError(
        f"The model server at {host} does not tokenize (it has no /tokenize): "
        "give the model's tokenizer.json or its folder with --tokenizer."
    )
