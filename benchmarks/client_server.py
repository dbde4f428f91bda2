"""A model server that takes no time: it reads every chat request to its end and answers at once, from a script.

    python benchmarks/client_server.py [--deltas 150] [--pace MS]

It prints its port on one line, then serves until its standard input ends. The answer has the form of a turn of M3 on
vLLM: reasoning with one token per event, then one whole call; or one JSON object if the request asks for no stream. The
call reads fifty lines of `module.py`, never the same ones twice in a row, with the tool that the request offers:
`file_read` or `bash`. The server uses only the standard library and does not decode the request, so that no client has
to wait for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

MODEL = "minimax-m3"
FILE, LINES, SHOWN = "module.py", 2000, 50
WORDS = [
    "the",
    "value",
    "of",
    "it",
    "is",
    "read",
    "before",
    "the",
    "lock",
    "is",
    "held",
    "so",
    "that",
    "a",
    "second",
    "caller",
    "sees",
    "what",
    "the",
    "first",
    "one",
    "wrote",
]
BYTES_PER_TOKEN = (
    5  # a little more than in reality, so that 4 MB and 200 turns stay below the window of 1M tokens
)
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
# Inside a JSON string, a backslash precedes each quotation mark, so these match only keys of the request.
STREAM = re.compile(rb'"stream": *true')
BASH = re.compile(rb'"name": *"bash"')


def tokens(count: int) -> Iterator[str]:
    """Yield words as a tokenizer splits them, each with its leading blank."""
    return itertools.islice((f" {word}" for word in itertools.cycle(WORDS)), count)


def call(number: int, bash: bool) -> dict[str, Any]:
    """Return the tool call of turn `number`."""
    start = 1 + number * 7 % (LINES - SHOWN)
    end = start + SHOWN - 1
    name, arguments = "file_read", {"path": FILE, "start": start, "end": end}
    if bash:
        name, arguments = "bash", {"command": f"sed -n '{start},{end}p' {FILE}"}
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{number:08x}", "type": "function", "index": 0, "function": function}


class Script:
    """The scripted answers. `deltas` is the number of reasoning tokens before a call."""

    def __init__(self, deltas: int) -> None:
        self.deltas = deltas
        self._reasoning = [self._event({"reasoning": token}) for token in tokens(deltas)]
        self._numbers = itertools.count()

    def stream(self, request: bytes) -> list[bytes]:
        """Return the events of one answer."""
        made = call(next(self._numbers), bool(BASH.search(request)))
        return [
            self._event({"role": "assistant", "content": ""}),
            *self._reasoning,
            self._event({"tool_calls": [made]}),
            self._event({}, "tool_calls"),
            _sse({**_head("chat.completion.chunk"), "choices": [], "usage": self._usage(request)}),
            b"data: [DONE]\n\n",
        ]

    def whole(self, request: bytes) -> bytes:
        """Return the same answer as one JSON object."""
        made = call(next(self._numbers), bool(BASH.search(request)))
        message = {
            "role": "assistant",
            "content": None,
            "reasoning": "".join(tokens(self.deltas)),
            "tool_calls": [made],
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
        answer = {**_head("chat.completion"), "choices": [choice], "usage": self._usage(request)}
        return json.dumps(answer).encode()

    def _usage(self, request: bytes) -> dict[str, Any]:
        prompt, completion = len(request) // BYTES_PER_TOKEN, self.deltas + 40
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": prompt},
        }

    def _event(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
        return _sse({**_head("chat.completion.chunk"), "choices": [choice]})


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-0123456789abcdef", "object": kind, "created": 1795219200, "model": MODEL}


def _sse(event: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode()


class Server:
    """Answers each request of each connection. `pace` is the time between two events of a stream, in seconds."""

    def __init__(self, script: Script, pace: float) -> None:
        self.script = script
        self.pace = pace

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until the client closes it."""
        hung_up = (
            asyncio.IncompleteReadError,
            ConnectionError,
            asyncio.CancelledError,
        )  # by the client, or at our own end
        with contextlib.suppress(*hung_up), contextlib.closing(writer):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = LENGTH.search(head)
                if length is None or b"/chat/completions " not in head.split(b"\r\n", 1)[0]:
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    continue
                request = await reader.readexactly(int(length[1]))
                if STREAM.search(request):
                    await self._stream(writer, self.script.stream(request))
                else:
                    answer = self.script.whole(request)
                    writer.write(
                        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                        % (len(answer), answer)
                    )

    async def _stream(self, writer: asyncio.StreamWriter, events: list[bytes]) -> None:
        """Write each event separately, as a real server does."""
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for event in events:
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            if self.pace:
                await asyncio.sleep(self.pace)
        writer.write(b"0\r\n\r\n")


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--deltas", type=int, default=150, help="tokens of reasoning in each answer")
    parser.add_argument("--pace", type=float, default=0, metavar="MS", help="between two events of a stream")
    options = parser.parse_args()
    serve = Server(Script(options.deltas), options.pace / 1000).serve
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 22)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
