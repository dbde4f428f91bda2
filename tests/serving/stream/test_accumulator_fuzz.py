"""Random answers in random dialects, pieces and faults: the result is the scripted answer or a part of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest

from m3agent.serving import wire
from m3agent.serving.client.messages import AssistantMessage
from m3agent.serving.wire.arguments import NAMESPACE
from tests.servers import faults
from tests.servers.dialects import DIALECTS, Answer, Chunk, Dialect
from tests.servers.misbehaving import finish
from tests.serving.fold import calls_of, fold, tool

TOOLS = [
    tool("write", path={"type": "string"}, text={"type": "string"}),
    tool("read", path={"type": "string"}, lines={"type": "array", "items": {"type": "integer"}}),
    tool("run"),
]
PROSE = [
    "The sum is off. ", "\n\n", "I say <think> and </tag>. ", "1 < 2 &amp;& 3 > 2 ", "é🙂 ", "```\n{}\n```\n", "- a\n- b\n",
    "ha", "ha", "]<]mini", "<invoke>", "\\", '"', "\t", "the the ",
]  # fmt: skip
CODE = [
    *PROSE, NAMESPACE, f"{NAMESPACE}</invoke>", "<mm:think>", "</mm:think>", "</text>", "</think>", '{"a": [1]}', "\\n", "{", "}",
    '<parameter name="x">', "\r\n", "\u2028",
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model's answer, and how its chunks arrive."""

    answer: Answer
    dialect: Dialect
    size: int
    form: str
    fault: str


def make_case(seed: int) -> Case:
    chance = random.Random(seed)
    dialect = chance.choice(DIALECTS)
    form = chance.choice(["parsed", "leaked", "leaked in reasoning", "leaked and parsed"])
    fault = chance.choice(["none", "none", "cut", "labelled length", "labelled otherwise", "half", "no ids", "same ids",
                           "no numbers", "no ids and numbers"])  # fmt: skip

    def prose() -> str:
        # It starts with a word, because a snapshot of two dashes and a tag at the very start are ambiguous.
        return chance.choice(["", "Plan: " + "".join(chance.choices(PROSE, k=chance.randrange(1, 9)))])

    def code() -> str:
        return "".join(chance.choices(CODE, k=chance.randrange(6)))

    def call() -> wire.Call:
        name = chance.choice(["write", "read", "run"])
        match name:
            case "write":
                return wire.Call(name, {"path": "a.py", "text": code()})
            case "read":
                return wire.Call(
                    name,
                    {"path": code(), "lines": [chance.randrange(10**30) for _ in range(chance.randrange(3))]},
                )
        return wire.Call(name, {})

    answer = Answer(prose(), prose(), tuple(call() for _ in range(chance.randrange(4))))
    return Case(answer, dialect, chance.choice([1, 2, 3, 5, 8, 13, 40, 10_000]), form, fault)


def chunks_of(case: Case) -> list[Chunk]:
    answer, dialect, size = case.answer, case.dialect, case.size
    markup = wire.write("", "", answer.calls).removeprefix("</mm:think>")
    match case.form:
        case "parsed":
            return dialect.say(answer, size)
        case "leaked":
            return dialect.leak(answer.wire, size)
        case "leaked in reasoning":
            return dialect.leak_in_reasoning(answer.reasoning + markup, replace(answer, calls=()), size)
    return dialect.say(replace(answer, text=answer.text + markup), size)


def with_fault(case: Case, chunks: list[Chunk], chance: random.Random) -> tuple[list[Chunk], bool]:
    """Return the chunks that arrive, and whether the token count shows that the answer was cut."""
    parsed = case.answer.calls and case.form in ("parsed", "leaked and parsed")
    match case.fault:
        case "cut":
            return chunks[: chance.randrange(len(chunks))], False
        case "labelled length":
            return [*chunks[: chance.randrange(len(chunks))], finish("length")], False
        case "labelled otherwise":
            return [
                *chunks[: chance.randrange(len(chunks))],
                finish(chance.choice(["stop", "tool_calls"])),
            ], True
        case "half" if parsed:
            label = chance.choice(["length", "tool_calls"])
            return faults.relabelled(faults.half_call(chunks), label), label == "tool_calls"
        case "no ids":
            return faults.changed_calls(chunks, lambda made: made.pop("id", None)), False
        case "same ids" if "index" in json.dumps(chunks):
            return faults.changed_calls(
                chunks, lambda made: made.update(id="x") if made.get("id") else None
            ), False
        case "no numbers":
            return faults.changed_calls(chunks, lambda made: made.pop("index", None)), False
        case "no ids and numbers":
            return faults.changed_calls(
                chunks, lambda made: (made.pop("id", None), made.pop("index", None))
            ), False
    return chunks, False


