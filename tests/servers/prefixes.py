"""A server on loopback that reads prompts of token ids as vLLM does, with a prefix cache and a host cache, rightly or wrongly.

The log probabilities of the next token follow from the tokens that the server believes to have read. So an answer shows
whether a cache gave back the right tokens.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any, Literal

from tests.servers.engine import BLOCK, Answer, EngineServer

NOISE = 0.001
"""Difference (nat) that another shape of the batch makes."""
CANDIDATES = 20

PrefixFault = Literal[
    "drops a block",  # a proxy that leaves out a block's worth of a prompt whose beginning it has seen
    "wrong tail",  # a prefix that ended inside a block gives back wrong tokens
    "reuses too much",  # the incomplete block counts as cached
    "no salt",  # prefixes with different salts are shared
    "silent",  # the usage says nothing about cached tokens
    "deaf",  # the next token does not depend on the prompt
    "no logprobs",
    "wrong restore",  # the host cache gives back wrong tokens
    "loses",  # the host cache gives back nothing
    "keeps",  # nothing ever leaves the GPUs
]


class PrefixServer(EngineServer):
    """Serves /v1/completions, /tokenize and /metrics; and /reset_prefix_cache if it is in `dev` mode.

    `capacity` is that of the GPUs' cache in tokens. With `host_cache`, blocks that leave the GPUs stay in the host cache, and
    a prompt that ends with a block counts as cached whole, as in vLLM 0.24. Answers from a cache differ by `noise` nat; with
    `unlucky`, only those to prompts that begin as the first one.
    """

    def __init__(
        self,
        *faults: PrefixFault,
        host_cache: bool = False,
        dev: bool = False,
        capacity: int = 2_000,
        draft: bool = False,
        window: int = 131_072,
        noise: float = NOISE,
        unlucky: bool = False,
        **engine: Any,
    ) -> None:
        super().__init__(**engine)
        self.wrong = frozenset(faults)
        self.host_cache = host_cache
        self.dev = dev
        self.capacity = capacity
        self.draft = draft
        self.noise = noise
        self.unlucky = unlucky
        self.window = window
        self.read: list[int] = []
        """Lengths of the prompts."""
        self._gpu: dict[tuple[str, bytes], None] = {}
        self._away: set[tuple[str, bytes]] = set()
        self._ends: set[tuple[str, bytes]] = set()
        self._external = [0, 0]  # hits, queries
        self._first: list[int] = []

    def get(self, path: str, headers: dict[str, str]) -> Answer:
        """Return the metrics."""
        if path != "/metrics":
            return super().get(path, headers)
        hits, queries = self._external
        blocks = self.capacity // BLOCK
        page = (
            f'vllm:cache_config_info{{block_size="{BLOCK}",num_gpu_blocks="{blocks}"}} 1\n'
            f"vllm:external_prefix_cache_hits_total {hits}\nvllm:external_prefix_cache_queries_total {queries}\n"
        )
        return page + ("vllm:spec_decode_num_drafts_total 5\n" if self.draft else "")

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        """Return completions, tokens, or the answer to a reset of the cache."""
        if path == "/reset_prefix_cache" and self.dev:
            self._evict(0)
            return "{}"
        if path == "/v1/completions" and isinstance(body["prompt"], list):
            return json.dumps(self._complete_ids(body["prompt"], body.get("cache_salt", "")))
        return super().post(path, body)

    def _tokenize(self, prompt: str) -> dict[str, Any]:
        tokens = [zlib.crc32(word.encode()) % 100_000 for word in prompt.split()]
        return {"count": len(tokens), "tokens": tokens}

    def _complete_ids(self, ids: list[int], salt: str) -> dict[str, Any]:
        self.read.append(len(ids))
        salt = "" if "no salt" in self.wrong else salt
        cached, restored = self._cached(ids, salt)
        believed, counted = list(ids), len(ids)
        last = slice(max(0, cached - BLOCK), cached)
        inside = cached and any((salt, _key(ids[:end])) in self._ends for end in range(cached + 1, len(ids)))
        if inside and "drops a block" in self.wrong:
            del believed[last]
            counted = len(believed)
        elif (inside and "wrong tail" in self.wrong) or (restored and "wrong restore" in self.wrong):
            believed[last] = reversed(believed[last])
        if inside and "reuses too much" in self.wrong:
            cached = len(ids) - 1
        self._keep(ids, salt)
        details = None if "silent" in self.wrong else {"cached_tokens": cached}
        usage = {"prompt_tokens": counted, "prompt_tokens_details": details}
        heard = [] if "deaf" in self.wrong else believed
        self._first = self._first or ids[:BLOCK]
        noise = self.noise if cached and (not self.unlucky or ids[:BLOCK] == self._first) else 0
        chances = {f"token_id:{n}": _chance(heard, n) + noise for n in range(CANDIDATES)}
        choice: dict[str, Any] = {"text": "x"}
        if "no logprobs" not in self.wrong:
            choice["logprobs"] = {"top_logprobs": [chances]}
        return {"choices": [choice], "usage": usage}

    def _cached(self, ids: list[int], salt: str) -> tuple[int, int]:
        """Return the tokens that a cache has, and how many of them are the host cache's."""
        end, on_gpu = 0, 0
        while end + BLOCK < len(ids) + self.host_cache:
            key = salt, _key(ids[: end + BLOCK])
            if key not in self._gpu and key not in self._away:
                break
            end += BLOCK
            on_gpu = end if key in self._gpu else on_gpu
        if self.host_cache:
            self._external[1] += len(ids) - on_gpu
            self._external[0] += end - on_gpu
        if self.draft:
            end = max(0, end - BLOCK)
        return end, max(0, end - on_gpu)

    def _keep(self, ids: list[int], salt: str) -> None:
        for end in range(BLOCK, len(ids) + 1, BLOCK):
            key = salt, _key(ids[:end])
            self._gpu.pop(key, None)
            self._gpu[key] = None
        self._ends.add((salt, _key(ids)))
        if "keeps" not in self.wrong:
            self._evict(self.capacity // BLOCK)

    def _evict(self, most: int) -> None:
        """Let the oldest blocks leave the GPUs until there are at most so many."""
        while len(self._gpu) > most:
            key = next(iter(self._gpu))
            del self._gpu[key]
            if self.host_cache and "loses" not in self.wrong:
                self._away.add(key)


def _key(ids: Sequence[int]) -> bytes:
    return b",".join(b"%d" % token for token in ids)


def _chance(ids: Sequence[int], candidate: int) -> float:
    return -1 - candidate / 10 - (zlib.crc32(_key([*ids, candidate])) % 1000) / 2000
