"""Prompts: the same text for the same seed, with the requested number of tokens."""

from __future__ import annotations

import ast
import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.serving.bench.options import SHORTEST, BenchStep, Options, steps
from m3agent.serving.bench.prompts import Corpus, PromptMaker, agents_task, next_turn


@given(st.integers(0, 5), st.integers(0, 20_000), st.integers(0, 20_000))
def test_a_corpus_is_one_text_however_it_is_read(seed: int, one: int, other: int) -> None:
    corpus = Corpus(seed)
    first, second = corpus.text(one), corpus.text(other)
    assert (len(first), len(second)) == (one, other)
    assert first.startswith(second) or second.startswith(first)
    assert second == Corpus(seed).text(other)


def test_a_seed_means_the_same_text_everywhere() -> None:
    text = Corpus(0).text(100_000)
    assert (
        hashlib.sha256(text.encode()).hexdigest()
        == "431eaf746fe8bc168cd84b3bceb615874c591d7a749f409906d8a118c1eb44ba"
    )
    assert Corpus(1).text(1000) != text[:1000]


def test_the_text_is_program_code() -> None:
    text = Corpus(3).text(50_000)
    tree = ast.parse(text[: text.rindex("\n\n\ndef ")])
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len(set(functions)) == len(functions) > 50


@pytest.mark.parametrize("pattern", [r" ?\w+|\W", r" ?\w{1,3}|\W"], ids=["words", "pieces"])
@pytest.mark.parametrize("tokens", [2048, 8191, 30_000])
async def test_prompt_has_exactly_the_requested_tokens(pattern: str, tokens: int) -> None:
    async def count(text: str) -> int:
        return len(re.findall(pattern, text))

    maker = PromptMaker(Corpus(0), count, "nonce")
    prompt = await maker.make(tokens)
    maker.learn(prompt, await count(prompt.texts) + 17)
    prompt = await maker.make(tokens)
    assert await count(prompt.texts) + 17 == tokens


async def test_without_a_tokenizer_it_learns_from_what_the_server_counted() -> None:
    async def unknown(_: str) -> None:
        return None

    maker = PromptMaker(Corpus(0), unknown, "nonce")
    maker.learn(prompt := await maker.make(3000), len(prompt.texts) // 2)
    assert abs(len((await maker.make(3000)).texts) / 2 - 3000) < 60


async def test_no_two_prompts_begin_alike_and_a_further_turn_only_adds() -> None:
    async def unknown(_: str) -> None:
        return None

    maker = PromptMaker(Corpus(0), unknown, "f00d")
    one, other = await maker.make(2048), await maker.make(2048)
    assert (one.system.split(".")[0], other.system.split(".")[0]) == ("f00d-1", "f00d-2")
    assert next_turn(one)[:2] == one.messages
    assert [message["role"] for message in next_turn(one)] == ["system", "user", "assistant", "user"]
    assert len({agents_task(number) for number in range(1, 9)}) == 8


def test_quick_steps_come_first_and_rounds_stay_together() -> None:
    planned, left_out = steps(Options(rounds=2), 1_048_576)
    assert left_out == []
    assert [step.round for step in planned] == [1, 2] * (len(planned) // 2)
    groups = [(step.kind, step.tokens, step.streams) for step in planned[::2]]
    assert groups == [
        ("streams", 4096, 1),
        ("streams", 4096, 2),
        ("length", 8192, 1),
        ("streams", 4096, 4),
        ("streams", 4096, 8),
        ("length", 32_768, 1),
        ("length", 131_072, 1),
        ("agents", 131_072, 4),
        ("length", 524_288, 1),
        ("length", 1_000_000, 1),
    ]


def test_m3s_own_window_takes_half_a_million_tokens_shortened_for_the_answer() -> None:
    planned, left_out = steps(Options(), 524_288)
    lengths = sorted({step.tokens for step in planned if step.kind == "length"})
    assert lengths == [8192, 32_768, 131_072, 524_288 - 1024 - 64]
    assert left_out == [
        "1,000,000 tokens: the server's window of 524,288 must also hold the answer and a further turn"
    ]


def test_a_window_too_small_for_anything_leaves_all_out() -> None:
    planned, left_out = steps(Options(lengths=(SHORTEST,)), 2048)
    assert planned == []
    assert len(left_out) == 2


def test_the_estimate_of_work_grows_as_measured_on_four_h200() -> None:
    work = {tokens: BenchStep("length", tokens, 1, 1).work for tokens in (8192, 131_072, 1_000_000)}
    assert work[131_072] / work[8192] == pytest.approx(10.7 / 0.61, rel=0.15)
    assert work[1_000_000] / work[131_072] == pytest.approx(183 / 10.7, rel=0.15)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lengths": (2047,)}, "2,047 tokens is too short"),
        ({"rounds": 0}, "rounds is too small"),
        ({"output_tokens": 1}, "output_tokens is too small"),
        ({"concurrency": (0,)}, "1 at least"),
        ({"max_seconds": 0}, "above zero"),
        ({"timeout": -1}, "above zero"),
    ],
)
def test_options_out_of_range_are_refused_in_a_sentence(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Options(**options)  # type: ignore[arg-type]
