"""A proxy between m3agent and vLLM that makes a real engine write the lines of a script.

Random weights write nonsense, so a grammar determines the text. The proxy adds `structured_outputs` to each chat request,
with a regular expression that matches only one text. The engine samples that text with its real tokenizer and sends it
through its real reasoning and tool parsers. The proxy changes nothing else, in requests or in answers.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Sequence
from urllib.parse import urlsplit

from m3agent.serving.check.script import expression
from tests.servers.loopback import LoopbackServer, QuietHandler

CHAT = "/v1/chat/completions"
_RELAYED = {"content-type", "retry-after"}


class RelayingProxy(LoopbackServer):
    """Relays each request to an engine, on a free port of 127.0.0.1. Use it as a context manager.

    A subclass changes requests in `changed`, and learns the answers in `heard`.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        proxy = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                proxy._relay(self, None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                proxy._relay(self, proxy.changed(self.path, body))

        super().__init__(Handler)

    @property
    def url(self) -> str:
        return f"http://{self.host}/v1"

    def changed(self, path: str, body: bytes) -> bytes:
        """Return the body to send in place of this one."""
        del path
        return body

    def heard(self, path: str, answer: bytes) -> None:
        """Receive a complete answer."""

    def _relay(self, asked: QuietHandler, body: bytes | None) -> None:
        upstream = http.client.HTTPConnection(self._upstream.hostname or "", self._upstream.port, timeout=600)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            upstream.request(asked.command, asked.path, body, headers)
            answer = upstream.getresponse()
        except OSError as error:
            asked.send_error(502, str(error))
            return
        asked.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() in _RELAYED:
                asked.send_header(name, value)
        asked.send_header("Transfer-Encoding", "chunked")
        asked.end_headers()
        kept = bytearray()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client has disconnected
            while piece := answer.read1(1 << 16):
                kept += piece
                asked.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.heard(asked.path, bytes(kept))
            asked.wfile.write(b"0\r\n\r\n")
        upstream.close()


class ScriptingProxy(RelayingProxy):
    """The proxy that adds a grammar.

    The number of assistant messages in a request determines its turn, so a repeated request gets the same line.

    Attributes:
        lines: M3's answers, one for each turn.
        requests: Bodies of the chat requests, as they arrived.
        answers: Bytes of each answered stream.
    """

    def __init__(self, upstream: str, lines: Sequence[str]) -> None:
        self.lines = lines
        self.requests: list[bytes] = []
        self.answers: list[bytes] = []
        super().__init__(upstream)

    def changed(self, path: str, body: bytes) -> bytes:
        """Add the grammar to a chat request."""
        return self._with_grammar(body) if path == CHAT else body

    def heard(self, path: str, answer: bytes) -> None:
        """Keep the answers to chat requests."""
        if path == CHAT:
            self.answers.append(answer)

    def _with_grammar(self, body: bytes) -> bytes:
        """Return the request with the grammar for its line; the request's own bytes do not change."""
        self.requests.append(body)
        request = json.loads(body)
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        line = self.lines[min(turn, len(self.lines) - 1)]
        if request.get("chat_template_kwargs", {}).get("thinking_mode") == "enabled":
            line = line.removeprefix("<mm:think>")  # the prompt already ends with this tag
        grammar = json.dumps({"structured_outputs": {"regex": expression(line)}}, ensure_ascii=False)
        return body.rstrip()[:-1] + b"," + grammar[1:].encode()
