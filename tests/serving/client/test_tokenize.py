"""The page /tokenize, requested from threads and from an event loop: both read an answer in the same way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.client.http import open_client
from m3agent.serving.client.tokenize import TokenizeClient, Tokens, count_tokens, page_urls, token_ids
from m3agent.serving.errors import EndpointRefused, EndpointUnreachable
from tests.servers.tokenize import TokenizeServer

pytestmark = pytest.mark.integration


@pytest.fixture
def server() -> Iterator[TokenizeServer]:
    with TokenizeServer(lambda text: [ord(letter) for letter in text]) as running:
        yield running


def endpoint_of(server: TokenizeServer) -> Endpoint:
    return Endpoint(server.url, "m3", "vllm", None, None, "reasoning", local=True)


def ask(server: TokenizeServer) -> Tokens | None:
    url = page_urls(server.url)[0]
    with TokenizeClient(url, model="m3", api_key="sk-secret", attempts=1) as client:
        return client.tokenize("ab")


async def ask_in_loop(server: TokenizeServer) -> list[int] | None:
    async with open_client(server.url, "sk-secret", connect=10, read=10) as client:
        return await token_ids(client, endpoint_of(server), "ab", "sk-secret")


async def count_in_loop(server: TokenizeServer) -> int | None:
    async with open_client(server.url, None, connect=10, read=10) as client:
        return await count_tokens(client, endpoint_of(server), "ab", None)


async def test_both_send_the_same_request(server: TokenizeServer) -> None:
    assert ask(server) == Tokens([97, 98], 2)
    assert await ask_in_loop(server) == [97, 98]
    first, second = server.bodies
    assert first == second == {"model": "m3", "prompt": "ab", "add_special_tokens": False}
    assert [headers["authorization"] for headers in server.headers] == ["Bearer sk-secret"] * 2
    assert await count_in_loop(server) == 3, "with the special token that begins a prompt"


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"tokens": [1, 2]}, Tokens([1, 2], 2)),
        ({"tokens": ["a", "b"], "count": 5}, Tokens(None, 5)),
        ({"tokens": [True]}, Tokens(None, 1)),
        ({"tokens": "what"}, Tokens(None, None)),
        ([1, 2], Tokens(None, None)),
        ("<html>", Tokens(None, None)),
    ],
)
async def test_answers_of_the_tokenizer(server: TokenizeServer, answer: Any, tokens: Tokens) -> None:
    body = answer if answer == "<html>" else json.dumps(answer)
    server.faults = [(200, body.encode(), {})] * 3
    assert ask(server) == tokens
    assert await ask_in_loop(server) == tokens.ids
    assert await count_in_loop(server) == tokens.count
    assert not server.faults


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_server_without_the_tokenize_page(server: TokenizeServer, status: int) -> None:
    server.faults = [(status, b'{"detail": "Not Found"}', {})] * 3
    assert ask(server) is None
    assert await ask_in_loop(server) is None
    assert await count_in_loop(server) is None
    assert not server.faults


async def test_both_ways_report_a_refusal_equally(server: TokenizeServer) -> None:
    server.faults = [(404, b'{"error": {"message": "no model sk-secret"}}', {})] * 3
    with pytest.raises(EndpointRefused, match=r"answered 404: no model \[key\]") as blocking:
        ask(server)
    with pytest.raises(EndpointRefused) as in_loop:
        await ask_in_loop(server)
    assert str(in_loop.value) == str(blocking.value)
    assert await count_in_loop(server) is None


async def test_nobody_listens() -> None:
    with TokenizeServer(lambda _: []) as server:
        pass
    with pytest.raises(EndpointUnreachable):
        ask(server)
    with pytest.raises(EndpointUnreachable):
        await ask_in_loop(server)
