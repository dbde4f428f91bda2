"""Faults planted between m3agent and a sound engine, to see whether `m3agent serve check` finds them.

Each is what a proxy, a gateway or an engine in the field does wrong. Everything else reaches the engine as it was sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.gpu.proxy import CHAT, RelayingProxy

COMPLETIONS = "/v1/completions"
BLOCK = 128

Change = Callable[[dict[str, Any], bool], dict[str, Any]]
"""Returns the request to send; the second argument says whether the cache has the beginning of its prompt."""


class PlantingProxy(RelayingProxy):
    """Changes requests to one page.

    Args:
        upstream: Base address of the engine.
        path: The page.
        change: The fault.

    Attributes:
        planted: Number of requests that were changed.
    """

    def __init__(self, upstream: str, path: str, change: Change) -> None:
        self.planted = 0
        self._path, self._change = path, change
        self._seen: set[tuple[str, tuple[int, ...]]] = set()
        super().__init__(upstream)

    def changed(self, path: str, body: bytes) -> bytes:
        """Return the body with the fault."""
        if path != self._path:
            return body
        request = json.loads(body)
        faulty = self._change(request, self._has_beginning(request))
        if faulty == request:
            return body
        self.planted += 1
        return json.dumps(faulty).encode()

    def _has_beginning(self, request: Mapping[str, Any]) -> bool:
        """Return whether a request before had the first block of these token ids, with the same salt."""
        ids = request.get("prompt")
        if not isinstance(ids, list) or len(ids) <= 2 * BLOCK or not isinstance(ids[0], int):
            return False
        key = str(request.get("cache_salt")), tuple(ids[:BLOCK])
        known = key in self._seen
        self._seen.add(key)
        return known


def _adaptive(request: dict[str, Any], _: bool) -> dict[str, Any]:
    if "chat_template_kwargs" not in request:
        return request
    return request | {"chat_template_kwargs": {"thinking_mode": "adaptive"}}


def _without_a_block(request: dict[str, Any], cached: bool) -> dict[str, Any]:
    if not cached:
        return request
    ids, end = request["prompt"], (len(request["prompt"]) - 1) // BLOCK * BLOCK
    return request | {"prompt": [*ids[: end - BLOCK], *ids[end:]]}


def _with_a_wrong_block(request: dict[str, Any], cached: bool) -> dict[str, Any]:
    if not cached:
        return request
    ids, end = request["prompt"], (len(request["prompt"]) - 1) // BLOCK * BLOCK
    return request | {"prompt": [*ids[: end - BLOCK], *ids[:BLOCK], *ids[end:]]}


FAULTS: Mapping[str, tuple[str, str, Change]] = {
    "thinking adaptive": ("reasoning end", CHAT, _adaptive),
    "a block dropped": ("partial prefix", COMPLETIONS, _without_a_block),
    "a block wrong": ("partial prefix", COMPLETIONS, _with_a_wrong_block),
}
"""By name: the check that must fail, the page, and the change."""
