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

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from m3agent.serving.check.check import Check
from m3agent.serving.check.engine_state import EngineState, engine_state, parse_metrics, total
from m3agent.serving.check.prefix_probe import sample_text
from m3agent.serving.client.endpoint import Endpoint, get, post
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
        body = {
            "model": self.endpoint.model,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": _CANDIDATES,
            "return_tokens_as_token_ids": True,
            "cache_salt": salt,
        }
        try:
            answer = json.loads(
                await post(self._client, f"{self.endpoint.url}/completions", body, self._api_key)
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
        try:
            page = await get(self._client, f"{self.endpoint.url.removesuffix('/v1')}/metrics", self._api_key)
            return total(parse_metrics(page), name)
        except (ModelServerError, ValueError):
            return None


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
