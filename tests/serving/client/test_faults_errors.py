"""Servers that fail: with a status, within a stream, with an error that looks like success, or with silence."""

from __future__ import annotations

import email.utils
import socket
import time
from typing import Any

import pytest

from m3agent.serving import wire
from m3agent.serving.client.client import RetryNote
from m3agent.serving.client.messages import Delta
from m3agent.serving.errors import ContextTooLong, EndpointRefused, StreamCut
from tests.conftest import later
from tests.servers.dialects import Answer, MiniMax, OpenRouter, Sglang, Vllm, frames
from tests.servers.misbehaving import MisbehavingServer, Pause, Reply, Silence, Stall, Stream, call, delta
from tests.serving.talk import FINE, ask, calls, client, endpoint

pytestmark = pytest.mark.integration

# Statuses


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
async def test_a_status_that_passes(server: MisbehavingServer, status: int) -> None:
    server.answers = [Reply(status, {"error": {"message": "not now"}}), FINE]
    notes: list[RetryNote] = []
    async with client(server, attempts=2, on_retry=notes.append) as made:
        deltas, turn = await ask(made)
    assert turn.message.text == "fine"
    assert [item.kind for item in deltas] == ["text"], "nothing was shown that has to be taken back"
    [note] = notes
    assert "not now" in note.reason
    assert str(status) in note.reason


@pytest.mark.parametrize("after", ["0.03", "date", "soon"])
async def test_how_long_to_wait(server: MisbehavingServer, after: str) -> None:
    asked = email.utils.formatdate(time.time() - 5, usegmt=True) if after == "date" else after
    server.answers = [Reply(503, {"error": {"message": "not now"}}, {"retry-after": asked}), FINE]
    notes: list[RetryNote] = []
    async with client(server, attempts=2, on_retry=notes.append) as made:
        _, turn = await ask(made)
    assert turn.message.text == "fine"
    expected = {"0.03": 0.03, "date": 0.0}.get(after)
    assert expected is None or notes[0].wait_seconds == pytest.approx(expected)
    assert notes[0].wait_seconds < 1


async def test_a_date_to_come_is_waited_for(server: MisbehavingServer) -> None:
    soon = email.utils.formatdate(time.time() + 4000, usegmt=True)
    server.answers = [Reply(429, {"error": {"message": "quota"}}, {"retry-after": soon}), FINE]
    async with client(server, attempts=3) as made:
        with pytest.raises(EndpointRefused) as caught:
            await ask(made)
    assert caught.value.retry_after == pytest.approx(4000, abs=60)


@pytest.mark.parametrize(
    "words",
    [
        "You exceeded your current quota, please check your plan and billing details.",
        "Insufficient balance or no resource package",
        "Your credit balance is too low",
    ],
)
async def test_an_account_without_money_is_not_asked_again(server: MisbehavingServer, words: str) -> None:
    server.answers = [Reply(429, {"error": {"message": words}})]
    async with client(server, attempts=3) as made:
        with pytest.raises(EndpointRefused):
            await ask(made)
    assert len(server.chats) == 1


# Servers that are temporarily unavailable


async def test_a_dead_engine_that_comes_back(server: MisbehavingServer) -> None:
    dead = Reply(500, {"error": {"message": "EngineDeadError: the engine core is dead", "code": 500}})
    server.answers = [dead, Reply(503, "<html>restarting</html>"), FINE]
    notes: list[RetryNote] = []
    async with client(server, attempts=3, on_retry=notes.append) as made:
        _, turn = await ask(made)
    assert turn.message.text == "fine"
    assert [note.attempt for note in notes] == [1, 2]


async def test_a_server_that_is_not_there_yet() -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    late = MisbehavingServer(port)
    late.answers = [FINE]
    notes: list[RetryNote] = []

    def start(note: RetryNote) -> None:
        notes.append(note)
        if len(notes) == 1:
            late.__enter__()

    there = endpoint(f"http://127.0.0.1:{port}/v1")
    try:
        async with client(late, endpoint=there, attempts=5, on_retry=start) as made:
            _, turn = await ask(made)
    finally:
        late.stop()
    assert turn.message.text == "fine"
    assert f"127.0.0.1:{port}" in notes[0].reason


@pytest.mark.parametrize(
    "silent", [Silence(), Stream([delta(content="half"), Stall()]), later(Stream([": ping\n\n", Stall()]))]
)
async def test_silence_and_then_an_answer(server: MisbehavingServer, silent: Any) -> None:
    server.answers = [silent, FINE]
    notes: list[RetryNote] = []
    async with client(server, attempts=9, idle_timeout=0.7, on_retry=notes.append) as made:
        _, turn = await ask(made)
    assert turn.message.text == "fine"
    assert "no data for 0.7 s" in notes[0].reason


async def test_a_connection_left_open_after_the_end_is_not_waited_for(server: MisbehavingServer) -> None:
    server.answers = [Stream([*FINE.events, "data: [DONE]\n\n", Stall()], done=False)]
    async with client(server) as made:
        _, turn = await ask(made)
    assert turn.message.text == "fine"
    assert turn.seconds < 10, "the client's patience is 20 s"


