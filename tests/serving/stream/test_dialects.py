"""Whole conversations with each kind of server, over HTTP, in pieces of any size."""

from __future__ import annotations

import json
from typing import Any

import pytest

from m3agent.serving import wire
from m3agent.serving.errors import EndpointRefused
from tests.servers import strict
from tests.servers.dialects import DIALECTS, Answer, Dialect, MiniMax, frames, writes
from tests.servers.misbehaving import MisbehavingServer, Pause, Received, Stream
from tests.serving.talk import HELLO, ask, calls, client, endpoint

SCRIPT = [
    Answer(
        "I look first: é🙂.\n",
        "Reading &amp; writing.",
        (
            wire.Call("file_read", {"path": "ä.py", "end": 10**30}),
            wire.Call("file_write", {"path": "b-c.py", "content": "if a &amp; b < c:\n    pass\n"}),
        ),
    ),
    Answer("", "", (wire.Call("file_read", {"path": "b-c.py"}),)),
    Answer("Thus it is done.", "Done."),
]


async def converse(server: MisbehavingServer, dialect: Dialect, answers: list[Any], **options: Any) -> None:
    """Hold the conversation of SCRIPT with these answers. Check the client's requests and turns."""
    server.answers = answers
    server.accepts = dialect.accepts
    at = endpoint(server.url, flavour=dialect.flavour, reasoning_field=dialect.field)
    history: list[dict[str, Any]] = [{"role": "system", "content": "s"}, *HELLO]
    async with client(server, endpoint=at, **options) as made:
        for said in SCRIPT:
            _, turn = await ask(made, history)
            assert (turn.message.reasoning, turn.message.text) == (said.reasoning, said.text)
            assert calls(turn) == [(call.name, call.arguments) for call in said.calls]
            assert turn.finish == said.finish
            assert turn.usage.cached == 64
            history.append(turn.message.to_request(dialect.field))
            for call in turn.message.calls:
                history.append({"role": "tool", "tool_call_id": call.id, "content": "ok"})
        await ask(made, [*history, {"role": "user", "content": "go on"}])
    assert strict.faults(server.chats, dialect, SCRIPT) == []


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_a_conversation(server: MisbehavingServer, dialect: Dialect) -> None:
    answers = [Stream(frames(dialect.say(said, 7), dialect), done=False) for said in SCRIPT]
    await converse(server, dialect, answers)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("size", [3, 100_000], ids=["torn", "at once"])
async def test_writes_of_any_size_and_any_line_end(
    server: MisbehavingServer, size: int, newline: str
) -> None:
    dialect = DIALECTS[0]
    sent = [frames(dialect.say(said, 200), dialect, newline=newline) for said in SCRIPT]
    await converse(server, dialect, [Stream(writes(parts, size), done=False) for parts in sent])


async def test_comments_and_pauses_are_no_part_of_an_answer(server: MisbehavingServer) -> None:
    dialect = DIALECTS[0]
    answers = []
    for said in SCRIPT:
        events: list[Any] = []
        for frame in frames(dialect.say(said, 30), dialect):
            events += [": keep-alive\n\n", Pause(0.005), "\n", frame]
        answers.append(Stream(events, done=False))
    await converse(server, dialect, answers)


async def test_parameters_that_a_server_does_not_know_are_refused_by_the_test_server(
    server: MisbehavingServer,
) -> None:
    server.accepts = frozenset({"messages"})
    server.answers = [Stream([])]
    async with client(server) as made:
        with pytest.raises(EndpointRefused, match="unknown: "):
            await ask(made)


def test_a_strict_server_sees_what_is_wrong() -> None:
    def request(*messages: dict[str, Any], **more: Any) -> Received:
        body = {"messages": [*HELLO, *messages], "model": "m"} | more
        return Received("/", {"openai-organization": "o"}, json.dumps(body, separators=(",", ":")).encode())

    function = {"name": "f", "arguments": "[]"}
    wrong = {
        "role": "assistant",
        "content": "x",
        "reasoning": "r",
        "tool_calls": [{"id": "1", "function": function}] * 2,
    }
    found = strict.faults(
        [
            request({"role": "user", "content": "a"}, top_k=4),
            request(
                wrong, {"role": "tool", "tool_call_id": "2", "content": ""}, {"role": "user", "content": "b"}
            ),
        ],
        MiniMax(),
        [Answer("all of it", "x")],
    )
    assert {fault.partition(":")[0] for fault in found} == {
        "a later request rewrote an earlier message",
        "a call without its result right behind it",
        "a header without a purpose",
        "a tool result without its call",
        "an unknown parameter",
        "arguments that are no object",
        "reasoning that is not what was said",
        "reasoning under reasoning",
        "two calls with one id",
    }
