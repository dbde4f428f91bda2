"""A fix whose conversation is recorded to train a model with it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.session.token_log import read_tokens
from m3agent.serving.client.messages import TurnTokens
from tests.agent.scripted import BUGGY, DONE, FIX, TEST, MakeRepo, events, fix, of_type, run_there
from tests.servers.misbehaving import MisbehavingServer, Reply, Stream


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
def test_requests_only_grow_and_tokens_are_kept(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    first, second, third = answers(TURNS)
    model.answers = [first, BROKEN, second, third]
    done = fix(make_repo(BUGGY), model.url, "--training", "--result-only")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "verified"
    bodies = [json.loads(chat.body) for chat in model.chats]
    for body in bodies:
        assert not {"temperature", "top_p", "top_k"} & body.keys()
        assert {"logprobs": True, "return_token_ids": True}.items() <= body.items()
    for before, after in itertools.pairwise(bodies):
        sent = before.pop("messages")
        assert after["messages"][: len(sent)] == sent
        assert before == {name: value for name, value in after.items() if name != "messages"}
    keys = [chat.headers["idempotency-key"] for chat in model.chats]
    assert keys[1] == keys[2], "the same turn, sent again"
    assert len({*keys}) == 3
    [log] = (own_state / "state" / "sessions").glob("*/events.jsonl")
    folder = log.parent
    assert read_tokens(folder) == dict(enumerate(TURNS, 1))
    exported = json.loads(run_there("sessions", "export", folder.name, "--output", "-").stdout)
    metrics = [step["metrics"] for step in exported["steps"] if step["source"] == "agent"]
    assert [(m["prompt_token_ids"], m["completion_token_ids"], m["logprobs"]) for m in metrics] == [
        ([*turn.prompt], [*turn.completion], [*turn.logprobs]) for turn in TURNS
    ]
    assert of_type(own_state, "tokens.differ") == []


@pytest.mark.slow  # quick: test_requests_only_grow_and_tokens_are_kept
def test_a_template_that_forgets_is_said(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    model.answers = answers([*TURNS[:2], TurnTokens((1, 2, 3, 6, 7, 8), (9,))])
    done = fix(make_repo(BUGGY), model.url, "--training")
    assert "the prompt repeats 3 of the 7 tokens so far" in done.stderr
    assert events(own_state)[-1]["status"] == "verified"


@pytest.mark.slow  # quick: test_verify_rounds.py
def test_verdicts_do_not_go_back(model: MisbehavingServer, make_repo: MakeRepo, own_state: Path) -> None:
    wrong = {"calc.py": "def add(a, b):\n    return a - b\n", "test_calc.py": "def test_add():\n    pass\n"}
    model.answers = [FIX, TEST, DONE]
    done = fix(make_repo(wrong), model.url, "--training")
    assert done.returncode == 1
    assert of_type(own_state, "feedback") == []
    assert len(model.chats) == 3


@pytest.mark.parametrize("more", [["--attempts", "2"]])
def test_there_is_one_conversation(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, more: list[str]
) -> None:
    done = fix(make_repo(BUGGY), model.url, "--training", *more)
    assert done.returncode == 2
    assert "--training is for one conversation: leave out --attempts" in done.stderr
    assert model.chats == []
