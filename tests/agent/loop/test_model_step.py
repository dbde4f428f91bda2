"""Test one request to the model: what is sent, logged, accounted for and kept. All in memory: see tests/fakes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from m3agent.agent.loop.limits import RunLimits
from m3agent.agent.loop.model_step import RepetitiveStream
from m3agent.agent.session.messages import Digest
from m3agent.agent.session.token_log import TokenLog, read_tokens
from m3agent.agent.stall import Thresholds
from m3agent.serving.client.messages import AssistantMessage, Delta, Turn, TurnTokens, Usage
from m3agent.serving.client.parameters import Sampling
from m3agent.serving.client.prices import Prices
from m3agent.serving.errors import EndpointUnreachable, StreamCut
from tests.agent.core import FIRST_MESSAGES, core
from tests.fakes.client import ENDPOINT, HOST, USAGE, call, calls, says

CHANT = "Let me look at the file once more, and then at the test, to be sure. " * 80
TWICE = calls(call("a", "file_read", path="a.py"), call("b", "code_exec", code="1"), text="Two things.")


async def test_an_answer_is_in_the_history_and_the_log(tmp_path: Path) -> None:
    async with core(tmp_path, TWICE, says("Done.")) as it:
        answer = await it.model.ask()
        assert answer == TWICE
        assert it.kinds() == ["turn.started", "message", "turn.finished"]
        started, message, finished = it.lines
        digest = Digest()
        digest.add(FIRST_MESSAGES)
        assert (started["turn"], started["messages"], started["digest"]) == (1, 2, str(digest))
        assert (message["turn"], message["reasoning"], message["text"]) == (1, "hm", "Two things.")
        assert message["calls"] == [
            {"id": "a", "name": "file_read", "arguments": {"path": "a.py"}},
            {"id": "b", "name": "code_exec", "arguments": {"code": "1"}},
        ]
        wanted = {
            "turn": 1,
            "finish": "tool_calls",
            "prompt_tokens": 100,
            "cached_tokens": 60,
            "completion_tokens": 10,
            "reasoning_tokens": 4,
            "cached_share": 0.6,
            "price": None,
            "tokens_per_second": 6.0,
            "first_token_seconds": 0.5,
            "seconds": 2.0,
        }
        assert wanted.items() <= finished.items()
        assert list(it.messages) == [*FIRST_MESSAGES, TWICE.message.to_request("reasoning")]
        await it.model.ask()
        assert it.model.turn == 2
        assert it.asked[1].messages == it.messages[:3]
        assert it.log("turn.started")[1]["messages"] == 3


async def test_reasoning_goes_back_under_the_server_s_name(tmp_path: Path) -> None:
    async with core(tmp_path, says("Done.", reasoning="because")) as it:
        it.client.endpoint = dataclasses.replace(ENDPOINT, reasoning_field="reasoning_content")
        await it.model.ask()
        assert it.messages[-1] == {"role": "assistant", "content": "Done.", "reasoning_content": "because"}


async def test_thinking_is_enabled_by_default(tmp_path: Path) -> None:
    async with core(tmp_path, says("a")) as it:
        await it.model.ask()
        assert (it.asked[0].thinking, it.asked[0].sampling) == ("enabled", Sampling())


async def test_parameters_of_every_request(tmp_path: Path) -> None:
    async with core(tmp_path, says("a"), says("b"), limits=RunLimits(9, 7)) as it:
        it.model.thinking = "disabled"
        it.model.sampling = Sampling(temperature=0.7, seed=3)
        await it.model.ask()
        await it.model.ask("none", 20, 12.5)
        plain, other = it.asked
        assert (plain.tool_choice, plain.max_tokens, plain.deadline) == (
            "auto",
            None,
            it.loop.limits.deadline,
        )
        assert (other.tool_choice, other.max_tokens, other.deadline) == ("none", 20, 12.5)
        for asked in (plain, other):
            assert asked.tools == it.calls.tools.schemas
            assert (asked.thinking, asked.sampling) == ("disabled", Sampling(temperature=0.7, seed=3))


async def test_a_request_asks_for_no_more_tokens_than_the_limit_leaves(tmp_path: Path) -> None:
    async with core(tmp_path, says("a"), says("b"), limits=RunLimits(9, 7, tokens=500)) as it:
        await it.model.ask()
        await it.model.ask("none", 2000)
        assert [asked.max_tokens for asked in it.asked] == [500, 500 - (USAGE.completion or 0)]


async def test_usage_of_an_answer_is_counted(tmp_path: Path) -> None:
    prices = Prices(prompt=1.0, completion=10.0)
    async with core(tmp_path, says("a"), says("b"), prices=prices) as it:
        await it.model.ask()
        await it.model.ask()
        used = it.loop.limits.used
        assert (used.turns, used.prompt, used.completion) == (2, 200, 20)
        assert used.price == pytest.approx(2 * (100 * 1 + 10 * 10) / 1e6)
        assert it.log("turn.finished")[0]["price"] == pytest.approx(200 / 1e6)


async def test_time_has_its_price_too(tmp_path: Path) -> None:
    async with core(tmp_path, says("a", usage=Usage()), prices=Prices(hour=3600.0)) as it:
        await it.model.ask()
        assert it.log("turn.finished")[0]["price"] == 2.0


async def test_pieces_are_shown_as_they_come(tmp_path: Path) -> None:
    async with core(tmp_path, TWICE) as it:
        await it.model.ask()
        assert it.deltas == [
            *(Delta("reasoning", "hm"), Delta("text", "Two things.")),
            *(Delta("call", "file_read"), Delta("call", "code_exec")),
        ]
        assert it.client.closed == 1


@pytest.mark.parametrize("kind", ["reasoning", "text"])
async def test_a_chant_is_broken_off(tmp_path: Path, kind: str) -> None:
    pieces = [Delta(kind, CHANT[at : at + 500]) for at in range(0, len(CHANT), 500)]  # type: ignore[arg-type]
    async with core(tmp_path, [*pieces, says(CHANT)]) as it:
        with pytest.raises(RepetitiveStream) as raised:
            await it.model.ask()
        assert (raised.value.verdict.rule, raised.value.verdict.action) == ("chant", "tell")
        assert str(raised.value) == raised.value.verdict.text
        assert it.deltas[-1] == Delta("reset", ""), "what was shown of it is taken back"
        assert len(it.deltas) < len(pieces), "the rest was not waited for"
        assert it.client.closed == 1
        assert it.kinds() == ["turn.started"]
        assert list(it.messages) == FIRST_MESSAGES
        assert it.loop.limits.used.turns == 0


async def test_names_of_tools_are_no_chant(tmp_path: Path) -> None:
    pieces = [Delta("call", CHANT[:500])] * 40
    async with core(tmp_path, [*pieces, TWICE], thresholds=Thresholds(first_turn=1)) as it:
        assert await it.model.ask() == TWICE


@pytest.mark.parametrize("error", [StreamCut(HOST, "gone"), EndpointUnreachable(HOST, "refused")])
async def test_without_an_answer_the_history_is_as_before(tmp_path: Path, error: StreamCut) -> None:
    async with core(tmp_path, [Delta("text", "No"), error], says("Yes.")) as it:
        with pytest.raises(type(error)):
            await it.model.ask()
        assert it.kinds() == ["turn.started"]
        assert list(it.messages) == FIRST_MESSAGES
        assert it.loop.limits.used.turns == 0
        await it.model.ask()
        assert it.model.turn == 2


async def test_a_stream_ends_in_a_turn(tmp_path: Path) -> None:
    async with core(tmp_path, [Delta("text", "No")]) as it:
        with pytest.raises(AssertionError, match="ends in a Turn"):
            await it.model.ask()


async def test_an_answer_without_reasoning_has_none_in_the_history(tmp_path: Path) -> None:
    turn = Turn(AssistantMessage("", "Done."), USAGE, "stop", 1.0, None)
    async with core(tmp_path, turn) as it:
        await it.model.ask()
        assert it.messages[-1] == {"role": "assistant", "content": "Done."}


async def test_tokens_are_kept_and_a_break_is_said(tmp_path: Path) -> None:
    first = dataclasses.replace(says("a"), tokens=TurnTokens((1, 2), (3,), (-1.0,)))
    second = dataclasses.replace(says("b"), tokens=TurnTokens((1, 2, 3, 4), (5,)))
    third = dataclasses.replace(says("c"), tokens=TurnTokens((1, 2, 9), (5,)))
    async with core(tmp_path, first, second, says("without"), third) as it:
        it.model.tokens = TokenLog(tmp_path)
        for _ in range(4):
            await it.model.ask()
        it.model.tokens.close()
        assert read_tokens(tmp_path) == {1: first.tokens, 2: second.tokens, 4: third.tokens}
        [differ] = it.log("tokens.differ")
        assert (differ["turn"], differ["kept"], differ["expected"]) == (4, 2, 5)
