"""Read prompts with a server, and compare what it makes of them with and without its cache.

A prompt is sent as token ids, and the log probabilities of the next token come back. A server that reuses a prefix must
give nearly the same ones as a server that computes the whole prompt; `cache_salt` makes vLLM do that, because prefixes with
different salts are never shared.

How near is near depends on the weights: real ones differ by hundredths of a nat between batch shapes, random ones by less.
So each comparison has its own scale: the same prompt with one block replaced, which is what a wrong block would do. Now and
then another batch shape alone does as much: with vLLM 0.24 and random weights in 4 of 35 prompts. So a caller compares with an
answer of the same shape, or tries several prompts.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from m3agent.serving.check.check import Check
from m3agent.serving.check.engine_state import EngineState, complete, counter, engine_state
from m3agent.serving.check.prefix_probe import sample_text
from m3agent.serving.client.endpoint import Endpoint, post
from m3agent.serving.client.http import open_client
from m3agent.serving.client.tokenize import token_ids
from m3agent.serving.errors import ModelServerError

if TYPE_CHECKING:
    import openai

BLOCK = 128
"""Tokens of a block, if the server does not report their number; M3's sparse attention needs this one."""
MOST_DIFFERENCE = 0.5
"""Mean difference of log probabilities (nat) that no change of the batch's shape explains."""
LEAST_SCALE = 0.001
"""Least difference (nat) that a wrong block must make to be told from rounding: bf16 logits have steps of this size."""
_CANDIDATES = 20  # most likely next tokens to compare; vLLM's default limit
_CHARACTERS = 24_000  # of the text that is tokenized; about 6,000 tokens


class NotComparable(Exception):
    """The server does not report what a comparison needs. The message says what is missing."""


@dataclass(frozen=True)
class Reading:
    """What a server made of a prompt."""

    prompt: int
    """Number of tokens of the prompt, as the server counted them."""
    cached: int | None
    """Number of its tokens that came from a cache; None if the server does not say."""
    chances: Mapping[str, float]

    def difference(self, other: Reading) -> float:
        """Return the mean difference of the log probabilities in nat.

        A token that is not among the other's likeliest ones counts as if it were the last of them.
        """
        last = min(other.chances.values())
        gaps = [abs(chance - other.chances.get(token, last)) for token, chance in self.chances.items()]
        return sum(gaps) / len(gaps)


