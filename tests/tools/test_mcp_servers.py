"""MCP servers, honest and hostile: each call has one result, and no process of a server outlives the session."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from m3agent.agent.context.neutralise import harmless
from m3agent.tools.base import ToolResult
from m3agent.tools.mcp import connection
from m3agent.tools.mcp.server import McpServer
from m3agent.tools.mcp.servers import McpServers, public_name
from tests.conftest import later, until
from tests.servers import mcp_server

pytestmark = pytest.mark.integration

PROGRAM = mcp_server.__file__


@pytest.fixture(autouse=True)
def quick_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait for servers that do not end by themselves."""
    monkeypatch.setattr(connection, "GRACE_SECONDS", 0.3)


def server(way: str, name: str = "odd", asked: Path | None = None, seconds: float = 20) -> McpServer:
    command = (sys.executable, PROGRAM, way, *([str(asked)] if asked else []))
    return McpServer(name, command=command, seconds=seconds)


@contextlib.asynccontextmanager
async def opened(tmp_path: Path, *servers: McpServer) -> AsyncIterator[tuple[McpServers, list[str]]]:
    said: list[str] = []
    async with McpServers(servers, tmp_path, said.append, harmless) as all_of_them:
        yield all_of_them, said


async def called(tmp_path: Path, way: str, seconds: float = 20) -> tuple[ToolResult, ToolResult]:
    """Start a server, and return the results of two calls."""
    async with opened(tmp_path, server(way, asked=tmp_path / "mark", seconds=seconds)) as (servers, said):
        assert not said
        log = tmp_path / "call.log"
        first = await servers.call("mcp__odd__echo", {"text": "one"}, log)
        return first, await servers.call("mcp__odd__echo", {"text": "two"}, log)


def names(servers: McpServers) -> list[str]:
    return [schema["function"]["name"] for schema in servers.schemas]


def running(mark: Path) -> bool:
    """Return whether a process of the server with this file runs: only the kernel frees a killed process's lock."""
    try:
        with Path(f"{mark}.alive").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:  # it did not start
        return False
    except BlockingIOError:
        return True
    return False


async def nothing_runs(mark: Path) -> None:
    """Fail if a process of the server is left. A killed process closes its output just before its lock."""
    await until(lambda: not running(mark))


async def test_tools_in_the_order_of_their_names(tmp_path: Path) -> None:
    async with opened(tmp_path, server("", "z"), server("", "a")) as (servers, said):
        assert names(servers) == ["mcp__a__add", "mcp__a__echo", "mcp__z__add", "mcp__z__echo"]
        assert not said
        echo = servers.schemas[1]["function"]
        assert (echo["description"], echo["parameters"]) == (
            mcp_server.ECHO["description"],
            mcp_server.ECHO["inputSchema"],
        )
        result = await servers.call("mcp__a__add", {"a": 2, "b": 3}, tmp_path / "log")
        assert result == ToolResult("5", digest=result.digest)
        assert (await servers.call("mcp__a__gone", {}, tmp_path / "log")).content.startswith("error: ")


async def test_only_those_that_are_wanted(tmp_path: Path) -> None:
    wanted = McpServer("odd", command=server("").command, only=frozenset({"add"}))
    async with opened(tmp_path, wanted) as (servers, _):
        assert names(servers) == ["mcp__odd__add"]


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("ends", ""),
        ("line without end", ""),
        later("noise", ""),
        ("pages", "its list of tools has more than"),
        ("no object", "it sent a message that violates the protocol"),
        ("not a list", "it sent a message that violates the protocol"),
    ],
)
async def test_a_server_that_does_not_start_well_is_left_out(tmp_path: Path, way: str, said: str) -> None:
    mark = tmp_path / "mark"
    async with opened(tmp_path, server(way, "bad", mark), server("", "good")) as (servers, told):
        assert names(servers) == ["mcp__good__add", "mcp__good__echo"]
    assert len(told) == 1
    assert told[0].startswith("MCP server bad is left out: ")
    assert said in told[0]
    await nothing_runs(mark)


@pytest.mark.parametrize("way", ["hangs", "refuses"])
async def test_a_server_that_does_not_get_ready_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(connection, "START_SECONDS", 0.5)
    mark = tmp_path / "mark"
    async with opened(tmp_path, server(way, "bad", mark)) as (servers, told):
        assert names(servers) == []
    assert told == ["MCP server bad is left out: it did not list its tools within 0.5 s"]
    await nothing_runs(mark)


async def test_no_such_program(tmp_path: Path) -> None:
    async with opened(tmp_path, McpServer("x", command=("/no/such/program",))) as (servers, said):
        assert (names(servers), said) == (
            [],
            ["MCP server x is left out: there is no program '/no/such/program'"],
        )


