"""The proxy that counts another agent's tokens, between real HTTP clients and a scripted server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from m3agent.cli.eval import run as eval_run
from m3agent.evals.data.instance import Task
from m3agent.evals.data.results import AttemptUsage
from m3agent.evals.run import counting_proxy
from m3agent.evals.run.counting_proxy import CountingProxy
from m3agent.evals.run.other_agent import CountedEndpoint, OtherAgent, parse_variables
from m3agent.evals.run.parts import Assignment, Delivery
from m3agent.serving.client.prices import Prices
from m3agent.util.errors import UsageError
from tests.command_line import run
from tests.evals.small import checkout, instance, write_programs
from tests.servers.misbehaving import Cut, MisbehavingServer, Reply, Stall, Stream, delta, finish, usage

pytestmark = pytest.mark.integration

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
CHAT_USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 64}}
RESPONSES_USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 64},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 5},
}
STARTED = {
    "input_tokens": 30,
    "cache_read_input_tokens": 64,
    "cache_creation_input_tokens": 6,
    "output_tokens": 1,
}


def answers(server: MisbehavingServer, path: str, answer: Any) -> None:
    if path == CHAT:
        server.answers = [answer]
    else:
        server.pages[path] = answer


async def count(
    server: MisbehavingServer, path: str, answer: Any, prices: Prices | None = None
) -> AttemptUsage:
    """Return what the proxy counts for one request; the client gets what it would get without the proxy."""
    answers(server, path, answer)
    proxy = CountingProxy(server.url, prices)
    sent = b'{"model": "m",  "stream": true}'
    async with proxy.opened() as address, httpx2.AsyncClient() as http:
        assert address.startswith("http://127.0.0.1:") and address.endswith("/v1")
        headers = {"authorization": "Bearer secret", "x-own": "1", "accept-encoding": "gzip"}
        got = await http.post(
            address.removesuffix("/v1") + path + "?beta=true", content=sent, headers=headers
        )
        straight = await http.post(
            server.url.removesuffix("/v1") + path + "?beta=true", content=sent, headers=headers
        )
    assert (got.status_code, got.content) == (straight.status_code, straight.content)
    assert got.headers.keys() == straight.headers.keys()
    seen = server.requests[0]
    assert (seen.path, seen.body) == (path, sent)
    differing = {"host", "accept-encoding"}
    others = {name: value for name, value in seen.headers.items() if name not in differing}
    assert others == {
        name: value for name, value in server.requests[1].headers.items() if name not in differing
    }
    return proxy.usage


NOTHING = (1, None, None, None, None)
ANSWERS: dict[str, tuple[str, Any, tuple[int | None, ...]]] = {
    "chat": (CHAT, {"choices": [], "usage": CHAT_USAGE}, (1, 100, 64, 20, None)),
    "chat stream": (
        CHAT,
        Stream([delta(content="a"), finish("stop"), usage(100, 20, prompt_tokens_details={"cached_tokens": 64})]),
        (1, 100, 64, 20, None),
    ),
    "responses": (RESPONSES, {"output": [], "usage": RESPONSES_USAGE}, (1, 100, 64, 20, 5)),
    "responses stream": (
        RESPONSES,
        Stream(
            [
                'event: response.created\ndata: {"type":"response.created","response":{"usage":null}}\n\n',
                {"type": "response.completed", "response": {"usage": RESPONSES_USAGE}},
            ],
            done=False,
        ),
        (1, 100, 64, 20, 5),
    ),
    "messages": (
        MESSAGES, {"content": [], "usage": STARTED | {"output_tokens": 20}}, (1, 100, 64, 20, None),
    ),
    "messages stream": (
        MESSAGES,
        Stream(
            [
                {"type": "message_start", "message": {"usage": STARTED}},
                *({"type": "message_delta", "usage": {"output_tokens": count}} for count in (11, 20)),
            ],
            done=False,
        ),
        (1, 100, 64, 20, None),
    ),
    "nothing said": (CHAT, Stream([delta(content="a"), finish("stop")]), NOTHING),
    "no counts": (CHAT, {"usage": {"prompt_tokens": -1, "completion_tokens": True}}, NOTHING),
    "no JSON": (CHAT, Reply(200, '{"usage": {'), NOTHING),
    "refused": (CHAT, Reply(429, {"error": {"message": "slow"}, "usage": CHAT_USAGE}), (0, *NOTHING[1:])),
    "another path": ("/v1/messages/count_tokens", {"usage": CHAT_USAGE}, (0, *NOTHING[1:])),
}  # fmt: skip


@pytest.mark.parametrize(("path", "answer", "counted"), ANSWERS.values(), ids=ANSWERS)
async def test_answers_are_counted_and_passed_on_unchanged(
    path: str, answer: Any, counted: tuple[int | None, ...], server: MisbehavingServer
) -> None:
    found = await count(server, path, answer)
    assert tuple(found.model_dump().values()) == (*counted, None)


async def test_the_cost_is_the_servers_or_by_its_prices(server: MisbehavingServer) -> None:
    prices = Prices(prompt=2.0, completion=10.0, cached=1.0)
    found = await count(server, CHAT, {"usage": CHAT_USAGE}, prices)
    assert found.cost == pytest.approx((36 * 2 + 64 * 1 + 20 * 10) / 1e6)
    server.requests.clear()
    assert (await count(server, CHAT, {"usage": CHAT_USAGE | {"cost": 0.25}}, prices)).cost == 0.25
    server.requests.clear()
    assert (await count(server, CHAT, {"usage": CHAT_USAGE | {"cost": "much"}})).cost is None


async def test_a_reader_that_leaves_early_is_counted_as_far_as_the_server_said(
    server: MisbehavingServer,
) -> None:
    answers(server, MESSAGES, Stream([{"type": "message_start", "message": {"usage": STARTED}}, Stall()]))
    proxy = CountingProxy(server.url, None)
    async with proxy.opened() as address:
        async with httpx2.AsyncClient() as http, http.stream("POST", f"{address}/messages") as got:
            assert b"message_start" in await anext(got.aiter_raw())
        async with httpx2.AsyncClient() as http:  # others are served meanwhile
            assert (await http.get(f"{address}/models")).json() == server.pages["/v1/models"]
    assert (proxy.usage.turns, proxy.usage.prompt_tokens, proxy.usage.completion_tokens) == (1, 100, 1)


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_answer_is_counted_before_its_reader_may_leave_or_ask_again(kind: str) -> None:
    """The server sends the counts a while after the first bytes, and keeps the connection open after the last."""
    text = json.dumps({"choices": [], "usage": CHAT_USAGE})
    body = (text if kind == "application/json" else f"data: {text}\n\ndata: [DONE]\n\n").encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        )
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.write(f"{len(body):x}\r\n".encode() + body + b"\r\n")
        if kind == "application/json":
            writer.write(b"0\r\n\r\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as upstream:
        host, port = upstream.sockets[0].getsockname()
        proxy = CountingProxy(f"http://{host}:{port}/v1", None)
        async with (
            proxy.opened() as address,
            httpx2.AsyncClient() as http,
            http.stream("POST", f"{address}/chat/completions") as got,
        ):
            if kind == "text/event-stream":
                assert b"[DONE]" in await anext(got.aiter_raw())
                assert proxy.usage.prompt_tokens == 100
        assert (proxy.usage.turns, proxy.usage.prompt_tokens) == (1, 100)


async def test_what_is_too_large_is_passed_on_but_not_searched(
    server: MisbehavingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting_proxy, "MOST_HELD", 1000)
    found = await count(server, CHAT, {"usage": CHAT_USAGE, "text": "x" * 2000})
    assert (found.turns, found.prompt_tokens) == (1, None)


async def test_it_reaches_one_server_on_loopback_and_ends_with_its_context(server: MisbehavingServer) -> None:
    async with CountingProxy(server.url, None).opened() as address:
        port = int(address.removesuffix("/v1").rpartition(":")[2])
        for target in (b"http://other.example/v1/models", b"%2Eother.example/v1/models", b"%2Fx"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 40")
            writer.close()
        with pytest.raises(ConnectionRefusedError):  # it would accept if it listened everywhere
            await asyncio.open_connection("127.0.0.2", port)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert not server.requests


async def test_a_server_that_is_gone_is_an_error_for_the_agent(server: MisbehavingServer) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        proxy = CountingProxy(gone, None)
        async with proxy.opened() as address, httpx2.AsyncClient() as http:
            got = await http.post(f"{address}/chat/completions", json={})
    assert got.status_code == 502 and "the model server does not answer" in got.text
    assert proxy.usage.turns == 0
    assert proxy.lost == "the model server does not answer: ConnectError"


async def test_a_server_that_dies_in_a_stream_is_lost_until_it_answers(server: MisbehavingServer) -> None:
    server.answers = [Stream([delta(content="x"), Cut()]), Stream([delta(content="x"), finish("stop")])]
    proxy = CountingProxy(server.url, None)
    lost: list[str] = []
    async with proxy.opened() as address, httpx2.AsyncClient() as http:
        for _ in range(2):
            with contextlib.suppress(httpx2.HTTPError):
                await http.post(f"{address}/chat/completions", json={"stream": True})
            lost.append(proxy.lost)
    assert lost == ["the model server does not answer: RemoteProtocolError", ""]


AGENT = """
import json, os, sys, urllib.request
for address in (sys.argv[1], os.environ["OPENAI_BASE_URL"]):
    headers = {"Authorization": "Bearer " + os.environ["SECRET"], "Content-Type": "application/json"}
    asked = urllib.request.Request(address + "/chat/completions", b"{}", headers)
    urllib.request.urlopen(asked).read()
