"""What a model server of ours does with long prompts: whether it keeps prefixes, says so, and how fast it tokenizes.

At a million tokens a prefix that is not kept costs over a hundred seconds a turn, a slow tokenizer two. Only servers
that somebody runs for us are asked (vLLM, SGLang, TensorRT-LLM): of a hosted API the turns themselves tell. Asked is
the completions API, with a prompt of no meaning, so no conversation is touched.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m3agent.serving.check.metrics import parse_metrics, total
from m3agent.serving.endpoint import Endpoint, Flavour, get, post
from m3agent.serving.errors import ModelServerError
from m3agent.serving.http import open_client
from m3agent.serving.tokenize import count_tokens

if TYPE_CHECKING:
    import openai

_TIMEOUT = 10.0  # seconds, for all questions together: a busy server is not waited for
SLOW_TOKENIZER = 1.0
"""Seconds for a million tokens, above which it is worth mending: vLLM's default needs 2.1, its fast one 0.2."""

_MOST_TIMES = 4
_WORTH_SAYING = 0.3  # seconds that a slow tokenizer adds to each turn
# Servers keep whole blocks: 128 tokens for M3 in vLLM and SGLang. This makes some ten of them.
_PREFIX_CHARACTERS = 6_000
_SAMPLE_CHARACTERS = 250_000
_METRIC = "vllm:prefix_cache_hits_total"

CACHING_SWITCHES: dict[Flavour, str] = {
    "vllm": "start it with --enable-prefix-caching",
    "sglang": "start it without --disable-radix-cache",
    "trtllm": "TensorRT-LLM cannot reuse prefixes of M3, so use vLLM or SGLang for agent work",
}
REPORTING_SWITCHES: dict[Flavour, str] = {
    "vllm": "start it with --enable-prompt-tokens-details",
    "sglang": "start it with --enable-cache-report",
    "trtllm": "its metrics may",
}
TOKENIZER_SWITCHES: dict[Flavour, str] = {
    "vllm": "start it with VLLM_USE_FASTOKENS=1 and the package fastokens installed",
    "sglang": "start it with --tokenizer-backend fastokens",
    "trtllm": "start it with TLLM_PREFIX_TOKEN_CACHE=1",
}


@dataclass(frozen=True)
class Findings:
    """What was found; None is unknown.

    `prefix_caching`: a prompt's beginning was found again. `cached_tokens`: usage says how many tokens were.
    `tokenizer_seconds`: for a million tokens, the way to the server and back left out.
    """

    prefix_caching: bool | None = None
    cached_tokens: bool | None = None
    tokenizer_seconds: float | None = None

    def advice(self, endpoint: Endpoint, prompt_tokens: int) -> list[str]:
        """What is worth changing about the server for prompts of so many tokens: a sentence each."""
        said, host = [], endpoint.host
        if self.prefix_caching is False:
            switch = CACHING_SWITCHES[endpoint.flavour]
            said.append(f"{host} keeps no prefixes, so each turn pays for the whole prompt again: {switch}")
        elif self.cached_tokens is False:
            switch = REPORTING_SWITCHES[endpoint.flavour]
            said.append(f"{host} does not say how much of a prompt its cache had: {switch}")
        if self.tokenizer_seconds is not None and self.tokenizer_seconds > SLOW_TOKENIZER:
            seconds = self.tokenizer_seconds * prompt_tokens / 1e6
            if seconds > _WORTH_SAYING:
                switch = TOKENIZER_SWITCHES[endpoint.flavour]
                said.append(f"{host} needs {seconds:.1f} s of each turn to tokenize the prompt: {switch}")
        return said


async def examine(endpoint: Endpoint, *, api_key: str | None, timeout: float = _TIMEOUT) -> Findings:
    """Find out what can be found out in `timeout` seconds; never raises for what the server does or does not do."""
    if endpoint.flavour not in CACHING_SWITCHES:
        return Findings()
    async with open_client(endpoint.url, api_key, connect=min(timeout, 10.0), read=timeout) as client:
        asking = _Questions(client, endpoint, api_key)
        try:
            async with asyncio.timeout(timeout):
                await asking.about_prefixes()
                await asking.about_the_tokenizer()
        except TimeoutError:
            pass
    return Findings(asking.prefix_caching, asking.cached_tokens, asking.tokenizer_seconds)


