"""How many tokens a text has, by the server's own tokenizer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from m3agent.serving.endpoint import Endpoint, post
from m3agent.serving.errors import ModelServerError

if TYPE_CHECKING:
    import openai


async def count_tokens(
    client: openai.AsyncOpenAI, endpoint: Endpoint, text: str, api_key: str | None
) -> int | None:
    """Tokens of a text by the page `/tokenize`, which vLLM and SGLang have beside /v1; None where there is no answer."""
    url = f"{endpoint.url.removesuffix('/v1')}/tokenize"
    try:
        answer = json.loads(await post(client, url, {"model": endpoint.model, "prompt": text}, api_key))
    except (ModelServerError, ValueError):
        return None  # it has no such page, or will not say
    if not isinstance(answer, dict):
        return None
    tokens, count = answer.get("tokens"), answer.get("count")
    count = count if isinstance(count, int) else len(tokens) if isinstance(tokens, list) else 0
    return count if count > 0 else None
