"""Tokenize text with the server's own tokenizer, by `/tokenize`, which vLLM and SGLang have beside /v1."""

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
    """Return the number of tokens of a text; None if the server gives none."""
    try:
        answer = await _tokenize(client, endpoint, {"prompt": text}, api_key)
    except ModelServerError:
        return None  # the server does not have this page, or refuses
    tokens, count = answer.get("tokens"), answer.get("count")
    count = count if isinstance(count, int) else len(tokens) if isinstance(tokens, list) else 0
    return count if count > 0 else None


async def token_ids(
    client: openai.AsyncOpenAI, endpoint: Endpoint, text: str, api_key: str | None
) -> list[int] | None:
    """Return the token ids of a text, without special tokens.

    Returns:
        The ids; None if the response has none.

    Raises:
        ModelServerError: One of the errors of `m3agent.serving.errors`.
    """
    parameters = {"prompt": text, "add_special_tokens": False}
    ids = (await _tokenize(client, endpoint, parameters, api_key)).get("tokens")
    return [int(number) for number in ids] if isinstance(ids, list) and all(map(_is_id, ids)) else None


async def _tokenize(
    client: openai.AsyncOpenAI, endpoint: Endpoint, parameters: dict[str, Any], api_key: str | None
) -> dict[str, Any]:
    """Return the response of `/tokenize`; an empty dictionary if it is not a JSON object."""
    url = f"{endpoint.url.removesuffix('/v1')}/tokenize"
    try:
        answer = json.loads(await post(client, url, {"model": endpoint.model, **parameters}, api_key))
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
