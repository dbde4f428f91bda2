"""The tools of `m3agent mcp serve`, as a client of the protocol's SDK meets them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import Client

from m3agent.agent import mcp_server
from m3agent.agent.mcp_server import LONE, server, without_lone_surrogates
from tests.agent.scripted import BUGGY
from tests.command_line import Process

MakeRepo = Callable[..., Path]
FIXED = BUGGY["calc.py"].replace("a - b", "a + b")


@pytest.fixture
def repo(make_repo: MakeRepo) -> Path:
    """Return a repository with a bug, a red test for it and a green test."""
    return make_repo(BUGGY)


async def called(client: Client, tool: str, **arguments: Any) -> Any:
    """Return the result of a call; its text if it is an error."""
    result = await client.call_tool(tool, arguments)
    return result.content[0].text if result.is_error else result.structured_content  # type: ignore[union-attr]


@pytest.mark.integration
async def test_a_patch_is_verified_and_explained(repo: Path, tmp_path: Path) -> None:
    heard: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(f"{progress} of {total}: {message}")

    async with Client(server(repo, tmp_path)) as client:
        before = await called(client, "baseline")
        (repo / "calc.py").write_text(FIXED)
        result = await client.call_tool("verify_patch", {}, progress_callback=hear)
        explained = await called(client, "explain_verdict")
    assert (before["passed"], before["red"], before["complete"]) == (1, ["test_calc.py::test_add"], True)
    said = result.structured_content
    assert said is not None
    assert (said["status"], said["fixed"], said["broken"]) == ("verified", ["test_calc.py::test_add"], [])
    assert json.loads(Path(said["certificate"]).read_text())["predicate"]["verdict"] == "verified"
    assert "test_calc.py::test_add" in explained["result"]
    assert any("1 passed, 1 red" in text for text in heard)


async def test_no_change_is_no_verdict(repo: Path, tmp_path: Path) -> None:
    async with Client(server(repo, tmp_path)) as client:
        assert (await called(client, "verify_patch"))["status"] == "empty"
        assert (await called(client, "verify_patch", patch=""))["status"] == "empty"


@pytest.mark.parametrize(
    ("tool", "arguments", "part"),
    [
        ("verify_patch", {"patch": "hello"}, "the argument `patch` is not a patch"),
        ("verify_patch", {"patch": f"diff {LONE}"}, "lone surrogate"),
        ("verify_patch", {"commit": "no-such"}, "names no commit"),
        ("verify_patch", {"commit": "HEAD", "branch": "main"}, "give only one"),
        ("verify_patch", {"repo": "/no/such"}, "/no/such"),
        ("explain_verdict", {}, "verify a patch first"),
        ("explain_verdict", {"certificate": "/no/such"}, "/no/such"),
    ],
)
async def test_errors(repo: Path, tmp_path: Path, tool: str, arguments: dict[str, str], part: str) -> None:
    async with Client(server(repo, tmp_path)) as client:
        said = await called(client, tool, **arguments)
    assert part in said
    assert str(tmp_path / "scratch") not in said


async def test_a_cancelled_call_ends_its_work(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def endless(*_: object, **__: object) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(mcp_server, "verify_patch", endless)
    async with Client(server(repo, tmp_path)) as client:
        call = asyncio.create_task(client.call_tool("verify_patch", {}))
        await asyncio.wait_for(began.wait(), 60)
        call.cancel()
        await asyncio.wait_for(ended.wait(), 60)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (r'{"a": "\ud83d\ude00"}', r'{"a": "\ud83d\ude00"}'),
        ('{"a": "b"}', '{"a": "b"}'),
        (r'{"a": "\\ud800"}', r'{"a": "\\ud800"}'),
        ('{"a": "\\ud800', '{"a": "\\ud800'),
        (r'{"a": "\uD800x"}', '{"a": "' + LONE + 'x"}'),
    ],
)
def test_lone_surrogates(line: str, expected: str) -> None:
    now = without_lone_surrogates(line)
    assert now == expected or json.loads(now) == json.loads(expected)


def message(method: str, number: int | None = None, **params: Any) -> bytes:
    named = {} if number is None else {"id": number}
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **named}).encode() + b"\n"


@pytest.mark.integration
def test_the_command_answers_a_lone_surrogate(repo: Path) -> None:
    client = {"name": "t", "version": "1"}
    messages = [
        message("initialize", 1, protocolVersion="2025-06-18", capabilities={}, clientInfo=client),
        message("notifications/initialized"),
        message("tools/call", 2, name="verify_patch", arguments={"patch": "\ud800"}),
    ]
    pipe = subprocess.PIPE
    with Process("mcp", "serve", "--repo", str(repo), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"".join(messages))
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.stdin.close()
        assert process.wait() == 0
    assert answers[1]["result"]["isError"]
    assert "lone surrogate" in answers[1]["result"]["content"][0]["text"]