class PromptReader:
    """Sends prompts to one server."""

    def __init__(
        self, client: openai.AsyncOpenAI, endpoint: Endpoint, api_key: str | None, block: int
    ) -> None:
        self.endpoint = endpoint
        self.block = block
        self._client = client
        self._api_key = api_key
        self._run = secrets.token_hex(8)
        self._salts = 0
        self._other: list[int] = []

    def salt(self) -> str:
        """Return a new salt: no cache has a prefix with it."""
        self._salts += 1
        return f"{self._run}-{self._salts}"

    async def text(self, tokens: int) -> list[int]:
        """Return the ids of source code that is not secret, repeated to this length.

        Raises:
            NotComparable: The server does not report token ids, or its window is too small.
            ModelServerError: It did not answer.
        """
        window = self.endpoint.max_model_len
        if window is not None and window <= tokens:
            raise NotComparable(f"the window of {window:,} tokens is too small")
        ids = await token_ids(self._client, self.endpoint, sample_text()[:_CHARACTERS], self._api_key)
        if not ids:
            raise NotComparable("the server does not return token ids")
        self._other = ids[-self.block :]
        return (ids * (tokens // len(ids) + 1))[:tokens]

    async def read(self, ids: Sequence[int], salt: str) -> Reading:
        """Send a prompt and return what the server made of it.

        Raises:
            NotComparable: The answer lacks log probabilities or the number of tokens.
            ModelServerError: There was no answer.
        """
        try:
            answer = await complete(
                *(self._client, self.endpoint, self._api_key, list(ids)),
                max_tokens=1,
                logprobs=_CANDIDATES,
                return_tokens_as_token_ids=True,
                cache_salt=salt,
            )
            usage = answer["usage"]
            chances = answer["choices"][0]["logprobs"]["top_logprobs"][0]
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            known = {str(token): float(chance) for token, chance in chances.items()}
            if not known:
                raise ValueError("there are no candidates")
            return Reading(int(usage["prompt_tokens"]), None if cached is None else int(cached), known)
        except (LookupError, TypeError, ValueError, AttributeError):
            raise NotComparable("the server does not report log probabilities of the next token") from None

    async def compare(self, ids: Sequence[int], salt: str, known: Reading | None = None) -> Comparison:
        """Read a prompt with this salt, with a new one, and with a block replaced.

        Args:
            salt: The salt whose cache has a part of the prompt.
            known: A right answer of the same shape, if there is one.

        Raises:
            NotComparable, ModelServerError: As `read`.
        """
        warm = await self.read(ids, salt)
        cold = await self.read(ids, self.salt())
        wrong = await self.read(self._with_a_wrong_block(ids), self.salt())
        return Comparison(len(ids), warm, cold, wrong, known)

    def _with_a_wrong_block(self, ids: Sequence[int]) -> list[int]:
        """Return the prompt with other text in place of its last whole block before the last token.

        The same tokens in another order would not do: random weights attend to all of them alike.
        """
        end = (len(ids) - 1) // self.block * self.block
        return [*ids[: end - self.block], *self._other, *ids[end:]]

    async def reset_cache(self) -> bool:
        """Evict all prompts from the GPUs' cache; return False where the server does not offer it (VLLM_SERVER_DEV_MODE=1)."""
        try:
            url = f"{self.endpoint.url.removesuffix('/v1')}/reset_prefix_cache"
            await post(self._client, url, {}, self._api_key)
        except ModelServerError:
            return False
        return True

    async def counter(self, name: str) -> float | None:
        """Return the total of a counter in the server's metrics; None without it."""
        return await counter(self._client, self.endpoint, self._api_key, name)


@dataclass(frozen=True)
class Comparison:
    """One prompt, read in three ways."""

    length: int
    warm: Reading
    """With the cache."""
    cold: Reading
    """Without it."""
    wrong: Reading
    """Without it, and with one block replaced."""
    known: Reading | None = None
    """A right answer from a cache, if the caller has one."""

    @property
    def scale(self) -> float:
        """Difference that a wrong block makes, in nat."""
        return self.cold.difference(self.wrong)

    @property
    def fault(self) -> str:
        """What is wrong with the answer from the cache; empty if nothing is."""
        if self.warm.prompt != self.length:
            return f"the server counted {self.warm.prompt:,} of {self.length:,} tokens of the prompt"
        if self.undecided:
            return ""
        right = [self.cold] if self.known is None else [self.cold, self.known]
        gap = min(answer.difference(self.warm) for answer in right)
        if gap > min(self.scale / 2, MOST_DIFFERENCE):
            return (
                f"after {self.length:,} tokens the answer from the cache differs by {gap:.3g} nat from the computed one; "
                f"a wrong block makes {self.scale:.3g}"
            )
        return ""

    @property
    def undecided(self) -> str:
        """Why the answers cannot be judged; empty if they can be."""
        if self.cold.cached:
            return "the server ignores cache_salt, so no answer is computed without its cache"
        if self.scale < LEAST_SCALE:
            return f"a wrong block changes the next token's log probabilities by only {self.scale:.1g} nat"
        return ""


async def compared(
    name: str,
    compare: Callable[[PromptReader, EngineState], Awaitable[Check]],
    endpoint: Endpoint,
    *,
    api_key: str | None,
    seconds: float,
) -> list[Check]:
    """Compare the prompts of a running vLLM; never raise because of the server's answers.

    Returns:
        One check; none for other engines, which have no salt for their cache in the same form.
    """
    if endpoint.flavour != "vllm":
        return []
    state = await engine_state(endpoint, api_key=api_key)
    async with open_client(endpoint.url, api_key, connect=10.0, read=seconds) as client:
        reader = PromptReader(client, endpoint, api_key, state.block_size or BLOCK)
        try:
            return [await compare(reader, state)]
        except (NotComparable, ModelServerError) as error:
            return [Check(name, None, f"not compared: {error}")]


PARTIAL, RESTORED = "partial prefix", "restored prefix"
BLOCKS = 3
"""Whole blocks of the shortest prompt: the one that ends inside the fourth is the smallest with a block to replace."""
STEPS = (1, 63, 64, 127, 128, 128, 129)
"""Tokens beyond `BLOCKS` blocks of 128: around the middle and the ends of a block. Each prompt continues the one before."""
LOOKAHEAD = Version("0.33")
"""First vLLM that keeps the last matched block although it has a draft."""
TEXTS = 3
"""Prompts that must all show a fault of the same length: one may differ by chance (see prefix_checks.py)."""
LENGTH = 4 * BLOCK + 70
"""Tokens of the restored prompt: a few blocks and an end inside one. In a long prompt, a wrong block makes little difference."""
MOST_FLOOD = 32_768
"""Most tokens of one prompt of the flood."""
_HITS, _QUERIES = "vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_queries_total"
_FIX = "start it with --no-enable-prefix-caching until the engine is mended, and look for a proxy that changes prompts"


async def partial_prefix_check(endpoint: Endpoint, *, api_key: str | None) -> list[Check]:
    """Check a running vLLM, as `compared` does."""
    return await compared(PARTIAL, _partial, endpoint, api_key=api_key, seconds=120.0)


async def _partial(reader: PromptReader, state: EngineState) -> Check:
    block = reader.block
    lengths = [block * BLOCKS + step * block // BLOCK for step in STEPS]
    text, salt, before, reused = await reader.text(TEXTS * max(lengths)), reader.salt(), 0, 0
    for length in lengths:
        comparison = await reader.compare(text[:length], salt)
        for number in range(1, TEXTS):
            if not comparison.fault:
                break
            other, other_salt = text[number * max(lengths) :], reader.salt()
            if before:
                await reader.read(other[:before], other_salt)
            comparison = await reader.compare(other[:length], other_salt)
        whole = min(before, length - 1) // block * block
        # With a host cache, vLLM 0.24 counts all blocks of a prompt that ends with a block, although it computes the last token.
        most = min(before, length) // block * block
        if fault := comparison.fault or _too_many(comparison, most):
            return Check(PARTIAL, False, fault, _FIX)
        if comparison.undecided:
            return Check(PARTIAL, None, f"not compared: {comparison.undecided}")
        least = max(0, whole - block) if drops_a_block(reader.endpoint, state) else whole
        if comparison.warm.cached is not None and comparison.warm.cached < least:
            detail = f"not compared: {comparison.warm.cached:,} of {least:,} tokens came from the cache; it may be full or off"
            return Check(PARTIAL, None, detail)
        before, reused = length, reused + (comparison.warm.cached or 0)
    if not reused:
        return Check(
            PARTIAL, None, "not compared: no tokens came from the cache, or the server does not report them"
        )
    detail = f"{len(lengths)} prefixes that end inside and between blocks give the same answers"
    return Check(PARTIAL, True, f"{detail}, {reused:,} tokens from the cache")


def _too_many(comparison: Comparison, most: int) -> str:
    if comparison.warm.cached is None or comparison.warm.cached <= most:
        return ""
    return (
        f"{comparison.warm.cached:,} tokens came from the cache, which can have only {most:,} of this prompt"
    )


def drops_a_block(endpoint: Endpoint, state: EngineState) -> bool:
    """Return whether the engine computes the last matched block again: vLLM before 0.33 with a draft."""
    try:
        return state.drafts is not None and Version(endpoint.version or "") < LOOKAHEAD
    except InvalidVersion:
        return state.drafts is not None


async def restored_prefix_check(endpoint: Endpoint, *, api_key: str | None) -> list[Check]:
    """Evict a prompt from the GPUs of a running vLLM, which slows other requests down, and read it again, as `compared` does."""
    return await compared(RESTORED, _restored, endpoint, api_key=api_key, seconds=300.0)


async def _restored(reader: PromptReader, state: EngineState) -> Check:
    ids, salt = await reader.text(LENGTH), reader.salt()
    await reader.read(ids, salt)
    again = await reader.read(ids, salt)
    if not again.cached:
        raise NotComparable("the server does not find a prompt in its cache, or does not say so")
    hits, queries = await reader.counter(_HITS), await reader.counter(_QUERIES)
    if not await reader.reset_cache():
        await _flood(reader, state)
    comparison = await reader.compare(ids, salt, again)
    hits_now, queries_now = await reader.counter(_HITS), await reader.counter(_QUERIES)
    if hits is None or hits_now is None or queries == queries_now:
        return Check(RESTORED, None, "not compared: the server has no host cache (--host-cache)")
    if fault := comparison.fault:
        fix = "start it without --host-cache, and report the engine's version"
        return Check(RESTORED, False, f"a prefix that left the GPUs comes back wrong: {fault}", fix)
    if comparison.undecided:
        return Check(RESTORED, None, f"not compared: {comparison.undecided}")
    if hits_now == hits:
        if comparison.warm.cached:
            return Check(RESTORED, None, "not compared: the prefix did not leave the GPUs")
        fix = "give --host-cache more GB than the GPUs' cache has, and with a draft use vLLM 0.30 or later"
        return Check(
            RESTORED, False, "a prefix that left the GPUs is computed again: the host cache had nothing", fix
        )
    detail = f"{comparison.warm.cached or 0:,} of {LENGTH:,} tokens that left the GPUs came back, with the same answer"
    return Check(RESTORED, True, detail)


async def _flood(reader: PromptReader, state: EngineState) -> None:
    """Send other prompts until the GPUs' cache has none of the earlier ones."""
    if not state.kv_tokens:
        raise NotComparable("the capacity of the cache is not known, so it cannot be flooded")
    capacity, window = sum(state.kv_tokens), reader.endpoint.max_model_len or MOST_FLOOD
    ids = await reader.text(min(MOST_FLOOD, window - 2, capacity))
    for _ in range(capacity // len(ids) + 2):
        await reader.read(ids, reader.salt())
