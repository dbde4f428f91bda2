"""A real HTTP server on loopback with a prefix cache and a tokenizer, as far as an examination goes into them."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.servers.loopback import LoopbackServer, QuietHandler

BLOCK = 128
"""Tokens that are kept together; a word is a token here."""


class EngineServer(LoopbackServer):
    """Completions, /tokenize and vLLM's metrics; `missing` are paths that it does not have.

    With `caching` it keeps whole blocks of prompts; with `reporting` usage says how many tokens it found. Tokenizing
    takes `tokenizer_seconds` for a million tokens.
    """

    def __init__(
        self,
        *,
        caching: bool = True,
        reporting: bool = True,
        tokenizer_seconds: float = 0.0,
        missing: tuple[str, ...] = (),
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
                text = f'vllm:prefix_cache_hits_total{{engine="0"}} {float(server.hits)}\n'
                self._answer(text if self.path == "/metrics" else None)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.paths.append(self.path)
                match self.path:
                    case "/v1/completions":
                        self._answer(json.dumps(server._complete(body["prompt"])))
                    case "/tokenize":
                        self._answer(json.dumps(server._tokenize(body["prompt"])))
                    case _:
                        self._answer(None)

            def _answer(self, text: str | None) -> None:
                found = text is not None and self.path not in server.missing
                data = (text if found and text is not None else '{"detail": "Not Found"}').encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        super().__init__(Handler)

    @property
    def url(self) -> str:
        return f"http://{self.host}/v1"

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
