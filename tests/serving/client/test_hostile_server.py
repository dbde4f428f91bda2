"""A hostile model server: each response becomes a result or one of our errors, and takes bounded memory."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from m3agent.serving.client import bounds
from m3agent.serving.client.client import Client
from m3agent.serving.client.endpoint import probe
from m3agent.serving.client.http import host_of
from m3agent.serving.client.messages import Usage
from m3agent.serving.client.prices import listed_prices
from m3agent.serving.client.server_errors import reported, retry_after
from m3agent.serving.client.stream.chunk import read_usage
from m3agent.serving.client.tokenize import TokenizeClient
from m3agent.serving.errors import EndpointUnreachable, ModelServerError, StreamCut
from tests.servers.misbehaving import MODEL, MisbehavingServer, Reply, Stream, delta, finish
from tests.serving.client.test_client_faults import once
from tests.serving.talk import ask, endpoint

DIGITS = "4" * 5000


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *((text, None) for text in ("a,b", ",", "Fri, 99 Foo 2020 99:99:99 GMT", "soon", DIGITS + "x")),
        *((text, 0.0) for text in ("nan", "-inf", "-3", "Mon, 01 Jan 0001 00:00:00 -0000")),
    ],
)
def test_times_to_wait_that_make_no_sense(value: str, seconds: float | None) -> None:
    assert retry_after(value) == seconds


@pytest.mark.integration
@pytest.mark.parametrize("status", [302, 400, 404, 429, 500])
@pytest.mark.parametrize(
    "headers",
    [{"location": "http://[x"}, {"retry-after": "a,b"}, {"retry-after": "inf"}, {"content-encoding": "gzip"}],
)
async def test_headers_that_make_no_sense(
    server: MisbehavingServer, status: int, headers: dict[str, str]
) -> None:
    server.answers = [Reply(status, {"error": {"message": "no", "code": DIGITS}}, headers)]
    server.pages["/v1/models"] = server.answers[0]
    async with Client(endpoint(server.url), api_key="sk-key", attempts=1) as client:
        with pytest.raises(ModelServerError):
            await ask(client)
    with pytest.raises(ModelServerError):
        await probe(server.url, api_key="sk-key", model=None)


@pytest.mark.parametrize("code", ["²²²", DIGITS, "\uff14\uff10\uff10", "-1", "1e3"])
def test_codes_that_make_no_sense(code: str) -> None:
    text = f"This model's maximum context length is {DIGITS} tokens ({DIGITS} > {DIGITS} - {DIGITS})"
    assert isinstance(reported({"message": text, "code": code}, "host", None), ModelServerError)
    assert isinstance(reported({"message": text, "code": 400}, "host", None), ModelServerError)
    assert host_of("http://[x") == "http://[x"


def test_counts_and_prices_that_make_no_sense() -> None:
    assert read_usage({"prompt_tokens": 10**400, "completion_tokens": -1}) == Usage()
    for price in (10**400, "1e400", "nan", "x", 1e308):
        assert listed_prices({"pricing": {"prompt": price, "completion": price}}) is None


@pytest.mark.integration
@pytest.mark.parametrize("length", [10**400, -5, 0, True])
async def test_a_window_that_makes_no_sense(server: MisbehavingServer, length: int) -> None:
    server.pages["/v1/models"] = {"data": [{"id": MODEL, "owned_by": "vllm", "max_model_len": length}]}
    assert (await probe(server.url, api_key=None, model=None)).max_model_len is None


@pytest.mark.integration
async def test_a_list_of_models_that_is_nested_too_deeply() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
    with once(head + b"[" * 100_000) as url, pytest.raises(ModelServerError):
        await probe(url, api_key=None, model=None, timeout=5)


@pytest.mark.integration
async def test_the_body_of_an_error_breaks_off() -> None:
    with once(b"HTTP/1.1 400 No\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n{") as url:
        async with Client(endpoint(url), api_key=None, attempts=1) as client:
            with pytest.raises(ModelServerError):
                await ask(client)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits, so that the tests are fast."""
    monkeypatch.setattr(bounds, "MOST_PAGE", 1 << 20)
    monkeypatch.setattr(bounds, "MOST_STREAM", 3 << 20)
    monkeypatch.setattr(bounds, "MOST_EVENT", 2 << 20)


LARGE = "x" * (1 << 20)


@pytest.mark.integration
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("status", [200, 400, 503])
async def test_a_page_that_is_too_large(server: MisbehavingServer, status: int) -> None:
    server.answers = [Reply(status, {"choices": [], "error": LARGE})]
    server.pages["/v1/models"] = server.pages["/tokenize"] = server.answers[0]
    async with Client(endpoint(server.url), api_key=None, attempts=1) as client:
        with pytest.raises((EndpointUnreachable, StreamCut), match="more than 1 MiB"):
            await ask(client)
    with pytest.raises(EndpointUnreachable, match="more than 1 MiB"):
        await probe(server.url, api_key=None, model=None)
    url = server.url.removesuffix("/v1") + "/tokenize"
    with (
        TokenizeClient(url, model=None, api_key=None, attempts=1) as client,
        pytest.raises(EndpointUnreachable, match="more than 1 MiB"),
    ):
        client.tokenize("text")


@pytest.mark.integration
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([delta(content=LARGE)] * 4, "more than 3 MiB"),
        (["data: " + LARGE, LARGE, LARGE], "event of more than 2 MiB"),
        (["data: x\n" * (1 << 18)] * 4, "event of more than 2 MiB|more than 3 MiB"),
    ],
)
async def test_a_stream_that_is_too_large(server: MisbehavingServer, events: list[Any], why: str) -> None:
    server.answers = [Stream(events)]
    async with Client(endpoint(server.url), api_key=None, attempts=1) as client:
        with pytest.raises(StreamCut, match=why):
            await ask(client)


@pytest.mark.integration
async def test_responses_are_never_unpacked(server: MisbehavingServer) -> None:
    body = gzip.compress(gzip.compress(json.dumps({"data": [{"id": MODEL}]}).encode()))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip, gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    with once(head + body) as url, pytest.raises(EndpointUnreachable, match="compressed"):
        await probe(url, api_key=None, model=None, timeout=5)
    await probe(server.url, api_key=None, model=None)
    assert {request.headers["accept-encoding"] for request in server.requests} == {"identity"}


@pytest.mark.integration
async def test_a_stream_that_continues_after_its_end(server: MisbehavingServer) -> None:
    after: list[Any] = [": nothing\n\n"] * 100_000
    server.answers = [Stream([delta(content="fine"), finish("stop"), "data: [DONE]\n\n", *after])]
    async with Client(endpoint(server.url), api_key=None, attempts=1) as client:
        assert (await ask(client))[1].message.text == "fine"
