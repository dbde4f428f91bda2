"""The measurements of one stream, from its events and their times."""

from __future__ import annotations

import json
from typing import Any

import pytest

from m3agent.serving.bench.result import BenchRequest
from m3agent.serving.bench.run import read_stream, timed
from m3agent.serving.client.http import open_client
from m3agent.serving.errors import DeadlineExceeded, EndpointRefused, ModelServerError, StreamCut
from tests.servers.misbehaving import Cut, MisbehavingServer, Reply, Silence, Stream, delta, finish, usage
from tests.serving.talk import endpoint

ROLE = delta(role="assistant", content="")
DONE = b"[DONE]"


def read(*events: tuple[float, Any], **fields: Any) -> BenchRequest:
    data = [(at, event if isinstance(event, bytes) else json.dumps(event).encode()) for at, event in events]
    return read_stream(data, endpoint("http://127.0.0.1:1/v1", **fields), None)


ANSWER = (
    (1.0, ROLE),
    (1.25, delta(content="a")),
    (1.5, delta(reasoning="b")),
    (2.0, delta(content="")),
    (3.0, delta(content="c")),
    (3.5, finish("length")),
    (4.0, usage(100, 5, prompt_tokens_details={"cached_tokens": 64})),
    (9.0, DONE),
)


@pytest.mark.parametrize("flavour", ["vllm", "sglang"])
def test_the_event_with_the_role_is_the_first_token_where_it_is_sent_with_it(flavour: str) -> None:
    found = read(*ANSWER, flavour=flavour)
    assert (found.ttft, found.e2e, found.itl) == (1.0, 4.0, (0.25, 1.5))
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (100, 64, 5)
    assert found.tpot == (4.0 - 1.0) / 4


@pytest.mark.parametrize("flavour", ["unknown", "minimax", "openrouter", "trtllm"])
def test_the_first_event_with_text_is_the_first_token_elsewhere(flavour: str) -> None:
    assert read(*ANSWER, flavour=flavour).ttft == 1.25


@pytest.mark.parametrize(
    "shown",
    [
        {"content": "x"},
        {"reasoning": "x"},
        {"reasoning_content": "x"},
        {"reasoning_details": [{"text": "x"}]},
        {"tool_calls": [{"index": 0, "function": {"name": "f"}}]},
    ],
)
def test_text_reasoning_and_calls_are_tokens(shown: dict[str, Any]) -> None:
    events = ((1.0, ROLE), (2.0, delta(**shown)), (3.0, finish("stop")))
    assert read(*events, flavour="unknown").ttft == 2.0


def test_an_answer_that_shows_nothing_has_a_first_token_where_the_role_tells() -> None:
    events = ((1.0, ROLE), (3.0, finish("length")), (3.5, usage(9, 64)))
    found = read(*events)
    assert (found.ttft, found.itl) == (1.0, ())
    with pytest.raises(StreamCut, match="ended without a token"):
        read(*events, flavour="unknown")


def test_one_token_has_no_time_between_tokens() -> None:
    assert read((1.0, delta(content="a")), (1.5, finish("length")), (2.0, usage(9, 1))).tpot is None


def test_without_usage_the_counts_are_unknown() -> None:
    found = read((1.0, delta(content="a")), (1.5, finish("stop")))
    assert (found.prompt_tokens, found.completion_tokens, found.tpot, found.cached_share) == (None,) * 4


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([(1.0, delta(content="a"))], "without a finish reason"),
        ([], "without a finish reason"),
        ([(1.0, b"nonsense")], "not a JSON object"),
        ([(1.0, b"[1]")], "not a JSON object"),
        ([(1.0, {"error": {"message": "out of memory", "code": 500}})], "out of memory"),
    ],
)
def test_incomplete_answer_is_an_error(events: list[tuple[float, Any]], words: str) -> None:
    with pytest.raises(ModelServerError, match=words):
        read(*events)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (Stream([ROLE, delta(content="a"), Cut()]), StreamCut, "the connection was lost"),
        (
            Reply(200, {"choices": [{"message": {"content": "a"}}]}),
            EndpointRefused,
            "only a streaming server",
        ),
        (Reply(200, "<html>hello"), EndpointRefused, "a web page"),
        (Reply(401, {"error": {"message": "bad key"}}), EndpointRefused, "bad key"),
        (Silence(), DeadlineExceeded, "did not finish its answer"),
    ],
)
async def test_failures_during_a_stream_are_reported(
    server: MisbehavingServer, answer: Any, error: type[Exception], words: str
) -> None:
    server.answers = [answer]
    async with open_client(server.url, None, connect=5, read=None) as client:
        with pytest.raises(error, match=words):
            await timed(client, endpoint(server.url), b'{"messages":[]}', None, timeout=1.5)