async def test_comments_alone_are_no_sign_of_life(server: MisbehavingServer) -> None:
    server.answers = [Stream([part for _ in range(40) for part in (": ping\n\n", Pause(0.05))])]
    async with client(server, idle_timeout=0.3) as made:
        with pytest.raises(StreamCut):
            await ask(made)


# Errors inside a stream


ANSWER = Answer("I think.", "Reading.", (wire.Call("file_read", {"path": "a.py"}),))
TROUBLE = "the engine has trouble"
ERRORS = {
    "vllm": {"error": {"message": TROUBLE, "type": "InternalServerError", "param": None, "code": 500}},
    "vllm before": {"object": "error", "message": TROUBLE, "type": "InternalServerError", "code": 500},
    "text": {"error": TROUBLE},
    "openrouter": OpenRouter().chunk({"content": ""}, "error") | {"error": {"code": 502, "message": TROUBLE}},
    "openrouter without": OpenRouter().chunk({"content": ""}, "error"),
    "sglang": Sglang().chunk({}, "abort"),
    "dynamo": 'event: error\ndata: {"error": {"message": "the engine has trouble", "code": 500}}\n\n',
    "dynamo before": "event: error\n: the engine has trouble\n\n",
    "minimax": {"type": "error", "error": {"type": "server_error", "message": f"{TROUBLE} (1000)", "http_code": "500"}},
    "minimax base_resp": {"choices": None, "base_resp": {"status_code": 1000, "status_msg": TROUBLE}},
    "not json": "data: {not json\n\n",
    "not utf-8": b"data: {\"choices\": \"\xff\"}\n\n",
}  # fmt: skip


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS.keys())
async def test_an_error_in_the_stream(server: MisbehavingServer, error: Any) -> None:
    half = [delta(content="half "), call(0, "file_write", '{"path": "a"}', "i")]
    server.answers = [Stream([*half, error]), FINE]
    notes: list[RetryNote] = []
    async with client(server, attempts=2, on_retry=notes.append) as made:
        deltas, turn = await ask(made)
    assert (turn.message.text, turn.message.calls) == ("fine", ())
    assert deltas[-2:] == [Delta("reset", ""), Delta("text", "fine")]
    assert server.chats[0].body == server.chats[1].body
    [note] = notes
    says_why = isinstance(error, dict) and TROUBLE in str(error)
    assert not says_why or TROUBLE in note.reason


@pytest.mark.parametrize(
    "harmless",
    [
        "event: ping\n\n",
        "event: ping\ndata: {}\n\n",
        "retry: 1000\n\n",
        "id: 7\n\n",
        "data: \n\n",
        'event: llm_metrics\ndata: {"input_tokens": 5}\n\n',
        ": comment\n\n",
        "data: null\n\n",
        'data: {"choices": []}\n\n',
    ],
)
async def test_events_that_say_nothing_are_no_error(server: MisbehavingServer, harmless: str) -> None:
    sent: list[Any] = []
    for frame in frames(Vllm().say(ANSWER, 8), Vllm()):
        sent += [harmless, frame]
    server.answers = [Stream(sent, done=False)]
    async with client(server) as made:
        _, turn = await ask(made)
    assert (turn.message.reasoning, turn.message.text) == (ANSWER.reasoning, ANSWER.text)
    assert calls(turn) == [("file_read", {"path": "a.py"})]


# Errors of the hosted API, which come with status 200


@pytest.mark.parametrize("streams", [True, False], ids=["event", "body"])
@pytest.mark.parametrize(
    ("code", "words", "status", "advice"),
    [
        (1002, "rate limit", 429, "limits requests"),
        (1000, "unknown error", 500, "log"),
        (4711, "a new error", 500, "log"),
        (1004, "not authorized", 401, "M3AGENT_API_KEY"),
        (1008, "insufficient balance", 402, "top it up"),
        (1027, "output is sensitive", 400, "rejects this request"),
        (2013, "invalid params, tool result's tool id not found", 400, "rejects this request"),
        (2013, "invalid params, context window exceeds limit", None, ""),
    ],
)
async def test_an_error_with_status_200(
    server: MisbehavingServer, code: int, words: str, status: int | None, advice: str, streams: bool
) -> None:
    error = {"choices": None, "base_resp": {"status_code": code, "status_msg": f"{words} sk-secret"}}
    server.answers = [Stream([error], done=False) if streams else Reply(200, error)]
    hosted = endpoint(server.url, flavour="unknown", reasoning_field=MiniMax.field)
    async with client(server, endpoint=hosted, attempts=2, retry_seconds=0.03, api_key="sk-secret") as made:
        with pytest.raises(ContextTooLong if status is None else EndpointRefused) as caught:
            await ask(made)
    said, passes = str(caught.value), status in (429, 500)
    assert advice in said and "sk-secret" not in said
    assert (len(server.chats) > 1) == passes
    if isinstance(caught.value, EndpointRefused):
        assert (caught.value.status, caught.value.retriable, words in said) == (status, passes, True)