def runnable(message: AssistantMessage) -> list[str]:
    return [json.dumps(call) for call in calls_of(message) if call[1] is not None]


def without_torn_tag(text: str) -> str:
    """Return the text without a tag at its end that the cut left incomplete."""
    starts = {tag[:size] for tag in (NAMESPACE, "</mm:think>", "\n</think>") for size in range(1, len(tag))}
    return next(
        (text[: -len(start)] for start in sorted(starts, key=len)[::-1] if text.endswith(start)), text
    )


def check(seed: int) -> None:
    case = make_case(seed)
    chunks, limit_reached = with_fault(case, chunks_of(case), random.Random(seed))
    message, reason, accumulator = fold(chunks, tools=TOOLS, limit_reached=limit_reached)
    if accumulator.finish_reason is None:
        assert case.fault == "cut"
        return  # the client then repeats the request
    script = [json.dumps((call.name, call.arguments)) for call in case.answer.calls]
    made = runnable(message)
    assert not Counter(made) - Counter(script), "a call that the model did not make, or made only half of"
    places = iter(script)
    assert all(call in places for call in made), "out of order"
    assert len({call.id for call in message.calls}) == len(message.calls)
    whole = case.fault not in ("cut", "labelled length", "labelled otherwise", "half")
    if whole or (case.fault == "half" and not (case.answer.calls and "parsed" in case.form)):
        assert made == script
        assert len(message.calls) == len(script)
        assert (message.reasoning, message.text) == (case.answer.reasoning, case.answer.text)
        assert reason == case.answer.finish
    elif case.fault == "half":
        assert made in (script, script[:-1])
        assert all(call.arguments is not None for call in message.calls)
        assert reason == "length"
    else:
        assert case.answer.reasoning.startswith(without_torn_tag(message.reasoning))


def run(seeds: range) -> None:
    for seed in seeds:
        try:
            check(seed)
        except BaseException as error:
            error.add_note(f"check({seed}): {make_case(seed)}")
            raise


def test_what_comes_out_is_what_the_model_said_or_less() -> None:
    run(range(300))


@pytest.mark.slow
def test_what_comes_out_is_what_the_model_said_or_less_for_many() -> None:
    run(range(1000, 6_000))


def any_json(chance: random.Random, depth: int = 0) -> Any:
    """Return a random value of any type, with the names that chunks use."""
    kind = chance.randrange(9 if depth < 5 else 6)
    if kind < 6:
        return chance.choice(
            [None, True, 0, -1, 1.5, "", "stop", "x", "{", NAMESPACE, "<think>", "</mm:think>", "\ud800"]
        )
    if kind == 6:
        return [any_json(chance, depth + 1) for _ in range(chance.randrange(4))]
    names = ["choices", "delta", "message", "index", "content", "reasoning", "reasoning_content", "reasoning_details", "text",
             "tool_calls", "function", "function_call", "name", "arguments", "id", "finish_reason", "usage", "refusal",
             "prompt_tokens", "prompt_tokens_details", "cached_tokens"]  # fmt: skip
    return {name: any_json(chance, depth + 1) for name in chance.sample(names, chance.randrange(8))}


def nonsense(seed: int) -> None:
    chance = random.Random(seed)
    chunks = []
    for _ in range(6):
        delta = any_json(chance) if chance.random() < 0.2 else {
            name: any_json(chance, 2)
            for name in ("content", "reasoning", "reasoning_details", "tool_calls", "function_call")
            if chance.random() < 0.5
        }  # fmt: skip
        place = chance.choice(["delta", "message"])
        chunks.append({"choices": [{place: delta, "index": 0}], "usage": any_json(chance)})
    message, _, _ = fold([*chunks, finish("stop")], tools=TOOLS)
    for call in message.calls:
        json.loads(call.to_request()["function"]["arguments"])
        assert call.name


def test_nonsense_is_added_up_without_an_exception() -> None:
    for seed in range(200):
        nonsense(seed)


@pytest.mark.slow
def test_much_nonsense_is_added_up_without_an_exception() -> None:
    for seed in range(1000, 6_000):
        nonsense(seed)
