"""Faults of the connection and of the server during a conversation."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from m3agent.serving.client.client import Client, RetryNote
from m3agent.serving.client.endpoint import probe
from m3agent.serving.errors import EndpointRefused, EndpointUnreachable, ServerDied, StreamCut
from tests.servers.misbehaving import MisbehavingServer, Reply, Stream, delta, finish
from tests.serving.talk import FINE, ask, endpoint

pytestmark = pytest.mark.integration


@contextmanager
def once(answer: bytes) -> Iterator[str]:
    """Serve the same bytes for every request and then close the connection. Yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 20)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        listener.shutdown(socket.SHUT_RDWR)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: 5000\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        HEAD % b"application/json" + b'{"choices": [{"message": {"content": "ha',
        HEAD % b"text/event-stream" + b'data: {"choices": [{"delta": {"content": "ha',
        HEAD % b"text/event-stream" + b"data: " + b"[" * 4000 + b"\n\n",
        HEAD % b"text/event-stream" + b"data: \xff\xfe\n\n",
        HEAD % b"text/event-stream" + b'data: "a string"\n\ndata: [1]\n\ndata: null\n\n',
    ],
)
async def test_an_answer_that_breaks_off(answer: bytes) -> None:
    with once(answer) as url:
        async with Client(endpoint(url), api_key=None, attempts=2, backoff=0.01) as client:
            with pytest.raises(StreamCut, match=r"127\.0\.0\.1"):
                await ask(client)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"\x00" * 100])
async def test_responses_that_are_not_http(answer: bytes) -> None:
    with once(answer) as url:
        async with Client(endpoint(url), api_key=None, attempts=1) as client:
            with pytest.raises(EndpointUnreachable, match=r"127\.0\.0\.1"):
                await ask(client)
        with pytest.raises(EndpointUnreachable, match=r"127\.0\.0\.1"):
            await probe(url, api_key=None, model=None, timeout=5)


async def test_nested_without_end() -> None:
    deep = b'{"choices": ' + b"[" * 100_000
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(deep)
    with once(head + deep) as url:
        async with Client(endpoint(url), api_key=None, attempts=1) as client:
            with pytest.raises(EndpointRefused, match="not a chat completion"):
                await ask(client)


async def test_a_redirection_is_not_followed(server: MisbehavingServer) -> None:
    with MisbehavingServer() as other:
        other.answers = [FINE]
        server.answers = [Reply(307, "", {"location": f"{other.url}/chat/completions"})]
        async with Client(endpoint(server.url), api_key="sk-secret", attempts=3) as client:
            with pytest.raises(EndpointRefused, match="redirection") as caught:
                await ask(client)
        assert other.requests == []
        assert other.url.removeprefix("http://").removesuffix("/v1") in str(caught.value)
        server.pages["/v1/models"] = Reply(301, "", {"location": f"{other.url}/models"})
        with pytest.raises(EndpointRefused, match="redirection"):
            await probe(server.url, api_key=None, model=None)
        assert other.requests == []


async def test_a_server_that_is_started_again_is_waited_for() -> None:
    """The server has answered before, so the client makes more attempts than otherwise allowed until it is back."""
    with MisbehavingServer() as first:
        first.answers = [FINE]
        url, port = first.url, int(first.url.rpartition(":")[2].removesuffix("/v1"))
        notes: list[RetryNote] = []
        waited = asyncio.Event()

        def note(retry: RetryNote) -> None:
            notes.append(retry)
            if len(notes) == 3:
                waited.set()

        client = Client(endpoint(url), api_key=None, attempts=2, backoff=0.005, on_retry=note)
        assert (await ask(client))[1].message.text == "fine"
    async with client:
        asking = asyncio.create_task(ask(client))
        await waited.wait()
        assert not asking.done()
        second = MisbehavingServer(port)
        second.answers = [Reply(503, {"error": {"message": "loading"}})] * 4 + [FINE]
        with second:
            assert (await asking)[1].message.text == "fine"
    assert len(notes) >= 7


async def test_a_server_that_says_to_come_back_at_once_is_not_stormed(server: MisbehavingServer) -> None:
    busy = Reply(503, {"error": {"message": "loading"}}, {"retry-after": "0"})
    server.answers = [FINE, busy]
    notes: list[RetryNote] = []
    client = Client(
        endpoint(server.url), api_key=None, attempts=3, backoff=0.1, retry_seconds=1, on_retry=notes.append
    )
    async with client:
        await ask(client)
        with pytest.raises(EndpointRefused, match="503"):
            await ask(client)
    assert len(notes) < 12
    assert [note.wait_seconds for note in notes[:2]] == [0, 0]
    assert all(note.wait_seconds >= 0.1 for note in notes[2:])


async def test_turns_share_a_connection(server: MisbehavingServer) -> None:
    server.answers = [FINE]
    async with Client(endpoint(server.url), api_key=None) as client:
        for _ in range(4):
            await ask(client)
    assert len({request.port for request in server.chats}) == 1


async def test_a_server_that_stays_away_is_given_up() -> None:
    with MisbehavingServer() as mortal:
        mortal.answers = [FINE]
        client = Client(endpoint(mortal.url), api_key=None, attempts=2, backoff=0.02, retry_seconds=0.3)
        await ask(client)
    async with client:
        with pytest.raises(ServerDied, match="died while it answered"):
            await ask(client)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "reasoning_details"])
async def test_an_unknown_server_gets_reasoning_back_as_it_sends_it(
    server: MisbehavingServer, field: str
) -> None:
    value = [{"type": "reasoning.text", "text": "why"}] if field == "reasoning_details" else "why"
    server.answers = [Stream([delta(**{field: value}), finish("stop")])]
    unknown = replace(endpoint(server.url), flavour="unknown", reasoning_field="reasoning_content")
    async with Client(unknown, api_key=None) as client:
        assert client.reasoning_field == "reasoning_content"
        await ask(client)
        assert client.reasoning_field == field
    async with Client(endpoint(server.url), api_key=None) as client:
        await ask(client)
        assert client.reasoning_field == "reasoning"


async def test_a_server_that_sends_details_and_text_takes_details(server: MisbehavingServer) -> None:
    both = delta(reasoning_content="why", reasoning_details=[{"type": "reasoning.text", "text": "why"}])
    server.answers = [Stream([both, finish("stop")])]
    unknown = replace(endpoint(server.url), flavour="unknown", reasoning_field="reasoning_content")
    async with Client(unknown, api_key=None) as client:
        assert (await ask(client))[1].message.reasoning == "why"
        assert client.reasoning_field == "reasoning_details"
