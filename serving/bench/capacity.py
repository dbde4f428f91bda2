"""How many tokens a running server's cache has room for, by its own account."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from m3agent.serving.endpoint import Endpoint, get
from m3agent.serving.errors import ModelServerError

if TYPE_CHECKING:
    import openai

_BLOCKS = re.compile(r'[{,]num_gpu_blocks="([0-9]+)"')
_BLOCK_SIZE = re.compile(r'[{,]block_size="([0-9]+)"')


async def kv_tokens(client: openai.AsyncOpenAI, endpoint: Endpoint, api_key: str | None) -> int | None:
    """Room for tokens on each rank, from the page of metrics; None where the server has none or does not say.

    vLLM tells blocks and their size as labels of `vllm:cache_config_info`, once for each data-parallel rank; SGLang
    tells tokens as `sglang:max_total_num_tokens`, where it was started with --enable-metrics.
    """
    try:
        page = await get(client, f"{endpoint.url.removesuffix('/v1')}/metrics", api_key)
    except ModelServerError:
        return None
    return read_kv_tokens(page)


def read_kv_tokens(page: str) -> int | None:
    """The same from the page's text; of several ranks the smallest."""
    found: list[int] = []
    for line in page.splitlines():
        if line.startswith("vllm:cache_config_info{"):
            blocks, size = _BLOCKS.search(line), _BLOCK_SIZE.search(line)
            if blocks and size:
                found.append(int(blocks[1]) * int(size[1]))
        elif line.startswith("sglang:max_total_num_tokens"):
            value = line.rpartition(" ")[2]
            if re.fullmatch(r"[0-9.]+(?:e\+[0-9]+)?", value):
                found.append(int(float(value)))
    return min(found, default=None) or None
