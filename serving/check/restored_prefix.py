"""Check that a prefix which left the GPUs comes back from the host cache, and that it is still right.

This evicts the GPUs' cache, so other requests become slower for a while: it runs only on demand.
"""

from __future__ import annotations

from m3agent.serving.check.check import Check
from m3agent.serving.check.engine_state import EngineState
from m3agent.serving.check.prompt_reader import BLOCK, NotComparable, PromptReader, compared
from m3agent.serving.client.endpoint import Endpoint

NAME = "restored prefix"
LENGTH = 4 * BLOCK + 70
"""Tokens of the prompt: a few blocks and an end inside a block. In a long prompt, one wrong block makes little difference."""
MOST_FLOOD = 32_768
"""Most tokens of one prompt of the flood."""
_HITS, _QUERIES = "vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_queries_total"
_SECONDS = 300.0


async def restored_prefix_check(endpoint: Endpoint, *, api_key: str | None) -> list[Check]:
    """Evict a prompt from the GPUs of a running vLLM, and read it again, as `compared` does."""
    return await compared(NAME, _compare, endpoint, api_key=api_key, seconds=_SECONDS)


async def _compare(reader: PromptReader, state: EngineState) -> Check:
    ids, salt = await reader.text(LENGTH), reader.salt()
    await reader.read(ids, salt)
    again = await reader.read(ids, salt)
    if not again.cached:
        raise NotComparable("the server does not find a prompt in its cache, or does not say so")
    hits, queries = await reader.counter(_HITS), await reader.counter(_QUERIES)
    if not await reader.reset_cache():
        await _flood(reader, state)
    found = await reader.compare(ids, salt, again)
    hits_now, queries_now = await reader.counter(_HITS), await reader.counter(_QUERIES)
    if hits is None or hits_now is None or queries == queries_now:
        return Check(NAME, None, "not compared: the server has no host cache (--host-cache)")
    if fault := found.fault:
        fix = "start it without --host-cache, and report the engine's version"
        return Check(NAME, False, f"a prefix that left the GPUs comes back wrong: {fault}", fix)
    if found.undecided:
        return Check(NAME, None, f"not compared: {found.undecided}")
    if hits_now == hits:
        if found.warm.cached:
            return Check(NAME, None, "not compared: the prefix did not leave the GPUs")
        fix = "give --host-cache more GB than the GPUs' cache has, and with a draft use vLLM 0.30 or later"
        return Check(
            NAME, False, "a prefix that left the GPUs is computed again: the host cache had nothing", fix
        )
    detail = (
        f"{found.warm.cached or 0:,} of {LENGTH:,} tokens that left the GPUs came back, with the same answer"
    )
    return Check(NAME, True, detail)


async def _flood(reader: PromptReader, state: EngineState) -> None:
    """Send other prompts until the GPUs' cache has none of the earlier ones.

    Raises:
        NotComparable: The capacity of the cache is not known.
        ModelServerError: There was no answer.
    """
    if not state.kv_tokens:
        raise NotComparable("the capacity of the cache is not known, so it cannot be flooded")
    capacity, window = sum(state.kv_tokens), reader.endpoint.max_model_len or MOST_FLOOD
    ids = await reader.text(min(MOST_FLOOD, window - 2, capacity))
    for _ in range(capacity // len(ids) + 2):
        await reader.read(ids, reader.salt())
