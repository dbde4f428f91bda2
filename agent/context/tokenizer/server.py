"""Count tokens through the model server: POST /tokenize, as in vLLM and SGLang."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

from m3agent.agent.context.cache import keep_file
from m3agent.agent.context.tokenizer.check import adds_up
from m3agent.agent.context.tokenizer.source import TokenizerSource
from m3agent.serving.client.http import host_of
from m3agent.serving.client.tokenize import CONNECTIONS, TokenizeClient, page_urls
from m3agent.serving.errors import EndpointRefused
from m3agent.util.errors import UsageError
from m3agent.util.private_file import read_file

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
        raise UsageError("--tokenizer server asks the model server: name it with --endpoint.")
    host = host_of(endpoint)
    for url in page_urls(endpoint):
        # fail fast: the address may be mistyped
        with TokenizeClient(url, model=model, api_key=api_key, attempts=2) as client:
            ids = _ids(client, _PROBE)
        if ids is not None:
            return sha256(json.dumps([model, ids]).encode()).hexdigest()[:32], url, f"the server at {host}"
    raise _cannot_tokenize(host)


class ServerCounter:
    """Count through the server, with one request per text and eight at a time.

    Raises the errors of `find_server`.
    """

    def __init__(self, source: TokenizerSource) -> None:
        self._client = TokenizeClient(source.location, model=source.model, api_key=source.api_key)
        self.exact = self._adds_up(f"{source.cache}/tokenizers", source.id)
        self.note = "" if self.exact else "it joins the end of a file and the start of the next"

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        if not text:
            return 0
        ids = _ids(self._client, text)
        if ids is None:
            raise _cannot_tokenize(self._client.host)
        return len(ids)

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""
        pool = ThreadPoolExecutor(CONNECTIONS)
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
        keep_file(kept, b"yes" if found else b"no")
        return found


def _ids(client: TokenizeClient, text: str) -> list[int] | None:
    """Return the token ids of a non-empty text; None if the server does not tokenize."""
    tokens = client.tokenize(text)
    if tokens is None:
        return None
    if tokens.ids is None:
        advice = "count with the model's tokenizer.json or its folder instead (--tokenizer)"
        raise EndpointRefused(200, "no tokens", host=client.host, advice=advice)
    return tokens.ids or None  # empty: the server reads another field than `prompt`


def _cannot_tokenize(host: str) -> UsageError:
    return UsageError(
        f"The model server at {host} cannot tokenize (it has no "
        "/tokenize): give the model's tokenizer.json or its folder with --tokenizer."
    )
