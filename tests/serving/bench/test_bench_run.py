"""The bench against a server that waits for each prompt token that is not in its cache."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from m3agent.serving.bench.options import Options
from m3agent.serving.bench.result import BenchResult, BenchRow, from_json, to_json
from m3agent.serving.bench.run import BenchProgress, bench
from m3agent.serving.client.endpoint import probe
from m3agent.serving.errors import EndpointRefused
from tests.servers.misbehaving import history_faults
from tests.servers.paced import BLOCK, PacedServer

pytestmark = pytest.mark.integration

SMALL: dict[str, Any] = {
    "lengths": (2048,),
    "rounds": 2,
    "output_tokens": 6,
    "concurrency": (),
    "stream_prompt": 2048,
    "stream_output": 6,
    "agents": 0,
    "shared_prefix": 2048,
}
WARM_UP = 2  # requests, in a run without parallel streams


async def measured(url: str, heard: list[BenchProgress] | None = None, **options: Any) -> BenchResult:
    endpoint = await probe(url, api_key=None, model=None)
    told: list[BenchProgress] = [] if heard is None else heard
    return await bench(endpoint, api_key=None, options=Options(**(SMALL | options)), listen=told.append)


def row(result: BenchResult, kind: Any, tokens: int = 2048, streams: int = 1) -> BenchRow:
    found = result.row(kind, tokens, streams)
    assert found is not None
    return found


def median_ttft(found: BenchRow) -> float:
    assert found.ttft is not None
    return found.ttft.median


async def test_a_draft_s_accepted_length_is_that_of_the_bench_alone() -> None:
    with PacedServer(accepting=1.78) as server:
        result = await measured(server.url)
    assert result.accepted_length == pytest.approx(2.78)
    assert from_json(to_json(result)).accepted_length == result.accepted_length
    with PacedServer() as server:
        assert (await measured(server.url)).accepted_length is None


@pytest.mark.slow
async def test_a_cached_turn_waits_less_and_a_longer_prompt_longer() -> None:
    with PacedServer(prefill=50e-6) as server:  # seconds per token: far more than a busy machine adds
        result = await measured(server.url, lengths=(2048, 8192))
    assert result.ended == "finished"
    waits = {(one.kind, one.tokens): median_ttft(one) for one in result.rows}
    assert waits["cold", 2048] < waits["cold", 8192]
    assert waits["cached", 8192] < waits["cold", 8192]
    speed_up = result.speed_up(row(result, "cached", 8192))
    assert speed_up == waits["cold", 8192] / waits["cached", 8192]


async def test_prompts_have_exactly_the_requested_tokens() -> None:
    with PacedServer(prefill=0) as server:
        result = await measured(server.url, lengths=(2048, 5000), concurrency=(2,), agents=3)
        assert server.prompts.count(5000) == 2
    for kind, tokens, streams in (
        ("cold", 2048, 1),
        ("cold", 5000, 1),
        ("streams", 2048, 2),
        ("first", 2048, 1),
    ):
        assert {request.prompt_tokens for request in row(result, kind, tokens, streams).requests} == {tokens}


@pytest.mark.slow
async def test_the_cached_counts_are_the_servers_and_nothing_is_marked() -> None:
    with PacedServer(prefill=0) as server:
        result = await measured(server.url, lengths=(8192,), agents=4, shared_prefix=4096, concurrency=(2,))
    assert [one.marks for one in result.rows] == [()] * 5
    assert {request.cached_tokens for request in row(result, "cold", 8192).requests} == {0}
    assert {request.cached_tokens for request in row(result, "first", 4096).requests} == {0}
    assert {request.cached_tokens for request in row(result, "streams", 2048, 2).requests} == {0}
    for request in row(result, "cached", 8192).requests:
        assert request.reusable == 8192
        assert request.cached_tokens is not None and 8192 - 2 * BLOCK < request.cached_tokens < 8192
    sharing = row(result, "sharing", 4096, 3).requests
    assert len(sharing) == 2 * 3
    assert all(one.cached_tokens is not None and one.cached_tokens > 4096 - 3 * BLOCK for one in sharing)


@pytest.mark.parametrize(
    ("faults", "cold", "cached"),
    [
        ({"caching": False}, "", "not cached: 0 of 2,"),
        (
            {"reporting": False},
            "the server does not report cached tokens",
            "the server does not report cached tokens",
        ),
        ({"boasting": True}, "not cold: 2,048 of 2,048 tokens", ""),
    ],
    ids=["no cache", "no report", "says that all was cached"],
)
async def test_a_cache_that_is_not_as_it_should_be_is_marked(faults: Any, cold: str, cached: str) -> None:
    with PacedServer(prefill=0, **faults) as server:
        result = await measured(server.url)
    for kind, words in (("cold", cold), ("cached", cached)):
        marks = row(result, kind).marks
        assert len(marks) == bool(words)
        assert all(mark.startswith(words) for mark in marks)


async def test_failed_request_is_marked_and_the_others_continue() -> None:
    with PacedServer(prefill=0, fails=(WARM_UP + 1, WARM_UP + 3)) as server:
        result = await measured(server.url, rounds=3)
    assert result.ended == "finished"
    cold, cached = row(result, "cold"), row(result, "cached")
    assert [len(cold.rounds), len(cold.requests)] == [3, 2]
    assert "answered 500: the engine tripped" in cold.marks[0]
    # After a failed cold prompt, a further turn would find nothing in the cache.
    assert [len(cached.rounds), len(cached.requests)] == [2, 1]


async def test_a_server_that_fails_at_once_is_an_error() -> None:
    with PacedServer(fails=(1,)) as server, pytest.raises(EndpointRefused, match="the engine tripped"):
        await measured(server.url)


@contextmanager
def own_process(**options: Any) -> Iterator[str]:
    argv = [sys.executable, "-m", "tests.servers.paced", json.dumps(options)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


async def test_a_server_that_dies_ends_the_bench_with_what_there_is() -> None:
    with own_process(prefill=0, dies_after=WARM_UP + 4) as url:  # the second round's cached turn
        result = await measured(url, rounds=3)
    assert result.ended == "died"
    assert result.error is not None and "No answer from a model server" in result.error
    assert len(row(result, "cold").requests) == 2
    assert len(row(result, "cached").requests) == 1
    assert "broke off" in row(result, "cached").marks[0]
    assert result.left_out == (
        "2,048 tokens, cold and cached (1 of 3 rounds): left out because the server had died",
    )
    assert from_json(to_json(result)) == result


async def test_the_wanted_number_of_streams_is_served_at_a_time() -> None:
    with PacedServer(prefill=0) as server:
        result = await measured(server.url, lengths=(), concurrency=(1, 3), rounds=1)
        assert server.most_at_once == 3
        openings = [body["messages"][0]["content"] for body in server.bodies]
    assert [one.key for one in result.rows] == [("streams", 2048, 1), ("streams", 2048, 3)]
    nonces = [opening.split(".")[0] for opening in openings]
    assert len(set(nonces)) == len(nonces) - 1  # only the warm-up repeats an opening, in its further turn


async def test_output_of_streams_is_all_their_tokens_by_the_time_they_took() -> None:
    with PacedServer(prefill=0) as server:
        result = await measured(server.url, lengths=(), concurrency=(3,), rounds=1)
    streams = row(result, "streams", 2048, 3)
    assert streams.tokens_per_second == 3 * 6 / streams.rounds[0].seconds


async def test_prompts_beyond_the_window_are_left_out_or_shortened_slightly() -> None:
    with PacedServer(prefill=0, window=20_480) as server:
        result = await measured(
            server.url, lengths=(4096, 20_000, 131_072), agents=2, shared_prefix=131_072, rounds=1
        )
    room = 20_480 - 1024 - 6
    assert [one.key for one in result.rows] == [
        ("cold", 4096, 1),
        ("cold", room, 1),
        ("cached", 4096, 1),
        ("cached", room, 1),
        ("first", room, 1),
        ("sharing", room, 1),
    ]
    assert result.left_out == (
        "131,072 tokens: the server's window of 20,480 must also hold the answer and a further turn",
    )
    assert [one.marks for one in result.rows] == [()] * 6


async def test_without_time_nothing_is_begun_and_all_of_it_is_named() -> None:
    with PacedServer(prefill=0) as server:
        result = await measured(server.url, agents=3, concurrency=(2,), max_seconds=0.001)
        assert len(server.bodies) == WARM_UP + 2
    assert (result.rows, result.ended) == ((), "finished")
    assert sorted(result.left_out) == [
        "2 at a time, 2,048 tokens each: left out for lack of time (0.001 s)",
        "2,048 tokens, cold and cached: left out for lack of time (0.001 s)",
        "3 agents that share 2,048 tokens: left out for lack of time (0.001 s)",
    ]


async def test_requests_are_those_of_an_agent_with_a_fixed_length_of_the_answer() -> None:
    with PacedServer(prefill=0) as server:
        await measured(server.url, rounds=1)
        bodies = server.bodies[WARM_UP:]
    cold, cached = bodies
    assert cold["ignore_eos"] is True
    assert (cold["min_tokens"], cold["max_tokens"], cold["temperature"]) == (6, 6, 0.0)
    assert cold["stream_options"] == {"include_usage": True}
    assert cold["chat_template_kwargs"] == {"thinking_mode": "adaptive"}
    assert [message["role"] for message in cached["messages"]] == ["system", "user", "assistant", "user"]
    assert history_faults([json.dumps(body, separators=(",", ":")).encode() for body in bodies]) == []


async def test_a_server_of_another_kind_gets_no_parameters_that_it_may_not_know() -> None:
    with PacedServer(prefill=0, owner="acme") as server:
        result = await measured(server.url, rounds=1)
        assert not any(
            {"ignore_eos", "min_tokens", "chat_template_kwargs"} & body.keys() for body in server.bodies
        )
    # It may stop early, which is no fault. Its tokenizer is not asked, so the length is only near the requested one.
    cold = row(result, "cold")
    assert cold.marks == ()
    assert cold.requests[0].completion_tokens == 5
    assert cold.prompt_tokens is not None and abs(cold.prompt_tokens - 2048) < 100


@pytest.mark.slow
async def test_two_runs_with_one_seed_send_the_same_text_behind_another_beginning() -> None:
    with PacedServer(prefill=0) as server:
        first = await measured(server.url, rounds=1, seed=7)
        second = await measured(server.url, rounds=1, seed=7)
        third = await measured(server.url, rounds=1, seed=8)
        texts = [body["messages"][1]["content"][:5000] for body in server.bodies]
        openings = [body["messages"][0]["content"] for body in server.bodies]
    assert [row(one, "cold").marks for one in (first, second, third)] == [()] * 3
    assert texts[0] == texts[4] != texts[8]
    assert openings[0] != openings[4]


async def test_the_room_in_the_cache_is_read_from_the_servers_metrics() -> None:
    with PacedServer(prefill=0) as server:
        result = await measured(server.url, rounds=1)
    assert result.kv_tokens == 38_902 * 128


async def test_each_step_is_announced_with_what_is_there_so_far() -> None:
    heard: list[BenchProgress] = []
    with PacedServer(prefill=0) as server:
        result = await measured(server.url, heard, agents=2)
    assert [one.doing for one in heard] == [
        "warming up",
        "2,048 tokens, cold and cached, round 1 of 2",
        "2,048 tokens, cold and cached, round 2 of 2",
        "2 agents that share 2,048 tokens, round 1 of 2",
        "2 agents that share 2,048 tokens, round 2 of 2",
        "done",
    ]
    assert [sum(len(one.rounds) for one in told.result.rows) for told in heard] == [0, 0, 2, 4, 6, 8]
    assert [told.to_come is None for told in heard] == [True, True, False, False, False, False]
    assert heard[-1].result == result


async def test_a_server_without_a_tokenizers_page_gets_prompts_of_about_the_length() -> None:
    with PacedServer(prefill=0, tokenizing=False) as server:
        result = await measured(server.url, lengths=(8192,))
    tokens = row(result, "cold", 8192).prompt_tokens
    assert tokens is not None and abs(tokens - 8192) < 200
    assert row(result, "cached", 8192).marks == ()
