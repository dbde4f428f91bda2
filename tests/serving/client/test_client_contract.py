"""The client's contract with the agent's core, for the real client and for the scripted one of the core's tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

import pytest

from m3agent.serving.client.client import Client
from m3agent.serving.client.messages import AssistantMessage, Delta, ToolCall, Turn, Usage
from m3agent.serving.errors import ContextTooLong, StreamCut
from tests.fakes.client import HOST, Answer, ScriptedClient
from tests.servers.misbehaving import MisbehavingServer, Reply, Stream, call, delta, finish, usage
from tests.serving.talk import HELLO, ask, client

TURN = Turn(
    AssistantMessage("hm", "Two things.", (ToolCall("1", "file_read", {"path": "a"}, '{"path": "a"}'),)),
    Usage(prompt=5, completion=3),
    "tool_calls",
    1.0,
    0.5,
)
SENT = Stream(
    [
        delta(reasoning="h"),
        delta(reasoning="m"),
        delta(content="Two "),
        delta(content="things."),
        call(0, "file_read", '{"path": "a"}', "1"),
        finish("tool_calls"),
        usage(5, 3),
    ]
)
TOO_LONG = Reply(
    400, {"error": {"message": "maximum context length is 4096 tokens, you requested 5000 tokens"}}
)
BROKEN = Stream([delta(content="Two ")], done=False)

AnyClient = Callable[[Answer, object], Client]


@pytest.fixture(params=["scripted", "real"])
def any_client(request: pytest.FixtureRequest, server: MisbehavingServer) -> AnyClient:
    """Make a client of either kind that gets the same answer, from the script or from the server."""

    def make(scripted: Answer, sent: object) -> Client:
        server.answers = [sent]
        return ScriptedClient([scripted]) if request.param == "scripted" else client(server)

    return make


async def test_pieces_and_then_one_whole_answer(any_client: AnyClient) -> None:
    async with any_client(TURN, SENT) as made:
        deltas, turn = await ask(made)
        assert (turn.message, turn.usage, turn.finish) == (TURN.message, TURN.usage, TURN.finish)
        for kind, whole in (("reasoning", "hm"), ("text", "Two things."), ("call", "file_read")):
            assert "".join(delta.text for delta in deltas if delta.kind == kind) == whole
        assert made.reasoning_field == "reasoning"


async def test_a_prompt_that_is_too_long(any_client: AnyClient) -> None:
    async with any_client(ContextTooLong(4096, 5000), TOO_LONG) as made:
        with pytest.raises(ContextTooLong) as raised:
            await ask(made)
        assert (raised.value.limit, raised.value.asked) == (4096, 5000)


async def test_an_answer_that_breaks_off(any_client: AnyClient) -> None:
    pieces = [Delta("text", "Two ")]
    async with any_client([*pieces, StreamCut(HOST, "gone")], BROKEN) as made:
        seen = []
        with pytest.raises(StreamCut):
            async for item in made.complete(HELLO, []):
                seen.append(item)
        assert seen == pieces


async def test_a_stream_that_nobody_wants_any_more(any_client: AnyClient) -> None:
    async with any_client(TURN, SENT) as made, aclosing(made.complete(HELLO, [])) as stream:
        async for item in stream:
            assert isinstance(item, Delta)
            break
