"""The server over real HTTP, with the `openai` client."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest

from m3agent.serving.embedded.server import MODEL, embedded_server
from tests.serving.embedded.workbench import TOOLS

pytestmark = pytest.mark.integration


async def complete(client: openai.AsyncOpenAI, **parameters: Any) -> Any:
    """Send a request as any program would. The answer is untyped: the client's types lack fields that servers add."""
    create: Any = client.chat.completions.create
    return await create(**{"model": MODEL, "messages": MESSAGES, **parameters})


MESSAGES: Any = [{"role": "user", "content": "<issue>\nIt is broken.\n</issue>"}]


@pytest.fixture
async def server() -> AsyncIterator[str]:
    async with embedded_server() as running:
        yield running


@pytest.fixture
async def client(server: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server, api_key="none", max_retries=0) as opened:
        yield opened


async def test_models(client: openai.AsyncOpenAI) -> None:
    listed = await client.models.list()
    [model] = listed.data
    assert (model.id, model.owned_by) == (MODEL, "m3agent")
    assert model.model_dump()["max_model_len"] == 1_048_576


async def test_a_tool_call(client: openai.AsyncOpenAI) -> None:
    answer = await complete(client, tools=TOOLS)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert call.function.name == "test_runner"
    assert json.loads(call.function.arguments)["test_file"] == "."
    assert choice.message.reasoning
    assert answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 0


async def test_streaming(client: openai.AsyncOpenAI) -> None:
    stream = await complete(client, tools=TOOLS, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [call.function.name for call in calls] == ["test_runner"]
    assert json.loads(calls[0].function.arguments)["framework"] == "pytest"
    assert "".join(getattr(delta, "reasoning", "") or "" for delta in deltas)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens > 0


async def test_stream_without_usage_ends_as_it_should(server: str) -> None:
    async with httpx2.AsyncClient() as http:
        body = {"model": MODEL, "messages": MESSAGES, "stream": True}
        answer = await http.post(f"{server}/chat/completions", json=body)
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    assert all(json.loads(line[6:]).get("usage") is None for line in lines[:-1])


async def test_tool_choice_none(client: openai.AsyncOpenAI) -> None:
    answer = await complete(client, tools=TOOLS, tool_choice="none")
    assert answer.choices[0].finish_reason == "stop"
    assert not answer.choices[0].message.tool_calls
    assert answer.choices[0].message.content


async def test_call_ids_are_unique(client: openai.AsyncOpenAI) -> None:
    answers = [await complete(client, tools=TOOLS) for _ in range(3)]
    assert len({answer.choices[0].message.tool_calls[0].id for answer in answers}) == 3


async def test_unknown_model(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no model 'other' here"):
        await complete(client, model="other")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b'{"model": "m3agent-embedded"}', "messages is missing"),
        (b'{"model": "m3agent-embedded", "messages": []}', "messages is missing"),
        (b'{"model": "m3agent-embedded", "messages": ["x"]}', "messages[0]"),
        (b'{"model": "m3agent-embedded", "messages": [{"role": "king"}]}', "messages[0]"),
        (b'{"model": "m3agent-embedded", "messages": [{"role": "user"}], "tools": 3}', "tools is not a list"),
        (
            b'{"model": "m3agent-embedded", "messages": [{"role": "assistant", "tool_calls": [1]}]}',
            "tool_calls",
        ),
    ],
)
async def test_bad_requests(server: str, content: bytes, said: str) -> None:
    async with httpx2.AsyncClient() as http:
        answer = await http.post(f"{server}/chat/completions", content=content)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert said in error["message"]
    assert error["type"] == "BadRequestError"


async def test_too_long(server: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 5_000_000}]}
    async with httpx2.AsyncClient() as http:
        answer = await http.post(f"{server}/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_health_metrics_and_version(server: str, client: openai.AsyncOpenAI) -> None:
    await complete(client)
    root = server.removesuffix("/v1")
    async with httpx2.AsyncClient() as http:
        assert (await http.get(f"{root}/health")).status_code == 200
        assert (await http.get(f"{root}/version")).json()["version"]
        metrics = (await http.get(f"{root}/metrics")).text
    assert "m3agent_embedded_turns_total 1\n" in metrics


async def test_it_ends_promptly_with_an_open_connection_and_leaves_no_thread() -> None:
    before = threading.active_count()
    async with embedded_server() as server:
        host, port = server.removeprefix("http://").removesuffix("/v1").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 10\r\n\r\n")
        await writer.drain()
        started = time.monotonic()
    assert time.monotonic() - started < 30
    writer.close()
    # asyncio's own pool may keep one idle worker of earlier requests, but no other thread may remain
    assert threading.active_count() <= before + 1


async def test_it_ends_when_cancelled() -> None:
    entered = asyncio.Event()
    urls = []

    async def hold() -> None:
        async with embedded_server() as server:
            urls.append(server)
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with httpx2.AsyncClient() as http:
        with pytest.raises(httpx2.ConnectError):
            await http.get(f"{urls[0]}/models")


async def test_a_taken_port_is_an_os_error(server: str) -> None:
    port = int(server.rsplit(":", 1)[1].removesuffix("/v1"))
    with pytest.raises(OSError, match=r"."):
        async with embedded_server(port=port):
            pass
