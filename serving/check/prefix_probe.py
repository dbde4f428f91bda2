"""Test how a self-hosted model server handles long prompts, before the first turn.

The test finds out whether the server caches prefixes, whether it reports cached tokens, and how fast it
tokenizes. At a million tokens, a missing prefix cache costs over a hundred seconds per turn, and a slow
tokenizer two.

Only self-hosted servers (vLLM, SGLang, TensorRT-LLM) are tested; with a hosted API, the turns themselves show
these facts. The test uses the completions API with a meaningless prompt, so it touches no conversation.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import sysconfig
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m3agent.serving.check.check import Check
from m3agent.serving.check.engine_state import complete, counter, engine_state
from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.client.http import open_client
from m3agent.serving.client.tokenize import count_tokens
from m3agent.serving.errors import ModelServerError
from m3agent.serving.plan.engines import ENGINES, Lacking, remedy
from m3agent.util.json_value import mapping

if TYPE_CHECKING:
    import openai

_TIMEOUT = 10.0  # seconds for all requests together, so that a busy server causes no long wait
SLOW_TOKENIZER = 1.0
"""Seconds per million tokens above which a change is worthwhile.

vLLM's default tokenizer needs 2.1, its fast one 0.2.
"""

_MOST_TIMES = 4
_WORTH_SAYING = 0.3  # seconds per turn that a slow tokenizer must add to be reported
# Servers cache whole blocks: 128 tokens for M3 in vLLM and SGLang. This is about ten blocks.
_PREFIX_CHARACTERS = 6_000
_SAMPLE_CHARACTERS = 250_000
_METRIC = "vllm:prefix_cache_hits_total"


@dataclass(frozen=True)
class Findings:
    """Results of the test; None means unknown."""

    prefix_caching: bool | None = None
    """Whether the server reused the beginning of a prompt."""
    cached_tokens: bool | None = None
    """Whether the usage reports how many prompt tokens came from the cache."""
    tokenizer_seconds: float | None = None
    """Seconds per million tokens, without the network round trip."""
    ranks: int = 1
    """Number of data-parallel ranks, each with its own cache; 1 if unknown."""

    def advice(self, endpoint: Endpoint, prompt_tokens: int) -> list[str]:
        """Return one sentence per server setting worth changing, for prompts of `prompt_tokens` tokens."""
        said, host = [], endpoint.host
        if self.prefix_caching is False:
            switch = remedy(endpoint.flavour, "prefix_cache")
            said.append(f"{host} has no prefix cache, so each turn computes the whole prompt again: {switch}")
        elif self.cached_tokens is False:
            switch = remedy(endpoint.flavour, "cached_tokens")
            said.append(f"{host} does not report how many prompt tokens were cached: {switch}")
        if self.tokenizer_seconds is not None and self.tokenizer_seconds > SLOW_TOKENIZER:
            seconds = self.tokenizer_seconds * prompt_tokens / 1e6
            if seconds > _WORTH_SAYING:
                switch = remedy(endpoint.flavour, "tokenizer")
                said.append(f"{host} needs {seconds:.1f} s of each turn to tokenize the prompt: {switch}")
        return said


async def examine(endpoint: Endpoint, *, api_key: str | None, timeout: float = _TIMEOUT) -> Findings:
    """Test the server for at most `timeout` seconds; return what was found until then.

    No behaviour of the server raises an error here.
    """
    if endpoint.flavour not in ENGINES:
        return Findings()
    async with open_client(endpoint.url, api_key, connect=min(timeout, 10.0), read=timeout) as client:
        asking = _Questions(client, endpoint, api_key)
        try:
            async with asyncio.timeout(timeout):
                await asking.about_ranks()
                await asking.about_prefixes()
                await asking.about_the_tokenizer()
        except TimeoutError:
            pass
    return asking.findings


class _Questions:
    """Send the test requests to one server; results that arrive before the timeout are kept."""

    def __init__(self, client: openai.AsyncOpenAI, endpoint: Endpoint, api_key: str | None) -> None:
        self.findings = Findings()
        self._client = client
        self._endpoint = endpoint
        self._api_key = api_key
        # The context window may be small, and source code has at least about two characters per token.
        self._most_characters = 2 * (endpoint.max_model_len or 1_000_000)

    async def about_ranks(self) -> None:
        """Count the ranks that report a cache."""
        state = await engine_state(self._endpoint, api_key=self._api_key)
        self._note(ranks=max(1, len(state.kv_tokens)))

    async def about_prefixes(self) -> None:
        """Send the same beginning twice. A random number at its start ensures that no cache has it yet."""
        size = min(_PREFIX_CHARACTERS, self._most_characters)
        beginning = secrets.token_hex(16) + "\n" + (await asyncio.to_thread(sample_text))[:size]
        if await self._complete(beginning + "\n1") is None:
            return
        hits = await self._hits()
        again = await self._complete(beginning + "\n2")
        if again is None:
            return
        cached, prompt = again
        self._note(cached_tokens=cached is not None)
        if cached is not None and prompt:
            self._note(prefix_caching=cached > prompt / 2)
        elif hits is not None and (now := await self._hits()) is not None:
            self._note(prefix_caching=now > hits)

    async def about_the_tokenizer(self) -> None:
        """Compare the times for a long and a short text; repeat only while the tokenizer looks slow.

        The minimum of each counts: the first request may cause start-up work, and other load on either
        machine can delay any request.
        """
        text = (await asyncio.to_thread(sample_text))[: min(_SAMPLE_CHARACTERS, self._most_characters)]
        least_short = least_long = math.inf
        for _ in range(_MOST_TIMES):
            short = await self._tokenize("x")
            long = await self._tokenize(text) if short else None
            if not short or not long or long[0] <= short[0]:
                return
            least_short, least_long = min(least_short, short[1]), min(least_long, long[1])
            seconds = max(0.0, least_long - least_short) / (long[0] - short[0]) * 1e6
            self._note(tokenizer_seconds=seconds)
            if seconds <= SLOW_TOKENIZER:
                return

    def _note(self, **results: Any) -> None:
        self.findings = replace(self.findings, **results)

    async def _complete(self, prompt: str) -> tuple[int | None, int | None] | None:
        """Request one completion and read its usage.

        Returns:
            Cached tokens and prompt tokens, each None if not reported; or None if the request failed.
        """
        try:
            answer = await complete(self._client, self._endpoint, self._api_key, prompt, max_tokens=1)
        except (ModelServerError, ValueError):
            return None  # the server does not have this page, or refuses
        usage = mapping(answer).get("usage")
        if not isinstance(usage, dict):
            return None
        cached = mapping(usage, "prompt_tokens_details").get("cached_tokens")
        prompt_tokens = usage.get("prompt_tokens")
        return (
            cached if isinstance(cached, int) else None,
            prompt_tokens if isinstance(prompt_tokens, int) else None,
        )

    async def _hits(self) -> float | None:
        """Return the total of prefix cache hits, in tokens, from vLLM's metrics; None without them."""
        return await counter(self._client, self._endpoint, self._api_key, _METRIC)

    async def _tokenize(self, text: str) -> tuple[int, float] | None:
        """Return the number of tokens of a text, and the seconds until the response; None without a count."""
        started = time.perf_counter()
        count = await count_tokens(self._client, self._endpoint, text, self._api_key)
        return None if count is None else (count, time.perf_counter() - started)