class _Questions:
    """Asks one server; what was answered before time was up stays."""

    def __init__(self, client: openai.AsyncOpenAI, endpoint: Endpoint, api_key: str | None) -> None:
        self.prefix_caching: bool | None = None
        self.cached_tokens: bool | None = None
        self.tokenizer_seconds: float | None = None
        self._client = client
        self._endpoint = endpoint
        self._api_key = api_key
        self._root = endpoint.url.removesuffix("/v1")
        # A window may be small; two characters a token are few for code.
        self._most_characters = 2 * (endpoint.max_model_len or 1_000_000)

    async def about_prefixes(self) -> None:
        """Send one beginning twice; nobody has sent it before, since it starts with a number drawn for this."""
        size = min(_PREFIX_CHARACTERS, self._most_characters)
        beginning = secrets.token_hex(16) + "\n" + (await asyncio.to_thread(_sample))[:size]
        if await self._complete(beginning + "\n1") is None:
            return
        hits = await self._hits()
        again = await self._complete(beginning + "\n2")
        if again is None:
            return
        cached, prompt = again
        self.cached_tokens = cached is not None
        if cached is not None and prompt:
            self.prefix_caching = cached > prompt / 2
        elif hits is not None and (now := await self._hits()) is not None:
            self.prefix_caching = now > hits

    async def about_the_tokenizer(self) -> None:
        """Time a long text against a short one: the best of both, and again only while it looks slow.

        The first may start things up, and anything else that runs on either machine can lengthen any of them.
        """
        text = (await asyncio.to_thread(_sample))[: min(_SAMPLE_CHARACTERS, self._most_characters)]
        least_short = least_long = math.inf
        for _ in range(_MOST_TIMES):
            short = await self._tokenize("x")
            long = await self._tokenize(text) if short else None
            if not short or not long or long[0] <= short[0]:
                return
            least_short, least_long = min(least_short, short[1]), min(least_long, long[1])
            self.tokenizer_seconds = max(0.0, least_long - least_short) / (long[0] - short[0]) * 1e6
            if self.tokenizer_seconds <= SLOW_TOKENIZER:
                return

    async def _complete(self, prompt: str) -> tuple[int | None, int | None] | None:
        """Cached tokens and prompt tokens by the server's usage, None each where it does not say; None if it failed."""
        parameters = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
        answer = await self._post(f"{self._endpoint.url}/completions", parameters)
        usage = answer.get("usage") if answer is not None else None
        if not isinstance(usage, dict):
            return None
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        prompt_tokens = usage.get("prompt_tokens")
        return (
            cached if isinstance(cached, int) else None,
            prompt_tokens if isinstance(prompt_tokens, int) else None,
        )

    async def _hits(self) -> float | None:
        """Tokens that vLLM's cache has had so far, by its metrics."""
        try:
            page = await get(self._client, f"{self._root}/metrics", self._api_key)
            return total(parse_metrics(page), _METRIC)
        except (ModelServerError, ValueError):
            return None

    async def _tokenize(self, text: str) -> tuple[int, float] | None:
        """How many tokens a text has, and the seconds until the server said so."""
        started = time.perf_counter()
        count = await count_tokens(self._client, self._endpoint, text, self._api_key)
        return None if count is None else (count, time.perf_counter() - started)

    async def _post(self, url: str, parameters: dict[str, Any]) -> dict[str, Any] | None:
        body = {"model": self._endpoint.model, **parameters}
        try:
            answer = json.loads(await post(self._client, url, body, self._api_key))
        except (ModelServerError, ValueError):
            return None  # it has no such page, or will not say
        return answer if isinstance(answer, dict) else None


def _sample() -> str:
    """Program text that is no secret: some of Python's own library."""
    folder = Path(sysconfig.get_path("stdlib"))
    names = ("argparse.py", "typing.py", "inspect.py", "tarfile.py")
    texts = [path.read_text(encoding="utf-8") for path in map(folder.joinpath, names) if path.is_file()]
    return "".join(texts) or "def f(x):\n    return x + 1\n" * 10_000
