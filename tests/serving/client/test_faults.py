"""Each known fault of servers with M3, in each server's dialect, over HTTP.

Each results in the correct calls or in a clear error: no crash, no lost call, no half call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from m3agent.serving import wire
from m3agent.serving.client.client import RetryNote
from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.client.messages import Turn
from m3agent.serving.errors import StreamCut
from tests.servers import faults, strict
from tests.servers.dialects import DIALECTS, Answer, Chunk, Dialect, Vllm, frames
from tests.servers.misbehaving import MisbehavingServer, Pause, Stream, messages_bytes
from tests.serving.fold import tool
from tests.serving.talk import FINE, HELLO, ask, calls, client, endpoint

NS = "]<]minimax[>["
TOOLS = [
    tool("file_write", path={"type": "string"}, content={"type": "string"}),
    tool("http_get", **{"max-bytes": {"type": "integer"}, "url": {"type": "string"}}),
]
ANSWER = Answer(
    "I think, é🙂.\nThen I act.",
    "Writing.",
    (
        wire.Call("file_write", {"path": "a.py", "content": "if a &amp; b < c:\n    x = '</path>'\n"}),
        wire.Call("http_get", {"max-bytes": 4096, "url": "x?a=1&lt=2"}),
    ),
)
CALLS = [(made.name, made.arguments) for made in ANSWER.calls]
MARKUP = wire.write("", "", ANSWER.calls).removeprefix("</mm:think>")
Change = Callable[[Chunk], object]
each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


def at(server: MisbehavingServer, dialect: Dialect) -> Endpoint:
    return endpoint(server.url, flavour=dialect.flavour, reasoning_field=dialect.field)


def streamed(chunks: list[Chunk], dialect: Dialect) -> Stream:
    return Stream(frames(chunks, dialect), done=False)


async def ask_each(
    server: MisbehavingServer, dialect: Dialect, *answers: list[Chunk], **options: Any
) -> list[Turn]:
    """Return the client's Turn for each of these answers."""
    turns = []
    async with client(server, endpoint=at(server, dialect)) as made:
        for chunks in answers:
            server.answers = [streamed(chunks, dialect)]
            turns.append((await ask(made, tools=TOOLS, **options))[1])
    return turns


def assert_right(turn: Turn) -> None:
    assert (turn.message.reasoning, turn.message.text) == (ANSWER.reasoning, ANSWER.text)
    assert calls(turn) == CALLS
    assert turn.finish == "tool_calls"


# The table


@each_dialect
async def test_thoughts_with_their_tags_in_the_content(server: MisbehavingServer, dialect: Dialect) -> None:
    text = wire.write(ANSWER.reasoning, ANSWER.text, ())
    [turn] = await ask_each(server, dialect, dialect.leak(text, 11))
    assert (turn.message.reasoning, turn.message.text) == (ANSWER.reasoning, ANSWER.text)
    assert (turn.message.calls, turn.finish) == ((), "stop")


@each_dialect
async def test_raw_calls_in_the_content_and_stop(server: MisbehavingServer, dialect: Dialect) -> None:
    [turn] = await ask_each(server, dialect, dialect.leak(ANSWER.wire, 11))
    assert_right(turn)


@each_dialect
async def test_raw_calls_behind_reasoning_that_was_split_off(
    server: MisbehavingServer, dialect: Dialect
) -> None:
    answer = Answer(ANSWER.reasoning, ANSWER.text + MARKUP)
    [turn] = await ask_each(server, dialect, dialect.say(answer, 11, finish="stop"))
    assert_right(turn)


@each_dialect
async def test_a_first_parameter_without_its_opening_tag(server: MisbehavingServer, dialect: Dialect) -> None:
    text = ANSWER.wire.replace(f"{NS}<path>", NS)
    assert text.count("<path>") < ANSWER.wire.count("<path>")
    [turn] = await ask_each(server, dialect, dialect.leak(text, 11))
    assert_right(turn)


@each_dialect
async def test_a_call_before_the_end_of_the_thoughts(server: MisbehavingServer, dialect: Dialect) -> None:
    split = dialect.leak_in_reasoning(ANSWER.reasoning + MARKUP, Answer("", ANSWER.text))
    raw = dialect.leak(f"<mm:think>{ANSWER.reasoning}{MARKUP}</mm:think>Writing.")
    for turn in await ask_each(server, dialect, split, raw):
        assert_right(turn)


@each_dialect
async def test_a_call_in_the_reasoning_that_is_parsed_as_well(
    server: MisbehavingServer, dialect: Dialect
) -> None:
    chunks = dialect.leak_in_reasoning(ANSWER.reasoning + MARKUP, ANSWER, 11, finish="tool_calls")
    [turn] = await ask_each(server, dialect, chunks)
    assert_right(turn)


