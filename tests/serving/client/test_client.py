"""The client against a real server that follows a script: first correct answers, then wrong ones."""

import asyncio
import time
from contextlib import aclosing

import pytest

from m3agent.serving import wire
from m3agent.serving.client.client import RetryNote
from m3agent.serving.client.messages import Delta, ToolCall, Usage
from m3agent.serving.errors import (
    ContextTooLong,
    DeadlineExceeded,
    EndpointRefused,
    EndpointUnreachable,
    ModelServerError,
    ServerDied,
    StreamCut,
)
from tests.servers.misbehaving import (
    MODEL,
    Cut,
    MisbehavingServer,
    Reply,
    Stall,
    Stream,
    call,
    delta,
    finish,
    leaked,
    usage,
)
from tests.serving.fold import TOOLS
from tests.serving.talk import FINE, HELLO, answer, ask, calls, client, endpoint

NS = "]<]minimax[>["


# Requests


async def test_a_request(server: MisbehavingServer) -> None:
    turn = await answer(server, FINE, max_tokens=50, thinking="enabled")
    [request] = server.chats
    assert request.json == {
        "messages": HELLO,
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": TOOLS,
        "tool_choice": "auto",
        "max_tokens": 50,
        "temperature": 1.0,
        "top_p": 0.95,
        "top_k": 40,
        "chat_template_kwargs": {"thinking_mode": "enabled"},
    }
    assert turn.message.text == "fine"
    assert turn.finish == "stop"
    assert turn.first_token_seconds is not None
    assert 0 < turn.first_token_seconds <= turn.seconds < 20


# Answers in each server's dialect


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_arguments_in_pieces_and_reasoning_by_either_name(
    server: MisbehavingServer, field: str
) -> None:
    arguments = '{"path": "a.py", "content": "if a &amp; b < c:\\n"}'
    pieces = [call(0, None, arguments[at : at + 5]) for at in range(0, len(arguments), 5)]
    server.answers = [
        Stream(
            [
                delta(role="assistant", content=""),
                delta(**{field: "why "}),
                delta(**{field: "not"}),
                delta(content="Writing."),
                call(0, "file_write", "", "id-1"),
                *pieces,
                finish("tool_calls"),
                usage(
                    1000,
                    20,
                    prompt_tokens_details={"cached_tokens": 990},
                    completion_tokens_details={"reasoning_tokens": 2},
                ),
            ]
        )
    ]
    async with client(server) as made:
        deltas, turn = await ask(made)
    expected = {"path": "a.py", "content": "if a &amp; b < c:\n"}
    assert turn.message.calls == (ToolCall("id-1", "file_write", expected, arguments),)
    assert (turn.message.reasoning, turn.message.text) == ("why not", "Writing.")
    assert turn.usage == Usage(prompt=1000, cached=990, completion=20, reasoning=2)
    assert turn.finish == "tool_calls"
    assert deltas == [
        Delta("reasoning", "why "),
        Delta("reasoning", "not"),
        Delta("text", "Writing."),
        Delta("call", "file_write"),
    ]


