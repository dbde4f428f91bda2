"""The ids and log probabilities of an answer's tokens."""

from __future__ import annotations

from typing import Any

import pytest

from m3agent.serving.client.messages import TurnTokens
from m3agent.serving.client.stream.chunk import TokenCollector


def chunk(ids: Any = None, logprobs: Any = None, **fields: Any) -> dict[str, Any]:
    entries = None if logprobs is None else {"content": [{"logprob": value} for value in logprobs]}
    return {"choices": [{"index": 0, "token_ids": ids, "logprobs": entries}], **fields}


def collected(*chunks: dict[str, Any]) -> TurnTokens | None:
    collector = TokenCollector()
    for one in chunks:
        collector.add(one, next(iter(one.get("choices") or ()), None))
    return collector.found()


def test_a_stream() -> None:
    found = collected(
        chunk([], prompt_token_ids=[1, 2, 3]), chunk([4], [-0.5]), chunk([5, 6], [0.0, -2]), {"choices": []}
    )
    assert found == TurnTokens((1, 2, 3), (4, 5, 6), (-0.5, 0.0, -2.0))


def test_an_answer_at_once() -> None:
    assert collected(chunk([4], [-0.5], prompt_token_ids=[1])) == TurnTokens((1,), (4,), (-0.5,))


def test_log_probabilities_that_do_not_match_are_left_out() -> None:
    assert collected(chunk([4, 5], [-0.5], prompt_token_ids=[1])) == TurnTokens((1,), (4, 5))


@pytest.mark.parametrize(
    "chunks",
    [
        [{}],
        [chunk([4])],
        [chunk(prompt_token_ids=[1])],
        [chunk(["4"], prompt_token_ids=[1])],
        [chunk([True], prompt_token_ids=[1])],
        [chunk([-1], prompt_token_ids=[1])],
        [chunk({"4": 1}, prompt_token_ids="12")],
        [{"choices": [{"token_ids": [1], "logprobs": [1]}], "prompt_token_ids": [None]}],
    ],
)
def test_what_is_incomplete_or_no_id_is_nothing(chunks: list[dict[str, Any]]) -> None:
    assert collected(*chunks) is None
