"""A fix whose conversation is recorded to train a model with it."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from m3agent.agent.session.token_log import read_tokens
from m3agent.serving.client.messages import TurnTokens
from tests.agent.scripted import BUGGY, DONE, FIX, TEST, Fixes, run_there
from tests.servers.misbehaving import Reply, Stream


def with_tokens(answer: Stream, prompt: list[int], completion: list[int]) -> Stream:
    """Return the answer as vLLM sends it with token ids and log probabilities."""
    [first, *others] = answer.events
    [choice] = first["choices"]
    logprobs = {"content": [{"token": "t", "logprob": -0.25} for _ in completion]}
    choice = {**choice, "token_ids": completion, "logprobs": logprobs}
    return Stream([{**first, "choices": [choice], "prompt_token_ids": prompt}, *others])


BROKEN = Reply(503, {"error": {"message": "busy"}})
TURNS = [
    TurnTokens((1, 2, 3), (4, 5), (-0.25, -0.25)),
    TurnTokens((1, 2, 3, 4, 5, 6), (7,), (-0.25,)),
    TurnTokens((1, 2, 3, 4, 5, 6, 7, 8), (9,), (-0.25,)),
]


def answers(turns: list[TurnTokens]) -> list[Any]:
    return [
        with_tokens(answer, [*turn.prompt], [*turn.completion])
        for answer, turn in zip((FIX, TEST, DONE), turns, strict=True)
    ]


@pytest.mark.slow
def test_requests_only_grow_and_tokens_are_kept(fixes: Fixes) -> None:
    first, second, third = answers(TURNS)
    done = fixes(BUGGY, [first, BROKEN, second, third], "--training", "--result-only")
    assert json.loads(done.stdout)["status"] == "verified"
    bodies = [json.loads(chat.body) for chat in fixes.chats]
    for body in bodies:
        assert not {"temperature", "top_p", "top_k"} & body.keys()
        assert {"logprobs": True, "return_token_ids": True}.items() <= body.items()
    for before, after in itertools.pairwise(bodies):
        sent = before.pop("messages")
        assert after["messages"][: len(sent)] == sent
        assert before == {name: value for name, value in after.items() if name != "messages"}
    keys = [chat.headers["idempotency-key"] for chat in fixes.chats]
    assert keys[1] == keys[2], "the same turn, sent again"
    assert len({*keys}) == 3
    [log] = (fixes.home / "state" / "sessions").glob("*/events.jsonl")
    folder = log.parent
    assert read_tokens(folder) == dict(enumerate(TURNS, 1))
    exported = json.loads(run_there("sessions", "export", folder.name, "--output", "-").stdout)
    metrics = [step["metrics"] for step in exported["steps"] if step["source"] == "agent"]
    assert [(m["prompt_token_ids"], m["completion_token_ids"], m["logprobs"]) for m in metrics] == [
        ([*turn.prompt], [*turn.completion], [*turn.logprobs]) for turn in TURNS
    ]
    assert fixes.of_type("tokens.differ") == []


@pytest.mark.slow  # quick: test_verify_rounds.py
def test_verdicts_do_not_go_back(fixes: Fixes) -> None:
    wrong = {"calc.py": "def add(a, b):\n    return a - b\n", "test_calc.py": "def test_add():\n    pass\n"}
    fixes(wrong, [FIX, TEST, DONE], "--training", code=1)
    assert fixes.of_type("feedback") == []
    assert len(fixes.chats) == 3


def test_there_is_one_conversation(fixes: Fixes) -> None:
    done = fixes(BUGGY, None, "--training", "--attempts", "2", code=2)
    assert "--training is for one conversation: leave out --attempts" in done.stderr
    assert fixes.chats == []