async def test_a_server_that_does_not_stream(server: MisbehavingServer) -> None:
    message = {"role": "assistant", "reasoning": "r", "content": "whole", "tool_calls": None}
    body = {
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
    turn = await answer(server, Reply(200, body))
    assert (turn.message.reasoning, turn.message.text, turn.usage.prompt) == ("r", "whole", 3)


# Servers that get M3's markup wrong


async def test_reasoning_without_its_opening_tag_is_taken_back_from_the_text(
    server: MisbehavingServer,
) -> None:
    server.answers = [leaked("because</mm:think>So.", size=40)]
    async with client(server) as made:
        deltas, turn = await ask(made)
    assert (turn.message.reasoning, turn.message.text) == ("because", "So.")
    assert deltas[-3:] == [Delta("reset", ""), Delta("reasoning", "because"), Delta("text", "So.")]


async def test_text_that_speaks_of_the_tag_stays_text_when_the_server_splits(
    server: MisbehavingServer,
) -> None:
    events = [delta(reasoning="hm"), delta(content="It ends with </mm:think>, "), delta(content="always.")]
    turn = await answer(server, Stream([*events, finish("stop")]))
    assert turn.message.reasoning == "hm"
    assert turn.message.text == "It ends with </mm:think>, always."


CALLS = [
    wire.Call("file_write", {"path": "a.py", "content": f"<a>&amp;{NS}\n"}),
    wire.Call("file_read", {"path": "b-c", "end": 10**30}),
]


@pytest.mark.parametrize(
    "text", [f'{NS}<invoke name="file_read">{NS}<path>a', '{"name": "file_read", "arg'], ids=["open", "JSON"]
)
async def test_a_call_that_is_no_whole_call_is_answered_and_not_run(
    server: MisbehavingServer, text: str
) -> None:
    [made] = (await answer(server, leaked(f"{NS}<tool_call>{text}"))).message.calls
    assert (made.name, made.arguments) == ("file_read", None)
    assert made.error is not None


@pytest.mark.parametrize("arguments", ['{"path": "a', "[1]", '"a"', "{" * 100_000])
async def test_bad_arguments_are_an_error_of_the_call(server: MisbehavingServer, arguments: str) -> None:
    turn = await answer(server, Stream([call(0, "file_read", arguments, "i"), finish("tool_calls")]))
    [made] = turn.message.calls
    assert made.arguments is None
    assert made.error is not None
    assert made.arguments_text == arguments
    assert made.to_request()["function"]["arguments"] == "{}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"So {NS}<tool_call>read a.py{NS}</tool_call> now.", "So  now."),
        (f'So {NS}<invoke name="file_read" a.py', "So "),
        (f"So {NS}<invoke>a.py{NS}</invoke>", "So "),
    ],
)
async def test_a_call_without_a_name_is_reported_to_the_model(
    server: MisbehavingServer, text: str, said: str
) -> None:
    turn = await answer(server, leaked(text))
    [made] = turn.message.calls
    assert (made.name, made.arguments, turn.finish) == ("unnamed", None, "tool_calls")
    assert "write the call again" in str(made.error)
    assert turn.message.text == said
    turn = await answer(server, leaked(text + wire.write("", "", CALLS).removeprefix("</mm:think>")))
    assert [call.name for call in turn.message.calls if call.error] == []
    turn = await answer(server, leaked(text, reason="length"))
    assert (turn.message.calls, turn.finish) == ((), "length"), "the limit cut it"


async def test_an_opened_block_without_a_call_does_not_swallow_the_answer(server: MisbehavingServer) -> None:
    turn = await answer(server, leaked(f"So.{NS}<tool_call>\nAll is fixed.[e~[\n]~b]user"))
    assert (turn.message.text, turn.message.calls, turn.finish) == ("So.\nAll is fixed.\n", (), "stop")


async def test_calls_against_the_callers_will_are_dropped(server: MisbehavingServer) -> None:
    turn = await answer(server, leaked(wire.write("", "summary", CALLS)), tool_choice="none")
    assert (turn.message.text, turn.message.calls, turn.finish) == ("summary", (), "stop")
    assert server.chats[0].json["tools"] == TOOLS


# Answers that were cut


async def test_a_cut_labelled_tool_calls_is_known_by_its_tokens(server: MisbehavingServer) -> None:
    events = [call(0, "file_write", '{"path": "b"}', "j"), finish("tool_calls"), usage(10, 64)]
    turn = await answer(server, Stream(events), max_tokens=64)
    assert (calls(turn), turn.finish) == ([], "length")
    turn = await answer(server, Stream(events), max_tokens=65)
    assert turn.finish == "tool_calls"
    server.answers = [Stream(events)]
    async with client(server, endpoint=endpoint(server.url, max_model_len=74)) as made:
        _, turn = await ask(made)
    assert turn.finish == "length"


HALF = [delta(content="half "), call(0, "file_write", '{"path": "a"}', "i")]
BROKEN = [
    Stream(HALF, done=False),
    Stream([*HALF, Cut()]),
    Stream(HALF),  # [DONE] without a finish reason
    Stream([*HALF, {"error": {"message": "engine trouble", "code": 500}}]),  # others: test_faults_errors.py
]


