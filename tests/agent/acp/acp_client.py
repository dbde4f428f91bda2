"""A client of the Agent Client Protocol, made with the protocol's own SDK, that records every message."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from acp import connect_to_agent
from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

from tests.command_line import TIMEOUT, Process

COMMAND = [sys.executable, "-m", "m3agent.agent", "acp"]


class Client:
    """updates: in order of arrival, with replayed ones; asked: tool calls to permit or refuse; wire: all messages."""

    def __init__(self, answer: str | None = "allow") -> None:
        self.answer = answer
        self.updates: list[Any] = []
        self.asked: list[Any] = []
        self.wire: list[tuple[str, dict[str, Any]]] = []
        self.agent: Any = None
        self.process: Any = None

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_: Any
    ) -> RequestPermissionResponse:
        self.asked.append(tool_call)
        if self.answer is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        assert self.answer in [option.option_id for option in options]
        return RequestPermissionResponse(outcome=AllowedOutcome(option_id=self.answer, outcome="selected"))

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return {}

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        return None

    def on_connect(self, conn: Any) -> None:
        return None

    def texts(self, kind: str) -> str:
        """Return the text of all updates of one kind."""
        return "".join(u.content.text for u in self.updates if u.session_update == kind)

    def of(self, kind: str) -> list[Any]:
        """Return the updates of one kind."""
        return [update for update in self.updates if update.session_update == kind]


class Settled:
    """An agent whose calls return when the client has handled what came before the answer.

    The SDK handles each notification in a task of its own, which may end after the answer of the call.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        async def call(**arguments: Any) -> Any:
            answer = await getattr(self._agent, name)(**arguments)
            running = [
                task for task in asyncio.all_tasks() if task.get_name() == "acp.Connection.notification"
            ]
            if running:
                await asyncio.wait(running)
            return answer

        return call


@contextlib.asynccontextmanager
async def connected(state: Path, answer: str | None = "allow", **env: str) -> AsyncIterator[Client]:
    """Yield an initialised client with its own agent; check that the agent ends when the client leaves."""
    client = Client(answer)

    def note(event: Any) -> None:
        client.wire.append((str(event.direction.value), event.message))

    env = {"M3AGENT_STATE": str(state), **env}
    process = Process("acp", env=env, stdin=subprocess.PIPE, stderr=2)
    try:
        reader, writer = await _streams(process)
        client.process = process
        agent = connect_to_agent(
            client,  # type: ignore[arg-type]
            writer,
            reader,
            use_unstable_protocol=True,
            observers=[note],
        )
        client.agent = Settled(agent)
        try:
            await client.agent.initialize(protocol_version=1)
            yield client
        finally:
            await client.agent.close()
            writer.close()
        await asyncio.to_thread(process.wait, TIMEOUT)
    finally:
        process.kill()


async def _streams(process: Process) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a reader for the agent's output and a writer for its input."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop=loop), process.stdin
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


class BarePipes:
    """A client of two pipes, without the SDK, that has asked for a fix of a repository."""

    def __init__(self, state: Path, repo: Path, issue: str, env: Mapping[str, str]) -> None:
        self.process = Process("acp", env={"M3AGENT_STATE": str(state), **env}, stdin=subprocess.PIPE)
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.stderr = self.process.stderr
        self._send(0, "initialize", protocolVersion=1)
        self._send(1, "session/new", cwd=str(repo), mcpServers=[])
        self.stdout.readline()
        session = json.loads(self.stdout.readline())["result"]["sessionId"]
        self._send(2, "session/prompt", sessionId=session, prompt=[{"type": "text", "text": issue}])

    def _send(self, number: int, method: str, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self.stdin.write(json.dumps(message).encode() + b"\n")
        self.stdin.flush()