if sys.argv[2:]:
    json.dump({"turns": 9, "reasoning_tokens": 7, "prompt_tokens": 1}, open(sys.argv[2], "w"))
"""


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return instance(write_programs(tmp_path / "programs"), "adder").task


async def deliver(task: Task, folder: Path, server: MisbehavingServer, script: str, *more: str) -> Delivery:
    folder.mkdir()
    checkout(task, folder / "repo")
    agent = OtherAgent(
        (sys.executable, "-c", script, "{endpoint}", *more),
        {"OPENAI_BASE_URL": "{endpoint}", "SECRET": "sesame-0815"},
        60,
        CountedEndpoint(server.url, Prices(prompt=1.0, completion=1.0)),
    )
    return await agent.work(Assignment(task, 1, folder / "repo", "image:1", folder))


async def test_an_agent_gets_the_proxy_and_its_costs_are_in_the_result(
    task: Task, tmp_path: Path, server: MisbehavingServer
) -> None:
    server.answers = [{"usage": CHAT_USAGE}]
    found = await deliver(task, tmp_path / "run", server, AGENT)
    assert found.status == "exit 0", found.reason
    assert found.usage == AttemptUsage(
        turns=2, prompt_tokens=200, cached_tokens=128, completion_tokens=40, cost=0.00024
    )
    assert [chat.headers["authorization"] for chat in server.chats] == ["Bearer sesame-0815"] * 2
    kept = [
        path for path in (tmp_path / "run").rglob("*") if path.is_file() and b"sesame" in path.read_bytes()
    ]
    assert not kept, "the key is kept nowhere"


async def test_counts_go_before_what_the_agent_says(
    task: Task, tmp_path: Path, server: MisbehavingServer
) -> None:
    server.answers = [{"usage": CHAT_USAGE}]
    found = await deliver(task, tmp_path / "run", server, AGENT, "{usage}")
    assert (found.usage.turns, found.usage.prompt_tokens, found.usage.reasoning_tokens) == (2, 200, 7)
    another_way = 'import sys; open(sys.argv[2], "w").write(\'{"turns": 3}\')'
    found = await deliver(task, tmp_path / "other", server, another_way, "{usage}")
    assert found.usage == AttemptUsage(turns=3)


def test_variables_may_be_made_of_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "1")
    given = parse_variables("KEY, ANTHROPIC_BASE_URL={endpoint}")
    assert given == {"KEY": "1", "ANTHROPIC_BASE_URL": "{endpoint}"}
    for wrong in ("KEY=2", "A={repo}", "={endpoint}", "A={endpoint}{usage}"):
        with pytest.raises(UsageError, match=r"a value without \{endpoint\}"):
            parse_variables(wrong)


def test_the_server_is_part_of_the_experiment(server: MisbehavingServer) -> None:
    flags = {"endpoint": server.url, "model": None}
    name, command, settings, *_ = eval_run._agent(flags, "sh {issue} {endpoint}", None, None, None)()
    assert (name, command[-1], settings) == ("sh", "{endpoint}", {"endpoint": server.url})
    assert eval_run._agent({}, "sh {issue}", None, None, None)()[2] == {}


@pytest.mark.parametrize(
    ("agent", "more", "told"),
    [
        ("sh {issue}", ("--endpoint", "http://127.0.0.1:9/v1"), "--endpoint is only for m3agent's own"),
        ("sh {issue} {endpoint}", (), "{endpoint} stands for"),
        ("sh {issue} {endpoint}", ("--model", "m"), "--model is only for m3agent's own"),
        ("sh {issue}", ("--agent-env", "A=b"), "--agent-env gives A a value"),
    ],
)
def test_wrong_use_of_the_placeholder_is_one_sentence(
    agent: str, more: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    programs = str(write_programs(tmp_path / "programs"))
    done = run("eval", "run", programs, "-o", str(tmp_path / "run"), "--agent-command", agent, *more)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and told in done.stderr
    assert not (tmp_path / "run").exists()
