"""Check that a cached prefix which ends inside a block gives the same answer as a computed one.

Caches keep whole blocks, so a conversation that grows by a few tokens reuses all but its last, incomplete block. Engines
that get this wrong answer rightly when a prefix ends with a block, and wrongly when it does not; no error shows it.
"""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from m3agent.serving.check.check import Check
from m3agent.serving.check.engine_state import EngineState
from m3agent.serving.check.prompt_reader import BLOCK, Comparison, PromptReader, compared
from m3agent.serving.client.endpoint import Endpoint

NAME = "partial prefix"
BLOCKS = 3
"""Whole blocks of the shortest prompt: the one that ends inside the fourth is the smallest with a block to replace."""
STEPS = (1, 63, 64, 127, 128, 128, 129)
"""Tokens beyond `BLOCKS` blocks of 128: around the middle and the ends of a block. Each prompt continues the one before."""
LOOKAHEAD = Version("0.33")
"""First vLLM that keeps the last matched block although it has a draft."""
TEXTS = 3
"""Prompts that must all show a fault of the same length: one may differ by chance (see prompt_reader.py)."""
_SECONDS = 120.0
_FIX = "start it with --no-enable-prefix-caching until the engine is mended, and look for a proxy that changes prompts"


async def partial_prefix_check(endpoint: Endpoint, *, api_key: str | None) -> list[Check]:
    """Check a running vLLM, as `compared` does."""
    return await compared(NAME, _compare, endpoint, api_key=api_key, seconds=_SECONDS)


async def _compare(reader: PromptReader, state: EngineState) -> Check:
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
            return Check(NAME, False, fault, _FIX)
        if found.undecided:
            return Check(NAME, None, f"not compared: {found.undecided}")
        least = max(0, whole - block) if drops_a_block(reader.endpoint, state) else whole
        if found.warm.cached is not None and found.warm.cached < least:
            detail = f"not compared: {found.warm.cached:,} of {least:,} tokens came from the cache; it may be full or off"
            return Check(NAME, None, detail)
        before, reused = length, reused + (found.warm.cached or 0)
    if not reused:
        return Check(
            NAME, None, "not compared: no tokens came from the cache, or the server does not report them"
        )
    detail = f"{len(lengths)} prefixes that end inside and between blocks give the same answers"
    return Check(NAME, True, f"{detail}, {reused:,} tokens from the cache")


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
