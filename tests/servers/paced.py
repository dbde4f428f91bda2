"""A real HTTP server on loopback with the timing of a model server, on a small scale.

It takes time for each token that its cache lacks, then for each token that it generates. Its usage is honest.

As a program (`python -m tests.servers.paced '{"dies_after": 5}'`) it prints its address and serves until it is ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from tests.servers.misbehaving import MODEL, MisbehavingServer, delta, finish, usage

BLOCK = 128
"""Tokens in one block of the cache."""
TEMPLATE = 23
"""Tokens that the chat template adds to the text."""
METRICS = (
    'vllm:cache_config_info{_block_size_resolved="True",block_size="128",cache_dtype="auto",engine="0",'
    'num_cpu_blocks="None",num_gpu_blocks="38902",num_gpu_blocks_override="None"} 1.0\n'
)

_TOKEN = re.compile(r" ?\w+|\W")


class PacedServer(MisbehavingServer):
    """`prefill` and `decode` are seconds a token. Requests prefill one after the other and decode concurrently.

    `owner` is the owner that it reports for its model. With `caching` it caches whole blocks of prompts. With
    `reporting` its usage says how many tokens were cached; with `boasting` it says that all were. With `tokenizing` it
    serves /tokenize. An answer has `min_tokens` tokens, but at least 5. With `role_first` it sends the event with the
    role before the prefill, otherwise after it. The first `mute` tokens send no event. Chat requests whose number (from
    1) is in `fails` get status 500. Its whole process ends in the middle of its answer to request number `dies_after`. With a
    number for `accepting` its metrics show a draft.
    """

    def __init__(
        self,
        *,
        prefill: float = 10e-6,
        decode: float = 1e-3,
        owner: str = "vllm",
        window: int | None = 100_000,
        caching: bool = True,
        reporting: bool = True,
        boasting: bool = False,
        tokenizing: bool = True,
        role_first: bool = False,
        mute: int = 0,
        fails: tuple[int, ...] = (),
        dies_after: int | None = None,
        accepting: float | None = None,
    ) -> None:
        super().__init__()
        model = {"id": MODEL, "owned_by": owner} | ({} if window is None else {"max_model_len": window})
        self.pages["/v1/models"] = {"object": "list", "data": [model]}
        self.prefill, self.decode = prefill, decode
        self.caching, self.reporting, self.boasting = caching, reporting, boasting
        self.tokenizing, self.role_first, self.mute = tokenizing, role_first, mute
        self.fails, self.dies_after, self.accepting = fails, dies_after, accepting
        self.bodies: list[dict[str, Any]] = []
        self.prompts: list[int] = []
        """Tokens of each chat's prompt."""
        self.most_at_once = 0
        self._at_once = 0
        self._kept: set[int] = set()
        self._prefilling = asyncio.Lock()

    async def _handle(self, request: Request) -> Response:
        if request.url.path == "/metrics":
            return PlainTextResponse(METRICS + self._drafts())
        if request.url.path == "/tokenize" and self.tokenizing:
            tokens = _TOKEN.findall((await request.json())["prompt"])
            return JSONResponse({"count": len(tokens), "tokens": list(range(len(tokens)))})
        if request.url.path != "/v1/chat/completions":
            return await super()._handle(request)
        body = await request.json()
        self.bodies.append(body)
        if len(self.bodies) in self.fails:
            return JSONResponse({"error": {"message": "the engine tripped"}}, 500)
        return StreamingResponse(self._answer(body, len(self.bodies)), media_type="text/event-stream")

    def _drafts(self) -> str:
        """Return the metrics of a draft, of which `accepting` tokens are accepted in each step since the start."""
        if self.accepting is None:
            return ""
        drafts = 1000 + 10 * len(self.bodies)
        accepted = 500 + 10 * len(self.bodies) * self.accepting
        return (
            f"vllm:spec_decode_num_drafts_total {drafts}\n"
            f"vllm:spec_decode_num_accepted_tokens_total {accepted}\n"
        )

    async def _answer(self, body: dict[str, Any], number: int) -> AsyncIterator[str]:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            async for event in self._events(body, number):
                yield event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n"
        finally:
            self._at_once -= 1

    async def _events(self, body: dict[str, Any], number: int) -> AsyncIterator[dict[str, Any] | str]:
        role = delta(role="assistant", content="")
        if self.role_first:
            yield role
        async with self._prefilling:
            prompt, cached = self._look_up(body["messages"])
            await asyncio.sleep((prompt - cached) * self.prefill)
        if not self.role_first:
            yield role
        count = min(body["max_tokens"], max(5, body.get("min_tokens", 0)))
        for token in range(count):
            await asyncio.sleep(self.decode)
            if number == self.dies_after and token == count // 2:
                os._exit(1)
            if token >= self.mute:
                yield delta(content=f" word{token}")
        yield finish("length" if body.get("ignore_eos") else "stop")
        told = prompt if self.boasting else cached
        yield usage(
            prompt, count, **({"prompt_tokens_details": {"cached_tokens": told}} if self.reporting else {})
        )
        yield "data: [DONE]\n\n"

    def _look_up(self, messages: list[dict[str, str]]) -> tuple[int, int]:
        """Return the tokens of a prompt, and how many of them are cached."""
        tokens = _TOKEN.findall("\n".join(message["content"] for message in messages))
        prompt = len(tokens) + TEMPLATE
        self.prompts.append(prompt)
        before, cached, whole = 0, 0, True
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            before = hash((before, tuple(tokens[start : start + BLOCK])))
            whole = whole and before in self._kept
            cached += BLOCK if whole else 0
            if self.caching:
                self._kept.add(before)
        return prompt, cached


if __name__ == "__main__":
    with PacedServer(**json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}) as running:
        print(running.url, flush=True)  # noqa: T201
        threading.Event().wait()
