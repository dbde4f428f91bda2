"""What a server's own tokenizer makes of a text, by the page `/tokenize` that vLLM and SGLang have beside /v1."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from m3agent.serving.endpoint import Endpoint, post
from m3agent.serving.errors import ModelServerError

if TYPE_CHECKING:
    import openai


async def count_tokens(
    client: openai.AsyncOpenAI, endpoint: Endpoint, text: str, api_key: str | None
) -> int | None:
    """Tokens of a text; None where there is no answer."""
    try:
        answer = await _tokenize(client, endpoint, {"prompt": text}, api_key)
    except ModelServerError:
        return None  # it has no such page, or will not say
    tokens, count = answer.get("tokens"), answer.get("count")
    count = count if isinstance(count, int) else len(tokens) if isinstance(tokens, list) else 0
    return count if count > 0 else None


async def token_ids(
    client: openai.AsyncOpenAI, endpoint: Endpoint, text: str, api_key: str | None
) -> list[int] | None:
    """The ids of a text, no special tokens added; None where the answer has none.

    Raises the errors of `m3agent.serving.errors`.
    """
    parameters = {"prompt": text, "add_special_tokens": False}
    ids = (await _tokenize(client, endpoint, parameters, api_key)).get("tokens")
    return [int(number) for number in ids] if isinstance(ids, list) and all(map(_is_id, ids)) else None


async def _tokenize(
    client: openai.AsyncOpenAI, endpoint: Endpoint, parameters: dict[str, Any], api_key: str | None
) -> dict[str, Any]:
    """The page's answer, empty where it is no JSON object."""
    url = f"{endpoint.url.removesuffix('/v1')}/tokenize"
    try:
        answer = json.loads(await post(client, url, {"model": endpoint.model, **parameters}, api_key))
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