async def test_lines_that_are_not_messages_are_skipped(tmp_path: Path) -> None:
    first, second = await called(tmp_path, "garbage")
    assert (first.content, second.content) == ("one", "two")


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("hangs in a call", "it did not answer within 0.5 s"),
        ("dies in a call", "MCP server odd: "),
        ("line without end in a call", "MCP server odd: "),
        later("noise in a call", "MCP server odd: "),
        ("not an answer", "it sent a message that violates the protocol"),
        ("error", "not today"),
    ],
)
async def test_each_call_has_a_result(tmp_path: Path, way: str, said: str) -> None:
    results = await called(tmp_path, way, seconds=0.5 if way == "hangs in a call" else 20)
    for result in results:
        assert result.is_error
        assert result.content.startswith("error: mcp__odd__echo: MCP server odd: ")
        assert said in result.content
        assert "Traceback" not in result.content
    await nothing_runs(tmp_path / "mark")


async def test_content_of_an_mcp_answer(tmp_path: Path) -> None:
    other, _ = await called(tmp_path, "other content")
    assert other.content == "[image/png, 3 bytes, left out]\n[a: file:///a]\nall of b"
    structured, _ = await called(tmp_path, "structured")
    assert json.loads(structured.content) == {"x": 1}
    failed, _ = await called(tmp_path, "fails")
    assert (failed.content, failed.is_error) == ("it failed", True)
    asked, again = await called(tmp_path, "asks back")
    assert (asked.content, again.content) == ("asked", "asked")


async def test_a_long_answer_is_cut_and_kept(tmp_path: Path) -> None:
    result, _ = await called(tmp_path, "floods in a call")
    assert result.truncated
    assert len(result.content) < 31_000
    assert result.full_path is not None
    assert Path(result.full_path).read_text() == "long " * 1_000_000


async def test_standard_error_is_kept_but_not_all_of_it(tmp_path: Path) -> None:
    first, _ = await called(tmp_path, "stderr")
    assert first.content == "one"
    assert (tmp_path / "mcp-1.log").stat().st_size == connection.MOST_SAID


async def test_tools_that_a_server_changes_later_stay_as_offered(tmp_path: Path) -> None:
    async with opened(tmp_path, server("changes")) as (servers, _):
        before = json.dumps(servers.schemas)
        for number in (1, 2):
            result = await servers.call("mcp__odd__echo", {"text": "x"}, tmp_path / "log")
            if number == 1:
                assert result.content == "echo 1"
        assert json.dumps(servers.schemas) == before


async def test_odd_tools_are_left_out_or_made_harmless(tmp_path: Path) -> None:
    async with opened(tmp_path, server("odd tools")) as (servers, said):
        found = {schema["function"]["name"]: schema["function"] for schema in servers.schemas}
    assert len(found) == 4
    assert all(len(name) <= 64 and name.replace("-", "_").isidentifier() and name.isascii() for name in found)
    assert len([name for name in found if name.startswith("mcp__odd__nnn")]) == 1
    markup = found["mcp__odd__markup"]["description"]
    assert "]<]minimax[>[" not in markup
    assert "\u202e" not in markup
    assert len(markup) < 4100
    assert sorted(sentence.split("tool left out: ")[1].partition(":")[0] for sentence in said) == [
        "'echo'",
        "'large'",
        "'no schema'",
    ]


async def test_a_server_with_too_many_tools(tmp_path: Path) -> None:
    many = [server("many", name) for name in ("a", "b", "c")]
    async with opened(tmp_path, *many) as (servers, said):
        assert len(servers.schemas) == 128
    assert any("more than 64 tools" in sentence for sentence in said)
    assert any("c: 64 of its tools are left out" in sentence for sentence in said)


async def test_nothing_of_a_server_is_left(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with opened(tmp_path, server("stays", asked=mark)) as (servers, _):
        assert names(servers)
        assert running(mark)
    await nothing_runs(mark)


async def test_nothing_is_left_of_an_opening_that_is_cancelled(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    servers = McpServers([server("hangs", asked=mark)], tmp_path, print, harmless)
    task = asyncio.create_task(servers.__aenter__())
    await until(lambda: running(mark))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await nothing_runs(mark)


async def test_a_server_gets_few_variables_and_starts_in_no_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M3AGENT_API_KEY", "secret")
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    for name in ("repository", "logs", "chosen"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "repository")  # a server must not find its modules and programs
    command = server("environment").command
    given = [
        McpServer("a", command=command, env={"OWN": "1"}),
        McpServer("b", command=command, folder=tmp_path / "chosen"),
    ]
    async with opened(tmp_path / "logs", *given) as (servers, _):
        a, b = [
            json.loads((await servers.call(f"mcp__{name}__echo", {}, tmp_path / "log")).content)
            for name in ("a", "b")
        ]
    assert a["env"]["OWN"] == "1"
    assert "secret" not in a["env"].values()
    assert (a["cwd"], b["cwd"]) == (str(tmp_path / "logs"), str(tmp_path / "chosen"))


@pytest.mark.parametrize(
    ("server_name", "tool", "name"), [("a", "b", "mcp__a__b"), ("my server", "b.c", "mcp__my_server__b_c_")]
)
def test_names(server_name: str, tool: str, name: str) -> None:
    assert public_name(server_name, tool).startswith(name)
    assert len(public_name(server_name * 40, tool)) <= 64


def test_names_that_are_made_fit_stay_apart() -> None:
    assert len({public_name("a", tool) for tool in ("b.c", "b c", "b/c", "b_c", "b" * 99, "b" * 98)}) == 6