async def test_a_whole_call_in_one_delta_after_a_silence(server: MisbehavingServer) -> None:
    dialect = Vllm()
    sent = frames(dialect.say(ANSWER, 10_000), dialect)
    slow: list[Any] = [part for frame in sent for part in (Pause(0.12), frame)]
    server.answers = [Stream(slow, done=False)]
    async with client(server, endpoint=at(server, dialect), idle_timeout=0.6) as made:
        _, turn = await ask(made, tools=TOOLS)
    assert_right(turn)
    assert turn.seconds > 0.6, "any delta is life: the limit is on silence, not on the answer"


@each_dialect
async def test_a_stream_cut_anywhere(server: MisbehavingServer, dialect: Dialect) -> None:
    sent = frames(dialect.say(ANSWER, 80), dialect)
    whole = 0
    async with client(server, endpoint=at(server, dialect)) as made:
        for place in range(len(sent)):
            for fault in (faults.cut, faults.cut_inside, faults.ended_early):
                server.answers = [fault(sent, place)]
                try:
                    _, turn = await ask(made, tools=TOOLS)
                except StreamCut as error:
                    assert "127.0.0.1" in str(error)
                else:
                    assert_right(turn)
                    whole += 1
    assert whole < 12, "only what comes after the finish reason may be lost"


@each_dialect
async def test_cut_stream_is_requested_again_and_leaves_nothing(
    server: MisbehavingServer, dialect: Dialect
) -> None:
    chunks = dialect.say(ANSWER, 11)
    sent = frames(chunks, dialect)
    server.answers = [
        faults.cut_inside(sent, len(sent) // 2),
        Stream(frames(faults.without_finish(chunks), dialect), done=False),
        streamed(chunks, dialect),
    ]
    notes: list[RetryNote] = []
    async with client(server, endpoint=at(server, dialect), attempts=3, on_retry=notes.append) as made:
        deltas, turn = await ask(made, tools=TOOLS)
    assert_right(turn)
    assert len(notes) == 2
    first, second, third = server.chats
    assert first.body == second.body
    assert [request.json["stream"] for request in server.chats] == [True, True, False]
    assert messages_bytes(first.body) == messages_bytes(third.body)
    last = max(place for place, item in enumerate(deltas) if item.kind == "reset")
    assert "".join(item.text for item in deltas[last:] if item.kind == "text") == ANSWER.text


@each_dialect
async def test_half_a_call_at_the_limit_whatever_the_label(
    server: MisbehavingServer, dialect: Dialect
) -> None:
    parsed = faults.half_call(dialect.say(ANSWER, 12, tokens=64))
    raw = dialect.leak(MARKUP[: MARKUP.rindex("</url>")], 12, tokens=64)
    answers = [
        faults.relabelled(chunks, label)
        for chunks in (parsed, raw)
        for label in ("length", "stop", "tool_calls")
    ]
    for turn in await ask_each(server, dialect, *answers, max_tokens=64):
        assert calls(turn) == CALLS[:1]
        assert turn.finish == "length"


# Each change is applied in place to every piece of a call. Either the calls are still right, or none is run.
HARMLESS: list[Change] = [
    lambda made: made.pop("id", None),
    lambda made: made.update(id="x") if made.get("id") else None,
    lambda made: made.pop("index", None),
    lambda made: made.update(index=0),
]
MALFORMED: list[Change] = [
    lambda made: made["function"].update(arguments=made["function"]["arguments"].replace("}", "")),
    lambda made: made["function"].update(arguments='["' if made["function"]["arguments"] else ""),
]


@each_dialect
async def test_badly_made_calls_and_the_next_request(server: MisbehavingServer, dialect: Dialect) -> None:
    server.accepts = dialect.accepts
    async with client(server, endpoint=at(server, dialect)) as made:
        for change in (*HARMLESS, *MALFORMED):
            server.requests = []
            server.answers = [streamed(faults.changed_calls(dialect.say(ANSWER, 12), change), dialect), FINE]
            history: list[dict[str, Any]] = [*HELLO]
            _, turn = await ask(made, history, tools=TOOLS)
            assert [name for name, _ in calls(turn)] == ["file_write", "http_get"]
            if change in HARMLESS:
                assert_right(turn)
            else:
                assert all(asked.arguments is None and asked.error for asked in turn.message.calls)
            history.append(turn.message.to_request(dialect.field))
            for asked in turn.message.calls:
                result = asked.error or "ok"
                history.append({"role": "tool", "tool_call_id": asked.id, "content": result})
            await ask(made, history, tools=TOOLS)
            assert strict.faults(server.chats, dialect, [ANSWER]) == []
