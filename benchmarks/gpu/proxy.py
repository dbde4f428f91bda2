"""A proxy between m3agent and vLLM that makes a real engine write the lines of a script.

Random weights write nonsense, so a grammar determines the text. To each chat request it adds `structured_outputs` with a regular expression that matches one
text only, so the engine samples that text through its real tokenizer and sends it through its real reasoning and tool
parsers. Nothing else is changed, on the way there or back.
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


class ScriptingProxy(LoopbackServer):
    """Serves on a free port of 127.0.0.1 while it is entered; `lines` holds M3's answers, one for each turn.

    Which turn a request is for follows from the assistant messages in it, so that a request sent again gets the same
    line. `requests` keeps the bodies as they came in, `answers` the bytes of each answered stream.
    """

    def __init__(self, upstream: str, lines: Sequence[str]) -> None:
        self.lines = lines
        self.requests: list[bytes] = []
        self.answers: list[bytes] = []
        self._upstream = urlsplit(upstream)
        proxy = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                proxy._relay(self, None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                proxy._relay(self, proxy._told(body) if self.path == CHAT else body)

        super().__init__(Handler)

    @property
    def url(self) -> str:
        return f"http://{self.host}/v1"

    def _told(self, body: bytes) -> bytes:
        """The request with its line; its own bytes stay as they are."""
        self.requests.append(body)
        request = json.loads(body)
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        line = self.lines[min(turn, len(self.lines) - 1)]
        if request.get("chat_template_kwargs", {}).get("thinking_mode") == "enabled":
            line = line.removeprefix("<mm:think>")  # the prompt ends with it
        told = json.dumps({"structured_outputs": {"regex": expression(line)}}, ensure_ascii=False)
        return body.rstrip()[:-1] + b"," + told[1:].encode()

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
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # whoever asked no longer waits
            while piece := answer.read1(1 << 16):
                kept += piece
                asked.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            if asked.path == CHAT:
                self.answers.append(bytes(kept))
            asked.wfile.write(b"0\r\n\r\n")
        upstream.close()
