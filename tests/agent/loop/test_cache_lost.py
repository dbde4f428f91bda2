"""What it costs a session that a server's cache no longer has its conversation: logged once, with the reason."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from m3agent.serving.client.client import Client, RetryNote
from m3agent.serving.client.messages import Turn, Usage
from m3agent.serving.client.parameters import Affinity
from m3agent.serving.client.prices import Prices
from tests.agent.core import core
from tests.fakes.client import says
from tests.servers.misbehaving import MisbehavingServer, Received, Stream, delta, finish
from tests.servers.router import SessionRouter
from tests.serving.talk import endpoint

LONG = 20_000


def turn(prompt: int | None, cached: int | None) -> Turn:
    return says("a", usage=Usage(prompt=prompt, cached=cached, completion=10))


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (turn(LONG, 0), turn(LONG + 50, 0), (LONG, 0, LONG)),
        (turn(LONG, 0), turn(LONG + 50, 9_999), (LONG, 9_999, 10_001)),
        (turn(LONG, 0), turn(LONG + 50, 10_000), None),
        (turn(LONG, 0), turn(5 * LONG, LONG), None),  # a prompt that has grown a lot
        (turn(10_000, 0), turn(10_050, 0), None),
        (turn(LONG, 0), turn(LONG + 50, None), None),
        (turn(None, None), turn(LONG, 0), None),
    ],
)
async def test_a_lost_cache_is_logged(
    tmp_path: Path, before: Turn, after: Turn, lost: tuple[int, int, int] | None
) -> None:
    async with core(tmp_path, before, after) as it:
        await it.model.ask()
        await it.model.ask()
        found = [(line["expected"], line["cached"], line["read_again"]) for line in it.log("cache.lost")]
        assert found == ([] if lost is None else [lost])
        assert it.kinds()[-1 if lost else -2 :][0] in ("cache.lost", "message")


async def test_a_prompt_that_does_not_go_on_has_lost_nothing(tmp_path: Path) -> None:
    async with core(tmp_path, turn(LONG, 0), turn(LONG, 0)) as it:
        await it.model.ask()
        it.model.forget_prompt()
        await it.model.ask()
        assert it.log("cache.lost") == []


async def test_the_step_in_the_price_is_told_once_before_it(tmp_path: Path) -> None:
    answers = [turn(400_000, 0), turn(479_300, 0), turn(600_000, 0)]
    async with core(tmp_path, *answers) as it:
        it.model.prices = Prices(0.3, 1.2, step=512_000, times=2.0)
        for _ in answers:
            await it.model.ask()
        found = [(line["turn"], line["tokens"], line["step"], line["times"]) for line in it.log("price.step")]
        assert found == [(2, 479_310, 512_000, 2.0)]


class Worker:
    """A model server whose prompts have 20,000 tokens and more; its cache has the longest one that it has read."""

    def __init__(self) -> None:
        self._read: dict[str, int] = {}

    def __call__(self, request: Received) -> Stream:
        messages = request.json["messages"]
        prompt, first = LONG + 100 * len(messages), str(messages[0])
        cached, self._read[first] = self._read.get(first, 0), prompt
        usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": 5}
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return Stream([delta(content="fine"), finish("stop"), {"choices": [], "usage": usage}])


@pytest.mark.integration
async def test_a_session_goes_on_at_another_server_and_says_what_the_loss_cost(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(MisbehavingServer()) for _ in range(2)]
        for server in servers:
            server.answers = [Worker()]
        router = stack.enter_context(SessionRouter([server.url for server in servers]))
        async with core(tmp_path) as it:

            def note(retry: RetryNote) -> None:
                it.model.failure = retry.reason

            it.model.client = Client(
                endpoint(router.url), api_key=None, on_retry=note, backoff=0.01, affinity=Affinity("one")
            )
            for _ in range(3):
                await it.model.ask()
            assert it.log("cache.lost") == []
            servers[0].stop()
            for _ in range(2):
                await it.model.ask()
            await it.model.client.close()
            [lost] = it.log("cache.lost")
            assert (lost["turn"], lost["expected"], lost["cached"]) == (4, LONG + 400, 0)
            assert lost["read_again"] == LONG + 400 and lost["seconds"] is not None
            assert "502" in lost["reason"] and "the worker is gone" in lost["reason"]
            shares = [line["cached_share"] for line in it.log("turn.finished")]
            assert [share > 0.98 for share in shares] == [False, True, True, False, True]
        assert router.served == [(Affinity("one").key, number) for number in (0, 0, 0, 1, 1)]
