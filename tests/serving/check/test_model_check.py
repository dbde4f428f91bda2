"""The model check's verdicts on models that answer sensibly and on models that do not."""

from __future__ import annotations

from typing import Literal

import pytest

from m3agent.serving.check.check import Check
from m3agent.serving.check.model_check import model_check
from m3agent.serving.client.endpoint import probe
from tests.servers.forced import Fault, ForcedServer, Mind

pytestmark = pytest.mark.integration


async def checked(server: ForcedServer, limit: float = 20) -> tuple[Check, Check]:
    endpoint = await probe(server.url, api_key=None, model=None)
    first, second = await model_check(endpoint, api_key=None, limit=limit)
    assert (first.name, second.name) == ("tool call", "thinking round trip")
    return first, second


@pytest.mark.parametrize("flavour", ["vllm", "sglang"])
async def test_a_model_that_answers(flavour: Literal["vllm", "sglang"]) -> None:
    with ForcedServer(flavour=flavour) as server:
        call, trip = await checked(server)
        assert len(server.chats) == 3
    assert call == Check("tool call", True, "called with the given values, try 1")
    assert trip.ok
    back = server.chats[2]["messages"]
    assert back[1]["reasoning" if flavour == "vllm" else "reasoning_content"] == "I look at the request."
    assert [message["role"] for message in back] == ["user", "assistant", "tool"]
    assert server.chats[2]["chat_template_kwargs"] == {"thinking_mode": "enabled"}


async def test_random_weights() -> None:
    with ForcedServer(mind="random") as server:
        call, trip = await checked(server)
        assert len(server.chats) == 3
        assert all(chat["max_tokens"] < 1000 for chat in server.chats)
    assert call.ok is False
    assert "no call in 3 tries, but 'ubi quaternion" in call.detail
    assert call.detail.endswith(
        "the model does not answer sensibly: its weights are random or were loaded wrongly"
    )
    assert trip == Check("thinking round trip", None, "not tried: no tool was called")


async def test_one_bad_answer_is_forgiven() -> None:
    with ForcedServer(mind="muddled once") as server:
        call, trip = await checked(server)
    assert (call.ok, call.detail[-5:], trip.ok) == (True, "try 2", True)


@pytest.mark.parametrize(
    ("mind", "call_words", "trip_words"),
    [
        ("wrong value", '"value": 48214} instead of', ""),
        ("forgetful", "", "the answer lacks the tool's result (73914): 'It reads nothing.', in 3 tries"),
        ("thoughtless", "", "the answer has no reasoning although thinking is enabled, in 3 tries"),
    ],
)
async def test_a_model_that_is_not_to_be_trusted(mind: Mind, call_words: str, trip_words: str) -> None:
    with ForcedServer(mind=mind) as server:
        call, trip = await checked(server)
    assert (call.ok, trip.ok) == (not call_words, not trip_words)
    assert call_words in call.detail
    assert trip_words in trip.detail


@pytest.mark.parametrize(
    ("fault", "words"),
    [("hangs", "within the time limit"), ("error", "answered 500"), ("empty", "no call in 3 tries")],
)
async def test_a_server_that_does_not_answer(fault: Fault, words: str) -> None:
    with ForcedServer(fault) as server:
        call, trip = await checked(server, limit=0.3 if fault == "hangs" else 20)
    assert call.ok is False and words in call.detail
    assert trip.ok is None