def sample_text() -> str:
    """Return source code that is not secret: files of Python's standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    names = ("argparse.py", "typing.py", "inspect.py", "tarfile.py")
    texts = [path.read_text(encoding="utf-8") for path in map(folder.joinpath, names) if path.is_file()]
    return "".join(texts) or "def f(x):\n    return x + 1\n" * 10_000


def examined_checks(endpoint: Endpoint, findings: Findings) -> list[Check]:
    """Return the three checks; `ok` is None where the examination found nothing out."""
    cached, reported, seconds = findings.prefix_caching, findings.cached_tokens, findings.tokenizer_seconds
    fast = None if seconds is None else seconds <= SLOW_TOKENIZER
    speed = f"{seconds:.2g} s for a million tokens" if seconds is not None else ""
    no_cache = "no prefix cache: each turn computes the whole prompt again"
    not_reported = "does not report how many prompt tokens were cached"
    results: tuple[tuple[str, Lacking, bool | None, str, str], ...] = (
        ("prefix cache", "prefix_cache", cached, "a prefix sent twice came from the cache", no_cache),
        ("cached tokens", "cached_tokens", reported, "usage reports cached tokens", not_reported),
        ("tokenizer", "tokenizer", fast, speed, f"slow, in each turn: {speed}"),
    )
    checks = []
    for name, setting, ok, good, bad in results:
        detail = {True: good, False: bad, None: "unknown"}[ok]
        fix = remedy(endpoint.flavour, setting) if ok is False else ""
        checks.append(Check(name, ok, detail, fix, timed=setting == "tokenizer"))
    return checks
