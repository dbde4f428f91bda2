"""Ten `fix` sessions at once behind the real vllm-router and two engines, one of which is killed on the way.

    python -m benchmarks.gpu.routed --router PROGRAM [--engines URL URL] [--sessions 10] [--no-kill] [--json FILE] [-- OPTIONS]

The router is started with the command that `m3agent serve --router vllm-router` writes. Before each engine stands a process
that adds the grammar of proxy.py and notes which session's turn it got. To kill a server, this process gets SIGKILL: the
router and m3agent see the same as if the engine had been killed. Without `--engines` the process itself is a stand-in
engine, which counts as cached what it has read before in blocks of 128 tokens. OPTIONS go to `m3agent fix`.

The sessions share no prefix beyond the system prompt, because each has a repository of its own. Each is examples/ferry with
real source code beside it, so that a turn adds less than 2% to the prompt. The exit status is 0 if each session is verified,
moves only away from the killed server and at most once, finds at least 0.98 of its prompt in the cache in each turn after
the first one on a server, and has one event `cache.lost` for a move.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import commit_all, write_json
from benchmarks.gpu.cached_turns import python_source
from benchmarks.gpu.fix import FERRY, LINES
from benchmarks.gpu.proxy import CHAT, ScriptingProxy

from m3agent.serving.launch.server_set import router_argv
from tests.servers.misbehaving import MisbehavingServer, Received, Stream, delta, finish

LEAST_SHARE = 0.98
SOURCE = 240_000
"""Characters of source code in each repository, about 60,000 tokens."""
BLOCK = 128
CHARACTERS = 4
"""Characters that a stand-in engine counts as one token."""
_MARK = "ferry-session-"
_PATIENCE = 60.0  # seconds until a process must listen
_DEADLINE = 540.0  # seconds for all sessions


@dataclass
class Session:
    """How one session went.

    Attributes:
        number: From 0.
        status: How it ended; None if it did not.
        servers: The server of each turn's last request, in order.
        requests: Chat requests that arrived at a server.
        shares: Cached share of each turn's prompt, as the engine reported it.
        lost: The events `cache.lost`.
        prompt: Tokens of the last prompt.
    """

    number: int
    status: str | None = None
    servers: list[int] = field(default_factory=list)
    requests: int = 0
    shares: list[float | None] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)
    prompt: int = 0

    @property
    def moves(self) -> list[int]:
        """The turns, from 0, whose server is not that of the turn before."""
        return [n for n in range(1, len(self.servers)) if self.servers[n] != self.servers[n - 1]]


class NotingProxy(ScriptingProxy):
    """The scripting proxy that prints the session and the turn of each chat request."""

    def changed(self, path: str, body: bytes) -> bytes:
        """Print the request, and add the grammar."""
        if path == CHAT:
            _note(body)
        return super().changed(path, body)


class StandIn:
    """The answers of an engine that says the script's lines and has a prefix cache."""

    def __init__(self) -> None:
        self._kept: set[int] = set()

    def __call__(self, request: Received) -> Stream:
        _note(request.body)
        text = json.dumps(request.json["messages"])
        ends = range(BLOCK * CHARACTERS, len(text), BLOCK * CHARACTERS)
        keys = [hash(text[:end]) for end in ends]
        known = next((n for n, key in enumerate(keys) if key not in self._kept), len(keys))
        self._kept.update(keys)
        usage: dict[str, Any] = {"prompt_tokens": len(text) // CHARACTERS, "completion_tokens": 100}
        usage["prompt_tokens_details"] = {"cached_tokens": known * BLOCK}
        turn = sum(message["role"] == "assistant" for message in request.json["messages"])
        line = LINES[min(turn, len(LINES) - 1)]
        return Stream([delta(content=line), finish("stop"), {"choices": [], "usage": usage}])


def _note(body: bytes) -> None:
    """Print the session and the turn of a chat request."""
    messages = json.loads(body)["messages"]
    text = json.dumps(messages)
    number = text.partition(_MARK)[2][:2]
    turn = sum(message["role"] == "assistant" for message in messages)
    print(json.dumps({"session": int(number) if number.isdigit() else None, "turn": turn}), flush=True)


def serve(engine: str | None) -> None:
    """Be the process before an engine, or the stand-in for it; print its address first."""
    with contextlib.ExitStack() as stack:
        if engine is not None:
            print(stack.enter_context(NotingProxy(engine, LINES)).url, flush=True)
        else:
            server = MisbehavingServer()
            server.answers = [StandIn()]
            server.pages |= {"/health": {}, "/metrics": ""}
            print(stack.enter_context(server).url, flush=True)
        threading.Event().wait()


class Worker:
    """The process before one engine.

    Attributes:
        url: Its address, without `/v1`.
        seen: The chat requests that it got, with their time.
    """

    def __init__(self, engine: str | None) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu.routed", "--serve", engine or "stand-in"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        self.url = self._lines.readline().strip().removesuffix("/v1")
        self.seen: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._lines:
            self.seen.append(json.loads(line) | {"at": time.monotonic()})

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def router(program: str, workers: Sequence[Worker], log: Path) -> Iterator[str]:
    """Run vllm-router before the workers; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = list(router_argv([worker.url for worker in workers], "127.0.0.1", port))
    with log.open("wb") as out, subprocess.Popen([program, *words[1:]], stdout=out, stderr=out) as process:
        try:
            _wait_for(port, process)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.2)
    raise SystemExit("vllm-router did not start: see its log")


def repository(folder: Path, number: int, source: str) -> Path:
    """Make the repository of one session: the ferry, and source code that no other session has."""
    repo = folder / f"{_MARK}{number:02}"
    shutil.copytree(FERRY, repo)
    reference = repo / "reference"
    reference.mkdir()
    size = max(1, len(source) // 8)
    for part in range(8):
        text = source[part * size : (part + 1) * size]
        # The first line differs, so no two sessions have the same blocks.
        (reference / f"part_{part}.txt").write_text(f"{_MARK}{number:02}\n{text}")
    issue = repo / "ISSUE.md"
    issue.write_text(f"{issue.read_text()}\nSeen in {_MARK}{number:02}.\n")
    commit_all(repo, "ferry 0.3.0")
    return repo


def run_sessions(
    repos: Sequence[Path], url: str, workers: Sequence[Worker], *, kill: bool, more: Sequence[str]
) -> tuple[list[list[dict[str, Any]]], int | None]:
    """Run all sessions at once; return their events, and the number of the killed server."""
    processes = []
    for repo in repos:
        command = [sys.executable, "-m", "m3agent", "fix", str(repo / "ISSUE.md")]
        command += ["--repo", str(repo), "--endpoint", url, "--thinking", "adaptive", "--json", *more]
        out, log = repo.with_suffix(".events"), repo.with_suffix(".log")
        env = {**os.environ, "M3AGENT_STATE": str(repo.with_suffix(".state"))}
        with out.open("wb") as events, log.open("wb") as errors:
            processes.append(subprocess.Popen(command, stdout=events, stderr=errors, env=env))
    killed = None
    half = len(repos) * len(LINES) // 2
    until = time.monotonic() + _DEADLINE
    while any(process.poll() is None for process in processes) and time.monotonic() < until:
        if kill and killed is None and sum(len(worker.seen) for worker in workers) >= half:
            killed = max(range(len(workers)), key=lambda n: len(workers[n].seen))
            workers[killed].kill()
        time.sleep(0.1)
    for process in processes:
        process.kill()
    return [
        [json.loads(line) for line in repo.with_suffix(".events").read_text().splitlines()] for repo in repos
    ], killed


def sessions(events: Sequence[Sequence[dict[str, Any]]], workers: Sequence[Worker]) -> list[Session]:
    """Put events and requests together."""
    found = []
    for number, lines in enumerate(events):
        session = Session(number)
        requests = sorted(
            (request["at"], request["turn"], n)
            for n, worker in enumerate(workers)
            for request in worker.seen
            if request["session"] == number
        )
        session.requests = len(requests)
        last = {turn: server for _, turn, server in requests}
        session.servers = [last[turn] for turn in sorted(last)]
        for line in lines:
            match line["type"]:
                case "turn.finished":
                    session.shares.append(line["cached_share"])
                    session.prompt = line["prompt_tokens"]
                case "cache.lost":
                    session.lost.append(line)
                case "session.finished":
                    session.status = line["status"]
        found.append(session)
    return found


def problems(session: Session, killed: int | None) -> list[str]:
    """Return what is not as it should be."""
    found = []
    if session.status != "verified":
        found.append(f"it ended as {session.status}")
    if len(session.shares) != len(session.servers):
        found.append(f"{len(session.shares)} turns ended, requests came for {len(session.servers)}")
    moves = session.moves
    if len(moves) > 1 or any(session.servers[turn - 1] != killed for turn in moves):
        found.append(f"it moved at {moves}: {session.servers}")
    low = [
        (turn + 1, share)
        for turn, share in enumerate(session.shares)
        if turn and turn not in moves and (share or 0) < LEAST_SHARE
    ]
    if low:
        found.append(f"little was cached: {low}")
    if len(session.lost) != len(moves):
        found.append(f"{len(moves)} moves, but {len(session.lost)} events cache.lost")
    return found


def show(found: Sequence[Session], killed: int | None) -> bool:
    """Print the sessions; return whether all is as it should be."""
    fine = True
    for session in found:
        wrong = problems(session, killed)
        fine = fine and not wrong
        shares = " ".join("?" if share is None else f"{share:.4f}" for share in session.shares)
        print(
            f"session {session.number}: {session.status}, servers {session.servers}, cached {shares}, "
            f"last prompt {session.prompt:,}{'; WRONG: ' + '; '.join(wrong) if wrong else ''}"
        )
        for lost in session.lost:
            print(f"  {lost['read_again']:,} tokens read again, {lost['seconds']} s: {lost['reason']}")
    first = collections.Counter(session.servers[0] for session in found if session.servers)
    kept = [
        share
        for session in found
        for turn, share in enumerate(session.shares)
        if turn and turn not in session.moves and share is not None
    ]
    print(
        f"killed: {killed}; sessions by first server: {dict(first)}; least cached share: {min(kept, default=0):.4f}"
    )
    return fine and bool(found)


def main() -> int:
    """Read the options and run the benchmark."""
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description="fix sessions behind vllm-router")
    parser.add_argument("--router", default="vllm-router", metavar="PROGRAM")
    parser.add_argument("--engines", nargs=2, metavar="URL", default=[None, None])
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--no-kill", action="store_true", help="kill no server")
    parser.add_argument("--json", type=Path, help="write the numbers there")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the logs there")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args(words[:at])
    if options.serve is not None:
        serve(None if options.serve == "stand-in" else options.serve)
        return 0
    source = python_source(SOURCE)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        workers = [Worker(engine) for engine in options.engines]
        for worker in workers:
            stack.callback(worker.kill)
        url = stack.enter_context(router(options.router, workers, folder / "router.log"))
        repos = [repository(folder, number, source) for number in range(options.sessions)]
        events, killed = run_sessions(repos, url, workers, kill=not options.no_kill, more=words[at + 1 :])
        found = sessions(events, workers)
        fine = show(found, killed)
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            for path in (*folder.glob("*.log"), *folder.glob("*.events")):
                shutil.copy(path, options.keep)
    write_json(options.json, {"killed": killed, "sessions": found})
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
