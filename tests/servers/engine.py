"""A real HTTP server on loopback with the parts of an engine that examinations use: prefix cache and tokenizer."""

from __future__ import annotations

import json
import time
from typing import Any, TypeAlias

from tests.servers.loopback import LoopbackServer, QuietHandler

Answer: TypeAlias = "str | tuple[int, str] | list[dict[str, Any]] | None"
"""JSON or text; status and text if the status is not 200; the events of a stream; None for a missing page."""

BLOCK = 128
"""Tokens in one block of the cache; here a word is a token."""


class EngineServer(LoopbackServer):
    """Serves completions, /tokenize and vLLM's metrics, except the paths in `missing`.

    With `caching` it caches whole blocks of prompts; with `reporting` its usage says how many tokens were cached.
    Tokenizing a million tokens takes `tokenizer_seconds`.
    """

    def __init__(
        self,
        *,
        caching: bool = True,
        reporting: bool = True,
        tokenizer_seconds: float = 0.0,
        missing: tuple[str, ...] = (),
        everywhere: bool = False,
        port: int = 0,
    ) -> None:
        self.caching = caching
        self.reporting = reporting
        self.tokenizer_seconds = tokenizer_seconds
        self.missing = missing
        self.hits = 0
        self.prompts: list[str] = []
        self.paths: list[str] = []
        self._kept: set[tuple[str, ...]] = set()
        server = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                self._send(
                    server.get(self.path, {name.lower(): value for name, value in self.headers.items()})
                )

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.paths.append(self.path)
                self._send(server.post(self.path, body))

            def _send(self, answer: Answer) -> None:
                if answer is None or self.path in server.missing:
                    answer = 404, '{"detail": "Not Found"}'
                if isinstance(answer, list):
                    self._stream(answer)
                    return
                status, text = (200, answer) if isinstance(answer, str) else answer
                self.answer(status, text.encode())

            def _stream(self, events: list[dict[str, Any]]) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                for event in [*map(json.dumps, events), "[DONE]"]:
                    self.wfile.write(f"data: {event}\n\n".encode())

        super().__init__(Handler, port, everywhere=everywhere)

    @property
    def url(self) -> str:
        return f"http://{self.host}/v1"

    def get(self, path: str, headers: dict[str, str]) -> Answer:
        """Return the answer to a GET; header names are in lower case."""
        hits = f'vllm:prefix_cache_hits_total{{engine="0"}} {float(self.hits)}\n'
        return {"/metrics": hits, "/health": "{}"}.get(path)

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        """Return the answer to a POST."""
        match path:
            case "/v1/completions":
                return json.dumps(self._complete(body["prompt"]))
            case "/tokenize":
                return json.dumps(self._tokenize(body["prompt"]))
        return None

    def _complete(self, prompt: str) -> dict[str, Any]:
        self.prompts.append(prompt)
        tokens = tuple(prompt.split())
        beginnings = [tokens[:end] for end in range(BLOCK, len(tokens) + 1, BLOCK)]
        cached = max((len(kept) for kept in beginnings if kept in self._kept), default=0)
        if self.caching:
            self._kept.update(beginnings)
        self.hits += cached
        usage: dict[str, Any] = {"prompt_tokens": len(tokens), "completion_tokens": 1}
        if self.reporting:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return {"choices": [{"text": "x", "finish_reason": "length"}], "usage": usage}

    def _tokenize(self, prompt: str) -> dict[str, Any]:
        count = len(prompt.split())
        time.sleep(count * self.tokenizer_seconds / 1e6)
        return {"count": count, "tokens": list(range(count))}
