"""Answers that are requested without streaming because streams break."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from m3agent.serving import wire
from m3agent.serving.client.client import RetryNote
from m3agent.serving.client.messages import Delta, Usage
from m3agent.serving.client.retry import StreamChoice
from m3agent.serving.errors import (
    DeadlineExceeded,
    EndpointRefused,
    EndpointUnreachable,
    ModelServerError,
    StreamCut,
)
from tests.servers.dialects import Answer
from tests.servers.misbehaving import (
    Cut,
    MisbehavingServer,
    Received,
    Reply,
    Silence,
    Stream,
    delta,
    messages_bytes,
)
from tests.servers.whole import whole
from tests.serving.talk import FINE, HELLO, ask, calls, client

NOT_STREAMED = "without streaming"
CUT = Stream([delta(content="half"), Cut()])
FAILED = Stream([delta(content="half"), {"error": {"message": "engine trouble", "code": 500}}])
BUSY_INSIDE = Stream([delta(content="half"), {"error": {"message": "overloaded", "code": 429}}])
READ = wire.Call("file_read", {"path": "a.py"})
SAID = Answer("I look.", "Reading.", (READ,))
WHOLE = whole(SAID)
REFUSED = Reply(400, {"error": {"message": "stream must be true"}})


def streamed(server: MisbehavingServer) -> list[bool]:
    """Return for each request whether it asked for a stream."""
    return [request.json["stream"] for request in server.chats]


@pytest.mark.parametrize("broken", [CUT, FAILED, BUSY_INSIDE, Stream([delta(content="half")])])
async def test_after_two_broken_streams_the_answer_is_requested_whole(
    server: MisbehavingServer, broken: Stream
) -> None:
    server.answers = [broken, broken, WHOLE]
    notes: list[RetryNote] = []
    async with client(server, attempts=6, on_retry=notes.append) as made:
        deltas, turn = await ask(made)
    assert (turn.message.reasoning, turn.message.text) == ("I look.", "Reading.")
    assert calls(turn) == [("file_read", {"path": "a.py"})]
    assert turn.finish == "tool_calls"
    assert turn.usage == Usage(prompt=10, completion=20)
    assert turn.first_token_seconds is None, "a whole answer does not show it"
    last = max(place for place, item in enumerate(deltas) if item.kind == "reset")
    assert deltas[last + 1 :] == [
        Delta("reasoning", "I look."),
        Delta("text", "Reading."),
        Delta("call", "file_read"),
    ]
    assert streamed(server) == [True, True, False]
    assert [NOT_STREAMED in note.reason for note in notes] == [False, True]


async def test_the_request_for_a_whole_answer(server: MisbehavingServer) -> None:
    server.answers = [CUT, CUT, WHOLE]
    async with client(server, attempts=3) as made:
        await ask(made, max_tokens=50)
    first, second, third = server.chats
    assert first.body == second.body
    assert messages_bytes(third.body) == messages_bytes(first.body)
    expected = {key: value for key, value in first.json.items() if key != "stream_options"}
    assert third.json == expected | {"stream": False}


async def test_a_whole_answer_is_repaired_like_a_streamed_one(server: MisbehavingServer) -> None:
    leaked = Answer("", wire.write("why", "ok", (READ,)))
    server.answers = [CUT, CUT, whole(leaked, finish="stop")]
    async with client(server, attempts=3) as made:
        _, turn = await ask(made)
    assert (turn.message.reasoning, turn.message.text, turn.finish) == ("why", "ok", "tool_calls")
    assert calls(turn) == [("file_read", {"path": "a.py"})]


async def test_a_whole_answer_that_the_limit_cut(server: MisbehavingServer) -> None:
    server.answers = [CUT, CUT, whole(SAID, tokens=64)]
    async with client(server, attempts=3) as made:
        _, turn = await ask(made, max_tokens=64)
    assert (calls(turn), turn.finish) == ([], "length")


async def test_one_broken_stream_or_a_busy_server_is_no_reason(server: MisbehavingServer) -> None:
    busy = Reply(503, {"error": {"message": "loading"}})
    server.answers = [busy, busy, busy, CUT, FINE]
    async with client(server, attempts=6) as made:
        await ask(made)
        server.answers = [CUT, FINE]
        await ask(made)
    assert streamed(server) == [True] * 7, "the streams of another turn do not count"


async def test_the_next_turn_streams_again(server: MisbehavingServer) -> None:
    server.answers = [CUT, CUT, WHOLE, FINE]
    async with client(server, attempts=3) as made:
        await ask(made)
        await ask(made)
    assert streamed(server) == [True, True, False, True]


async def test_after_two_such_turns_no_stream_is_requested(server: MisbehavingServer) -> None:
    server.answers = [CUT, CUT, WHOLE, CUT, CUT, WHOLE]
    async with client(server, attempts=3) as made:
        for _ in range(4):
            _, turn = await ask(made)
            assert calls(turn) == [("file_read", {"path": "a.py"})]
    assert streamed(server) == [True, True, False] * 2 + [False, False]


async def test_a_whole_answer_that_fails_gives_streams_another_chance(server: MisbehavingServer) -> None:
    server.answers = [CUT, CUT, Reply(504, "gateway timeout"), FINE]
    async with client(server, attempts=6) as made:
        _, turn = await ask(made)
    assert turn.message.text == "fine"
    assert streamed(server) == [True, True, False, True]


async def test_a_failed_whole_answer_and_another_broken_stream(server: MisbehavingServer) -> None:
    server.answers = [CUT, CUT, Reply(503, "busy"), CUT, WHOLE]
    async with client(server, attempts=6) as made:
        _, turn = await ask(made)
    assert calls(turn) == [("file_read", {"path": "a.py"})]
    assert streamed(server) == [True, True, False, True, False]


@pytest.mark.parametrize("refusal", [REFUSED, Reply(501, "not implemented"), Reply(404, "no such thing")])
async def test_a_server_that_only_streams(server: MisbehavingServer, refusal: Reply) -> None:
    server.answers = [CUT, CUT, refusal, FAILED]
    notes: list[RetryNote] = []
    async with client(server, attempts=5, on_retry=notes.append) as made:
        with pytest.raises(StreamCut, match="engine trouble"):
            await ask(made)
        server.answers = [CUT, CUT, FINE]
        await ask(made)
    assert streamed(server) == [True, True, False, True, True, True, True, True]
    assert "refuses to answer without streaming" in notes[2].reason
    assert "the connection was lost" in notes[2].reason


async def test_the_original_error_is_raised_if_the_refusal_comes_last(server: MisbehavingServer) -> None:
    for refusal in (REFUSED, Reply(200, "<html>hello</html>"), Reply(200, {"hello": 1})):
        server.answers = [CUT, CUT, refusal]
        async with client(server, attempts=3) as made:
            with pytest.raises(StreamCut, match="the connection was lost") as caught:
                await ask(made)
        assert isinstance(caught.value.__cause__, EndpointRefused)


async def test_a_refusal_of_a_later_whole_answer_is_final(server: MisbehavingServer) -> None:
    server.answers = [CUT, CUT, WHOLE, CUT, CUT, WHOLE, Reply(401, {"error": {"message": "no key"}})]
    async with client(server, attempts=3) as made:
        await ask(made)
        await ask(made)
        with pytest.raises(EndpointRefused, match="401"):
            await ask(made)


async def test_a_whole_answer_may_be_silent_until_the_deadline(server: MisbehavingServer) -> None:
    def late(_: Received) -> Reply:
        time.sleep(0.8)
        return WHOLE

    server.answers = [CUT, CUT, late]
    async with client(server, attempts=3, idle_timeout=0.3) as made:
        _, turn = await ask(made, deadline=time.monotonic() + 20)
    assert calls(turn) == [("file_read", {"path": "a.py"})]


@pytest.mark.parametrize(("deadline", "error"), [(0.8, DeadlineExceeded), (None, StreamCut)])
async def test_a_whole_answer_that_never_comes(
    server: MisbehavingServer, deadline: float | None, error: type[ModelServerError]
) -> None:
    server.answers = [CUT, CUT, Silence()]
    async with client(server, attempts=3, idle_timeout=0.2) as made, asyncio.timeout(20):
        end = None if deadline is None else time.monotonic() + deadline
        with pytest.raises(error):
            await ask(made, deadline=end)


async def test_a_server_that_streams_in_spite_of_the_request(server: MisbehavingServer) -> None:
    server.answers = [CUT, CUT, FINE]
    async with client(server, attempts=3) as made:
        _, turn = await ask(made)
    assert turn.message.text == "fine"


async def test_turns_of_one_conversation_keep_their_prefix(server: MisbehavingServer) -> None:
    server.answers = [CUT, CUT, WHOLE, FINE]
    history: list[dict[str, Any]] = [*HELLO]
    async with client(server, attempts=3) as made:
        _, turn = await ask(made, history)
        history += [
            turn.message.to_request("reasoning"),
            {"role": "tool", "tool_call_id": turn.message.calls[0].id, "content": "x"},
        ]
        await ask(made, history)
    *_, before, after = server.chats
    assert messages_bytes(after.body).startswith(messages_bytes(before.body))


def test_a_good_stream_between_two_whole_turns_is_remembered() -> None:
    choice = StreamChoice()

    def turn(*broken: bool) -> None:
        choice.begin_turn()
        for _ in broken:
            choice.stream_broke()
        choice.succeeded()

    turn(True, True)
    turn()
    turn(True, True)
    choice.begin_turn()
    assert choice.streams
    assert choice.explanation == ""
    turn(True, True)
    turn(True, True)
    choice.begin_turn()
    assert not choice.streams
    assert not choice.whole_failed(EndpointUnreachable("host", "gone"))
    assert choice.streams
