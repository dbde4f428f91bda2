"""The model of a chaos run: a server whose answers depend only on the request, so that it can be killed and restarted.

    python -m benchmarks.chaos.model PORT FOLDER [CUT]

It prints its port on a separate line (PORT 0: a free one), then serves until its standard input ends. It writes each chat
request to FOLDER/requests.jsonl before it answers. CUT, the JSON of a `Cut`, is a fault that occurs once.

The model makes the calls of `STEPS` in order. The results in a request show which ones are done. It repeats an interrupted
call under another id, as a real model would.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from m3agent.serving import wire
from tests.servers.dialects import Answer, Chunk, Vllm, arguments, frames, piece, pieces
from tests.servers.loopback import LoopbackServer, QuietHandler
from tests.servers.misbehaving import VLLM_MODELS

REQUESTS = "requests.jsonl"
FIRED = "fired"
"""File in the folder that exists once the fault has occurred."""
PACE = 0.002  # seconds between two writes of a stream, so that an external fault can interrupt it

TEST = wire.Call("test_runner", {"test_file": "."})
FIX = wire.Call("file_edit", {"path": "calc.py", "old": "return a - b", "new": "return a + b"})


def mark(number: int) -> wire.Call:
    """Return a call that adds a line to the work tree, which shows how often it ran, and then takes a while."""
    return wire.Call("code_exec", {"code": f"echo {number} >> trace.txt; sleep 0.2", "language": "bash"})


STEPS: tuple[tuple[wire.Call, ...], ...] = ((TEST,), (mark(1),), (FIX, mark(2)), (mark(3),), (TEST,))
"""The calls of each turn; the turn after the last says that it is done."""
TURNS = len(STEPS) + 1

Manner = Literal["reset", "closed", "short", "unframed", "ended", "killed"]
MANNERS: tuple[Manner, ...] = ("reset", "closed", "short", "unframed", "ended", "killed")
"""How a stream breaks off: a TCP reset; the connection closed between chunks; closed before the announced length; closed
where only the close marks the end of an answer; the last chunk sent too early; SIGKILL to the server."""


@dataclass(frozen=True)
class Cut:
    """The first answer in a turn (from 0) breaks off after this share of its bytes."""

    turn: int
    share: float
    manner: Manner


def answer(messages: Sequence[Mapping[str, Any]]) -> tuple[int, list[tuple[str, wire.Call]]]:
    """Return the next turn of the script, and its calls with their ids; no calls if everything is done."""
    results = {
        message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"
    }
    tried: dict[str, int] = {}
    done = set()
    for message in messages:
        for made in message.get("tool_calls", []):
            step = made["id"].rpartition("-")[0]
            tried[step] = tried.get(step, 0) + 1
            if not results.get(made["id"], "interrupted").startswith("interrupted"):
                done.add(step)
    for turn, calls in enumerate(STEPS):
        steps = {f"step-{turn}-{index}": call for index, call in enumerate(calls)}
        left = [(f"{step}-{tried.get(step, 0)}", call) for step, call in steps.items() if step not in done]
        if left:
            return turn, left
    return len(STEPS), []


def stream(turn: int, calls: Sequence[tuple[str, wire.Call]]) -> list[bytes]:
    """Return the events of an answer in vLLM's form, but with arguments in pieces: an answer can be cut at more places."""
    dialect = Vllm()
    text = "" if calls else "add() subtracted. It adds now, and the tests pass."
    whole = Answer("I go through it step by step; é🙂.", text, tuple(call for _, call in calls))
    called: list[Chunk] = []
    for index, (identity, call) in enumerate(calls):
        first, *more = pieces(arguments(call), 16)
        called.append(dialect.chunk({"tool_calls": [piece(index, call.name, first, identity)]}))
        called += [dialect.chunk({"tool_calls": [piece(index, None, each, None)]}) for each in more]
    chunks = [*dialect.begin(), *dialect.think(whole.reasoning, 8), *dialect.speak(text, 8), *called]
    return frames([*chunks, *dialect.end(whole, whole.finish, 20 + turn)], dialect)


class Model(LoopbackServer):
    """Serve the script on a port; record the requests in the folder."""

    def __init__(self, port: int, folder: Path, cut: Cut | None = None) -> None:
        model = self
        self._folder, self._cut = folder, cut

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                pages = {"/v1/models": VLLM_MODELS, "/version": {"version": "0.24.0"}}
                self._say(pages.get(self.path))

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                if len(body) < length:  # the client was killed while it sent
                    self.close_connection = True
                    return
                if self.path != "/v1/chat/completions":
                    self._say(None)
                    return
                with (folder / REQUESTS).open("ab", buffering=0) as file:
                    file.write(body + b"\n")
                turn, calls = answer(json.loads(body)["messages"])
                events = stream(turn, calls)
                cut = model.take_cut(turn)
                self._stream(events) if cut is None else self._break_off(b"".join(events), cut)

            def _say(self, page: Any) -> None:
                data = json.dumps(page or {"detail": "Not Found"}).encode()
                self.send_response(200 if page else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _begin(self, header: str, value: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header(header, value)
                self.end_headers()

            def _chunks(self, parts: Sequence[bytes]) -> None:
                for part in parts:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                    time.sleep(PACE)

            def _stream(self, events: Sequence[bytes]) -> None:
                self._begin("Transfer-Encoding", "chunked")
                self._chunks([*events, b""])

            def _break_off(self, whole: bytes, cut: Cut) -> None:
                part = whole[: max(1, round(cut.share * len(whole)))]
                self.close_connection = True
                if cut.manner == "short":
                    self._begin("Content-Length", str(len(whole)))
                    self.wfile.write(part)
                elif cut.manner == "unframed":
                    self._begin("Connection", "close")
                    self.wfile.write(part)
                else:
                    self._begin("Transfer-Encoding", "chunked")
                    self._chunks([part, b""] if cut.manner == "ended" else [part])
                if cut.manner == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if cut.manner == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()

        super().__init__(Handler, port)

    def take_cut(self, turn: int) -> Cut | None:
        """Return the fault if it belongs to this turn and has not occurred yet."""
        if self._cut is None or self._cut.turn != turn:
            return None
        try:
            (self._folder / FIRED).touch(exist_ok=False)
        except FileExistsError:
            return None
        return self._cut

    @property
    def port(self) -> str:
        return self.host.rpartition(":")[2]


def encoded(cut: Cut) -> str:
    """Return a fault as an argument for this module's command line."""
    return json.dumps(dataclasses.asdict(cut))


def main(port: str, folder: str, cut: str = "") -> None:
    with Model(int(port), Path(folder), Cut(**json.loads(cut)) if cut else None) as model:
        print(model.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
