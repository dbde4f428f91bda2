"""Check that a cached prefix gives the same answer as a computed one: if it ends inside a block, and if it left the GPUs.

Caches keep whole blocks, so a conversation that grows by a few tokens reuses all but its last, incomplete block. Engines
that get this wrong answer rightly when a prefix ends with a block, and wrongly when it does not; no error shows it.
"""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from m3agent.serving.check.check import Check
from m3agent.serving.check.engine_state import EngineState
from m3agent.serving.check.prompt_reader import BLOCK, Comparison, NotComparable, PromptReader, compared
from m3agent.serving.client.endpoint import Endpoint

PARTIAL, RESTORED = "partial prefix", "restored prefix"
BLOCKS = 3
"""Whole blocks of the shortest prompt: the one that ends inside the fourth is the smallest with a block to replace."""
STEPS = (1, 63, 64, 127, 128, 128, 129)
"""Tokens beyond `BLOCKS` blocks of 128: around the middle and the ends of a block. Each prompt continues the one before."""
LOOKAHEAD = Version("0.33")
"""First vLLM that keeps the last matched block although it has a draft."""
TEXTS = 3
"""Prompts that must all show a fault of the same length: one may differ by chance (see prompt_reader.py)."""
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
        found = await reader.compare(text[:length], salt)
        for number in range(1, TEXTS):
            if not found.fault:
                break
            other, other_salt = text[number * max(lengths) :], reader.salt()
            if before:
                await reader.read(other[:before], other_salt)
            found = await reader.compare(other[:length], other_salt)
        whole = min(before, length - 1) // block * block
        # With a host cache, vLLM 0.24 counts all blocks of a prompt that ends with a block, although it computes the last token.
        most = min(before, length) // block * block
        if fault := found.fault or _too_many(found, most):
            return Check(PARTIAL, False, fault, _FIX)
        if found.undecided:
            return Check(PARTIAL, None, f"not compared: {found.undecided}")
        least = max(0, whole - block) if drops_a_block(reader.endpoint, state) else whole
        if found.warm.cached is not None and found.warm.cached < least:
            detail = f"not compared: {found.warm.cached:,} of {least:,} tokens came from the cache; it may be full or off"
            return Check(PARTIAL, None, detail)
        before, reused = length, reused + (found.warm.cached or 0)
    if not reused:
        return Check(
            PARTIAL, None, "not compared: no tokens came from the cache, or the server does not report them"
        )
    detail = f"{len(lengths)} prefixes that end inside and between blocks give the same answers"
    return Check(PARTIAL, True, f"{detail}, {reused:,} tokens from the cache")


def _too_many(found: Comparison, most: int) -> str:
    if found.warm.cached is None or found.warm.cached <= most:
        return ""
    return f"{found.warm.cached:,} tokens came from the cache, which can have only {most:,} of this prompt"


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
    found = await reader.compare(ids, salt, again)
    hits_now, queries_now = await reader.counter(_HITS), await reader.counter(_QUERIES)
    if hits is None or hits_now is None or queries == queries_now:
        return Check(RESTORED, None, "not compared: the server has no host cache (--host-cache)")
    if fault := found.fault:
        fix = "start it without --host-cache, and report the engine's version"
        return Check(RESTORED, False, f"a prefix that left the GPUs comes back wrong: {fault}", fix)
    if found.undecided:
        return Check(RESTORED, None, f"not compared: {found.undecided}")
    if hits_now == hits:
        if found.warm.cached:
            return Check(RESTORED, None, "not compared: the prefix did not leave the GPUs")
        fix = "give --host-cache more GB than the GPUs' cache has, and with a draft use vLLM 0.30 or later"
        return Check(
            RESTORED, False, "a prefix that left the GPUs is computed again: the host cache had nothing", fix
        )
    detail = (
        f"{found.warm.cached or 0:,} of {LENGTH:,} tokens that left the GPUs came back, with the same answer"
    )
    return Check(RESTORED, True, detail)


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