@pytest.mark.parametrize("broken", BROKEN)
async def test_broken_stream_is_discarded_and_requested_again(
    server: MisbehavingServer, broken: Stream
) -> None:
    server.answers = [broken, FINE]
    notes: list[RetryNote] = []
    async with client(server, attempts=2, on_retry=notes.append) as made:
        deltas, turn = await ask(made)
    assert deltas[-2:] == [Delta("reset", ""), Delta("text", "fine")]
    assert (turn.message.text, turn.message.calls) == ("fine", ())
    [note] = notes
    assert note.attempt == 1
    assert "127.0.0.1" in note.reason
    assert server.chats[0].body == server.chats[1].body


async def test_a_recorded_answer_has_one_key_for_all_its_requests(server: MisbehavingServer) -> None:
    server.answers = [BROKEN[0], FINE, FINE]
    async with client(server, attempts=2, recorded=True) as made:
        await ask(made)
        await ask(made)
    first, again, other = (request.headers["idempotency-key"] for request in server.chats)
    assert first == again != other


async def test_others_have_no_key(server: MisbehavingServer) -> None:
    turn = await answer(server, FINE)
    assert "idempotency-key" not in server.chats[0].headers
    assert turn.tokens is None


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_stream_that_stays_broken_is_an_error(server: MisbehavingServer, broken: Stream) -> None:
    with pytest.raises(StreamCut, match=r"127\.0\.0\.1"):
        await answer(server, broken, broken)


async def test_a_stream_that_breaks_after_the_message_is_whole(server: MisbehavingServer) -> None:
    turn = await answer(server, Stream([delta(content="all"), finish("stop"), Cut()]))
    assert turn.message.text == "all"


async def test_the_deadline(server: MisbehavingServer) -> None:
    server.answers = [Stream([delta(content="x"), Stall()])]
    started = time.monotonic()
    async with client(server, attempts=5) as made:
        with pytest.raises(DeadlineExceeded):
            await ask(made, deadline=started + 0.7)
    assert time.monotonic() - started < 30
    assert len(server.chats) == 1


# Refusals and retries


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (Reply(404, {"detail": "Not Found"}), 404),
        *((Reply(n, {"error": {"message": "no: sk-secret"}}), n) for n in (400, 401, 402, 403, 422)),
    ],
)
async def test_a_refusal_is_final_and_keeps_the_key(
    server: MisbehavingServer, reply: Reply, status: int
) -> None:
    server.answers = [reply]
    async with client(server, attempts=3, api_key="sk-secret") as made:
        with pytest.raises(EndpointRefused) as caught:
            await ask(made)
    assert caught.value.status == status
    assert "127.0.0.1" in str(caught.value)
    assert "sk-secret" not in str(caught.value)
    assert len(server.chats) == 1


async def test_too_long_prompt_reported_inside_the_stream(server: MisbehavingServer) -> None:
    error = {"message": "maximum context length is 4096 tokens, you requested 5000 tokens", "code": 400}
    with pytest.raises(ContextTooLong):
        await answer(server, Stream([{"error": error}]), FINE)


async def test_nothing_listens_there(server: MisbehavingServer) -> None:
    nowhere = endpoint("http://127.0.0.1:9/v1")
    async with client(server, endpoint=nowhere, attempts=2) as made:
        with pytest.raises(EndpointUnreachable, match=r"127\.0\.0\.1:9"):
            await ask(made)


async def test_a_dead_engine(server: MisbehavingServer) -> None:
    server.answers = [Reply(500, {"error": {"message": "EngineDeadError: the engine core is dead"}})]
    async with client(server, retry_seconds=0.1) as made:
        with pytest.raises(ServerDied):
            await ask(made)


async def test_a_caller_may_stop_midway(server: MisbehavingServer) -> None:
    server.answers = [Stream([delta(content="x"), Stall()])]
    async with client(server, attempts=5) as made:
        async with aclosing(made.complete(HELLO, TOOLS)) as items:
            async for item in items:
                assert item == Delta("text", "x")
                break
        waiting = asyncio.create_task(ask(made))
        await asyncio.to_thread(server.wait_for_chats, 2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert len(server.chats) == 2


async def test_every_error_is_a_model_server_error() -> None:
    kinds = [ContextTooLong, DeadlineExceeded, EndpointRefused, EndpointUnreachable, ServerDied, StreamCut]
    assert all(issubclass(kind, ModelServerError) for kind in kinds)
