"""MCP servers over HTTP: the SDK's own server, and servers with wrong answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer
from starlette.responses import RedirectResponse, Response, StreamingResponse

from m3agent.tools.mcp import connection
from m3agent.tools.mcp.server import McpServer
from tests.servers.misbehaving import QuietServer
from tests.tools.test_mcp_servers import opened

pytestmark = pytest.mark.integration

App = Callable[[Any, Any, Any], Awaitable[None]]
KEY = "Bearer sesame"


@contextlib.asynccontextmanager
async def serving(app: App) -> AsyncIterator[str]:
    """Serve an app on loopback, and yield its address."""
    config = uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=0)
    server = QuietServer(config)
    task = asyncio.create_task(server.serve())
    until = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < until
        await asyncio.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


def the_sdks(way: str) -> App:
    """Return the SDK's server with one tool; it requires the key."""
    with pytest.MonkeyPatch.context() as patch:  # it would log all tests of this process to standard error
        patch.setattr("mcp.server.mcpserver.server.configure_logging", lambda level: None)
        made = MCPServer("demo")

    @made.tool()
    def say(text: str, times: int = 1) -> str:
        """Says it so often."""
        return text * times

    inner = made.sse_app() if way == "sse" else made.streamable_http_app()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != KEY.encode():
            await Response(status_code=401)(scope, receive, send)
        else:
            await inner(scope, receive, send)

    return app


@pytest.mark.parametrize("way", ["http", "sse"])
async def test_a_tool_elsewhere(tmp_path: Path, way: str) -> None:
    async with serving(the_sdks(way)) as address:
        url = f"{address}/{'sse' if way == 'sse' else 'mcp'}"
        server = McpServer("demo", url=url, headers={"Authorization": KEY}, sse=way == "sse", seconds=20)
        async with opened(tmp_path, server) as (servers, said):
            assert [schema["function"]["name"] for schema in servers.schemas] == ["mcp__demo__say"]
            result = await servers.call("mcp__demo__say", {"text": "ha", "times": 3}, tmp_path / "log")
            assert (result.content, result.is_error) == ("hahaha", False)
            wrong = await servers.call("mcp__demo__say", {"times": "often"}, tmp_path / "log")
            assert wrong.is_error
        assert not said
        without = McpServer("demo", url=url, sse=way == "sse", seconds=20)
        async with opened(tmp_path, without) as (servers, said):
            assert not servers.schemas
        assert said == [
            "MCP server demo is left out: it refuses the connection (HTTP 401): it may need a key in `headers`"
        ]


def answering(way: str) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return

        async def without_end() -> AsyncIterator[bytes]:
            while True:
                yield b" " * (1 << 18)
                await asyncio.sleep(0)  # the client runs in the same event loop

        answers: dict[str, Callable[[], Response]] = {
            "a page": lambda: Response("<html>Hello</html>", media_type="text/html"),
            "no json": lambda: Response("{", media_type="application/json"),
            "an error": lambda: Response("Traceback (most recent call last)", status_code=500),
            "a flood": lambda: StreamingResponse(without_end(), media_type="application/json"),
            "a flood of events": lambda: StreamingResponse(without_end(), media_type="text/event-stream"),
            "elsewhere": lambda: RedirectResponse("http://127.0.0.1:1/mcp", status_code=307),
        }
        if way == "silence":
            await asyncio.sleep(600)
        with contextlib.suppress(OSError):
            await answers[way]()(scope, receive, send)

    return app


@pytest.mark.parametrize(
    "way", ["a page", "no json", "an error", "a flood", "a flood of events", "elsewhere", "silence"]
)
async def test_a_server_that_answers_what_it_likes_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "silence":
        monkeypatch.setattr(connection, "START_SECONDS", 0.5)
    async with (
        serving(answering(way)) as address,
        opened(tmp_path, McpServer("odd", url=f"{address}/mcp")) as (servers, said),
    ):
        assert not servers.schemas
        assert len(said) == 1
        assert said[0].startswith("MCP server odd is left out: ")
        assert "Traceback" not in said[0]


@pytest.mark.parametrize("end", ["", "\n"], ids=["an answer with an error", "a header that cannot be sent"])
async def test_user_keys_are_not_printed(tmp_path: Path, end: str) -> None:
    key = "a-key-that-nobody-sees"
    async with serving(answering("an error")) as address:
        # errors of the older transport contain the address
        odd = McpServer("odd", url=f"{address}/mcp?key={key}", headers={"X-Key": key + end}, sse=True)
        async with opened(tmp_path, odd) as (_, said):
            assert len(said) == 1
            assert "[hidden]" in said[0]
            assert key not in said[0]


def test_values_of_an_mcp_server_are_masked() -> None:
    server = McpServer(
        "odd",
        url="https://h.example/very-secret",
        headers={"a": "Bearer key-1234\n"},
        env={"K": "key-1234", "ON": "1"},
    )
    said = "1 of https://h.example/very-secret: b'Bearer key-1234\\n', key-1234"
    assert server.mask(said) == "1 of [hidden]: b'[hidden]\\n', [hidden]"


async def test_nobody_there(tmp_path: Path) -> None:
    async with opened(tmp_path, McpServer("odd", url="http://127.0.0.1:1/mcp")) as (_, said):
        assert len(said) == 1
        assert said[0].startswith("MCP server odd is left out: ")
