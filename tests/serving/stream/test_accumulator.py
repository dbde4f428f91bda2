"""The accumulator with chunks that servers repeat, omit or number wrongly."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from m3agent.serving import wire
from m3agent.serving.client.messages import AssistantMessage, Usage
from m3agent.serving.client.server_errors import hosted_error
from m3agent.serving.client.stream.accumulator import Accumulator
from m3agent.serving.client.stream.chunk import read_usage
from tests.servers.dialects import DIALECTS, Answer, Dialect, Vllm
from tests.servers.misbehaving import call, delta, finish
from tests.serving.fold import TOOLS, calls_of, fold

ANSWER = Answer(
    "The sum is wrong.\nI look at it.",
    "Fixing it: 1 < 2 &amp; é🙂.",
    (
        wire.Call("file_write", {"path": "a-b.py", "content": "if a &amp; b < c:\n    pass\n"}),
        wire.Call("file_read", {"path": "é.py", "end": 10**30}),
    ),
)
EXPECTED = [(made.name, made.arguments) for made in ANSWER.calls]


def said(*events: dict[str, Any]) -> AssistantMessage:
    message, _, _ = fold([*events, finish("stop")])
    return message


# Every dialect


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_each_dialect_says_the_same(dialect: Dialect) -> None:
    for size in (1, 5, 1000):
        message, reason, accumulator = fold(dialect.say(ANSWER, size))
        assert (message.reasoning, message.text) == (ANSWER.reasoning, ANSWER.text)
        assert calls_of(message) == EXPECTED
        assert reason == "tool_calls"
        assert (accumulator.usage.prompt, accumulator.usage.completion) == (100, 20)
        assert accumulator.usage.cached == 64


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_missing_parts_of_an_answer_stay_empty(dialect: Dialect) -> None:
    for answer in (
        Answer(),
        Answer("only thoughts"),
        Answer("", "Just text."),
        Answer("", "", ANSWER.calls[:1]),
        Answer("I think of <think> and </thin>.", "The tag </think> ends it, <think> begins it."),
        Answer("aa", "aa bb aa"),
    ):
        message, reason, _ = fold(dialect.say(answer, 3))
        assert (message.reasoning, message.text) == (answer.reasoning, answer.text)
        assert calls_of(message) == [(made.name, made.arguments) for made in answer.calls]
        assert reason == answer.finish


# Reasoning


def details(text: str, index: int | None = 0) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "reasoning.text", "text": text}
    return delta(reasoning_details=[entry if index is None else entry | {"index": index}])


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        (["Think", "Think more", "Think more."], "Think more."),
        (["Think", "Think more"], "Think more"),
        (["I", "I see", "I see it"], "I see it"),
        (["思", "思考", "思考中"], "思考中"),
        (["Think", "Think", "Think"], "Think"),  # the same entry again
        (["a", "and", " so on"], "aand so on"),
        (["a", "and"], "aand"),
        (["The", " user", " The"], "The user The"),
        (["-", "--", "---", " x"], "------ x"),
        (["\n", "\n\n", "x"], "\n\n\nx"),
        (["ha", "ha", "ha!"], "hahaha!"),
        (["1", "10", "100"], "110100"),
    ],
)
def test_reasoning_details_may_be_increments_or_cumulative(texts: list[str], whole: str) -> None:
    assert said(*(details(text) for text in texts)).reasoning == whole
    assert said(*(details(text, None) for text in texts)).reasoning == whole


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "content"])
def test_repeated_line_is_not_mistaken_for_a_cumulative_event(field: str) -> None:
    line = "    return None\n"
    message = said(
        delta(**{field: line}), delta(**{field: line}), delta(**{field: line}), delta(**{field: "end"})
    )
    assert message.reasoning + message.text == line * 3 + "end"
    message = said(delta(**{field: line}), delta(**{field: line}))
    assert message.reasoning + message.text == line * 2


def test_several_details_follow_each_other() -> None:
    message = said(details("First. "), details("First. Done. "), details("Second", 1), details("Second.", 1))
    assert message.reasoning == "First. Done. Second."


def test_encrypted_reasoning_details_are_not_text() -> None:
    entries = [
        {"type": "reasoning.encrypted", "data": "x9"},
        {"type": "reasoning.summary", "summary": "short"},
    ]
    assert said(delta(reasoning_details=entries)).reasoning == "short"


def test_reasoning_that_comes_under_another_name_later() -> None:
    message = said(delta(reasoning="Let me see. "), delta(reasoning_content="Now I know."))
    assert message.reasoning == "Let me see. Now I know."


def test_a_mirror_that_lags_behind() -> None:
    message = said(
        delta(reasoning="Let me see. "), details("Let me"), delta(reasoning="Yes."), details(" see. Yes.")
    )
    assert message.reasoning == "Let me see. Yes."


def test_thoughts_in_content_that_differ_from_those_beside_it_are_kept() -> None:
    message = said(
        delta(reasoning="Let me see."), delta(content="<mm:think>Let me"), delta(content=" go</mm:think>ok")
    )
    assert (message.reasoning, message.text) == ("Let me see.Let me go", "ok")


@pytest.mark.parametrize(
    ("texts", "reasoning", "text"),
    [
        (["<think>because</think>So."], "because", "So."),
        (["\n<thi", "nk>\nbecause", "\n</th", "ink>\n", "\nSo."], "because", "So."),
        (["<think>because"], "because", ""),
        (["<think>because\n</th"], "because\n</th", ""),
        (["<think></think>\n\n\nSo."], "", "\nSo."),
        (["<think", "ing> is one word"], "", "<thinking> is one word"),
        (["<thi"], "", "<thi"),
        (["It writes <think>a</think> first."], "", "It writes <think>a</think> first."),
        (["<think>a</think>b<think>c</think>"], "a", "b<think>c</think>"),
    ],
)
def test_think_tags_count_at_the_very_start(texts: list[str], reasoning: str, text: str) -> None:
    message = said(*(delta(content=piece) for piece in texts))
    assert (message.reasoning, message.text) == (reasoning, text)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_think_tag_in_a_value_ends_no_thoughts(size: int) -> None:
    made = wire.Call("file_write", {"path": "a", "content": "<think>\n</think>\n"})
    text = f"<think>hm {wire.write('', '', [made]).removeprefix('</mm:think>')}</think>So."
    message = said(*(delta(content=text[start : start + size]) for start in range(0, len(text), size)))
    assert (message.reasoning, message.text) == ("hm ", "So.")
    assert calls_of(message) == [(made.name, made.arguments)]


# Repeated messages


def test_the_whole_message_at_the_end_adds_what_was_missing() -> None:
    function = {"name": "file_read", "arguments": '{"path": "a"}'}
    message = {"content": "all of it", "reasoning": "why", "tool_calls": [{"id": "x", "function": function}]}
    last = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
    }
    result, _, _ = fold([delta(content="all of"), delta(content=" it"), last])
    assert (result.reasoning, result.text) == ("why", "all of it")
    assert calls_of(result) == [("file_read", {"path": "a"})]


def test_a_last_delta_with_the_whole_text() -> None:
    assert (
        said(*(delta(content=text) for text in ["Fin", "e. ", "Done.", "Fine. Done."])).text == "Fine. Done."
    )


def test_only_the_first_choice_counts() -> None:
    chunk = delta(content="one")
    other = {"index": 1, "delta": {"content": "two"}, "finish_reason": "stop"}
    chunk["choices"].insert(0, other)
    message, _, accumulator = fold([chunk, {"choices": [other]}])
    assert message.text == "one"
    assert accumulator.finish_reason is None


# Calls


READ = '{"path": "a"}'


@pytest.mark.parametrize(
    "events",
    [
        [call(0, "file_read", READ, "x")],
        [call(0, "file_read", "", "x"), call(0, None, '{"pa'), call(0, None, 'th": "a"}')],
        [call(0, "file_read", '{"pa', "x"), call(0, "file_read", 'th": "a"}', "x")],  # the name in every piece
        [call(0, "file_read", '{"pa', "x"), call(0, "file_read", 'th": "a"}', "y")],  # and with a new id
        [call(0, "file_read", "{}", "x"), call(0, None, READ)],  # a placeholder first
        [call(0, "file_read", '{"pa', "x"), call(0, None, READ)],  # each event repeats all arguments so far
        [call(0, "file_read", READ, "x"), call(0, "file_read", READ, "x")],
        [call(0, "file_read", READ, "x"), call(0, "file_read", "", "x")],
        [call(0, None, "", "x"), call(0, "file_read", READ)],  # the name comes last
        [delta(function_call={"name": "file_read", "arguments": '{"path"'}), delta(function_call={"arguments": ': "a"}'})],
        [delta(tool_calls=[{"function": {"name": "file_read", "arguments": {"path": "a"}}}])],
        [delta(tool_calls=[{"id": "x", "function": {"name": "file_read", "arguments": '{"path"'}}]),
         delta(tool_calls=[{"function": {"arguments": ': "a"}'}}])],
        [delta(tool_calls=[{"id": "x", "function": {"name": "file_read", "arguments": '{"path"'}}]),
         delta(tool_calls=[{"id": "x", "function": {"name": "file_read", "arguments": ': "a"}'}}])],
        [call(0, "file_read", READ, "x"), delta(tool_calls=[{"index": 0, "function": None}])],
        [delta(tool_calls=[{"index": 0, "function": None}, None, 7]), call(0, "file_read", READ, "x")],
    ],
)  # fmt: skip
def test_one_call_however_it_is_pieced(events: list[dict[str, Any]]) -> None:
    assert calls_of(said(*events)) == [("file_read", {"path": "a"})]


@pytest.mark.parametrize("size", [1, 5, 9, 10])
def test_nested_object_is_not_mistaken_for_a_cumulative_event(size: int) -> None:
    text = '{"node": {"node": {"node": {}}}}'
    texts = [text[start : start + size] for start in range(0, len(text), size)]
    [made] = said(call(0, "grow", texts[0], "x"), *(call(0, None, piece) for piece in texts[1:])).calls
    assert made.arguments == json.loads(text)
    assert made.arguments_text == text


OTHER = '{"path": "b"}'


def unnumbered(name: str | None, arguments: str, identity: str | None = None) -> dict[str, Any]:
    return delta(tool_calls=[{"id": identity, "function": {"name": name, "arguments": arguments}}])


@pytest.mark.parametrize(
    "events",
    [
        [call(0, "file_read", READ, "x"), call(1, "file_read", OTHER, "y")],
        [call(0, "file_read", READ, "x"), call(1, "file_read", OTHER, "x")],  # the same id twice
        [call(0, "file_read", READ, "x"), call(0, "file_read", OTHER, "y")],  # the same number twice
        [call(0, "file_read", READ), call(0, "file_read", OTHER)],  # the same number twice, no ids
        [call(0, "file_read", READ), call(1, "file_read", OTHER)],
        [call(5, "file_read", READ), call(3, "file_read", OTHER)],
        [unnumbered("file_read", READ), unnumbered("file_read", OTHER)],
        [unnumbered("file_read", READ, "x"), unnumbered("file_read", OTHER, "y")],
        [
            unnumbered("file_read", "", "x"),
            unnumbered(None, READ),
            unnumbered("file_read", "", "y"),
            unnumbered(None, OTHER),
        ],
        [  # the same number and id twice
            call(0, "file_read", "", "x"),
            call(0, None, READ),
            call(0, "file_read", "", "x"),
            call(0, None, OTHER),
        ],
        [call(0, "file_read", '{"pa', "x"), call(1, "file_read", OTHER, "y"), call(0, None, 'th": "a"}')],
    ],
)
def test_two_calls_however_they_are_numbered(events: list[dict[str, Any]]) -> None:
    message = said(*events)
    assert calls_of(message) == [("file_read", {"path": "a"}), ("file_read", {"path": "b"})]
    assert len({made.id for made in message.calls}) == 2
    assert all(made.id for made in message.calls)


def test_calls_without_ids_get_those_of_their_turn_and_place() -> None:
    message = said(unnumbered("file_read", READ), unnumbered("file_read", OTHER))
    assert [made.id for made in message.calls] == ["call_1_0", "call_1_1"]


@pytest.mark.parametrize("empty", [{"index": 0}, {"index": 0, "id": "x", "function": None}, {"function": {}}])
def test_call_without_name_and_arguments_is_ignored(empty: dict[str, Any]) -> None:
    message, reason, _ = fold([delta(content="x", tool_calls=[empty]), finish("tool_calls")])
    assert (message.calls, reason) == ((), "stop")


def test_a_name_is_shown_once_and_as_soon_as_it_is_known() -> None:
    accumulator = Accumulator(TOOLS, turn=1)
    events = [call(0, None, "", "x"), call(0, "file_read", READ), call(0, "file_read", "", "x")]
    assert [[item.text for item in accumulator.add(event)] for event in events] == [[], ["file_read"], []]


def test_a_call_without_a_name_is_answered_and_not_run() -> None:
    [made] = said(call(0, None, READ, "x")).calls
    assert (made.name, made.arguments) == ("unnamed", None)
    assert made.error is not None
    assert "had no tool name" in made.error


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_do_not_enter_the_history(constant: str) -> None:
    [made] = said(call(0, "file_read", f'{{"end": {constant}}}', "x")).calls
    assert made.arguments is None
    assert made.to_request()["function"]["arguments"] == "{}"


def test_line_ends_and_tabs_need_no_escape_in_arguments() -> None:
    """Models write a file's text without escapes, although JSON requires `\\n` and `\\t`."""
    [made] = said(call(0, "file_write", '{"content": "a\n\tb\x00"}', "x")).calls
    assert made.arguments == {"content": "a\n\tb\x00"}


LEAKED = wire.write("", "", ANSWER.calls).removeprefix("</mm:think>")


@pytest.mark.parametrize("leak_first", [True, False])
@pytest.mark.parametrize("field", ["content", "reasoning"])
def test_calls_that_are_leaked_and_parsed_are_made_once(field: str, leak_first: bool) -> None:
    # Servers unescape entities and guess types. The model's own text takes precedence.
    parsed = Vllm().call(
        (
            wire.Call("file_write", {"path": "a-b.py", "content": "if a & b < c:\n    pass"}),
            wire.Call("file_read", {"path": "é.py", "end": str(10**30)}),
        ),
        8,
    )
    leak = [delta(**{field: LEAKED})]
    message = said(*(leak + parsed if leak_first else parsed + leak))
    assert calls_of(message) == EXPECTED
    assert [made.id for made in message.calls] == ["call-0", "call-1"]


def test_calls_that_are_leaked_twice_are_made_once() -> None:
    message = said(delta(reasoning=f"hm {LEAKED}"), delta(content=f"<think>hm {LEAKED}</think>So."))
    assert calls_of(message) == EXPECTED
    assert (message.reasoning, message.text) == ("hm ", "So.")


def test_the_same_call_twice_in_one_place_is_made_twice() -> None:
    twice = wire.write("", "", ANSWER.calls[:1] * 2)
    assert calls_of(said(delta(content=twice))) == EXPECTED[:1] * 2
    assert calls_of(said(*Vllm().call(ANSWER.calls[:1] * 2, 8))) == EXPECTED[:1] * 2


def test_a_call_left_open_in_the_reasoning_and_parsed_is_made_once() -> None:
    half = LEAKED[: LEAKED.index("</path>")]
    message = said(delta(reasoning=half), *Vllm().call(ANSWER.calls[:1], 8))
    assert calls_of(message) == EXPECTED[:1]


# Ends


@pytest.mark.parametrize(
    ("reasons", "kept"),
    [
        (["stop"], "stop"),
        (["stop", "tool_calls"], "tool_calls"),
        (["length", "stop"], "length"),
        (["error", "stop"], "error"),
        (["length", "error"], "error"),
        (["STOP"], "stop"),
    ],
)
def test_a_reason_to_end(reasons: list[str], kept: str) -> None:
    accumulator = Accumulator([], turn=1)
    for reason in reasons:
        accumulator.add(finish(reason))
    assert accumulator.finish_reason == kept


def test_a_finish_reason_before_the_last_words() -> None:
    message, reason, _ = fold(
        [delta(content="so "), finish("stop"), delta(content="long"), call(0, "file_read", READ)]
    )
    assert message.text == "so long"
    assert (calls_of(message), reason) == ([("file_read", {"path": "a"})], "tool_calls")


@pytest.mark.parametrize("label", ["length", "max_tokens", "content_filter"])
def test_a_call_that_was_cut_is_not_made(label: str) -> None:
    events = [call(0, "file_read", READ, "x"), call(1, "file_write", '{"path": "b"}', "y"), finish(label)]
    message, reason, _ = fold(events)
    assert calls_of(message) == [("file_read", {"path": "a"})]
    assert reason == ("content_filter" if label == "content_filter" else "length")


@pytest.mark.parametrize("label", ["stop", "tool_calls"])
@pytest.mark.parametrize("where", ["parsed", "content", "reasoning", "text"])
def test_a_cut_answer_is_known_by_its_tokens_whatever_its_label(label: str, where: str) -> None:
    half = LEAKED[: LEAKED.index("</path>")]
    events = {
        "parsed": [call(0, "file_write", '{"path": "b"}', "y")],
        "content": [delta(content=half)],
        "reasoning": [delta(reasoning=half)],
        "text": [delta(content="and then I")],
    }
    message, reason, _ = fold([*events[where], finish(label)], limit_reached=True)
    assert (message.calls, reason) == ((), "length")


def test_a_refusal_is_what_the_model_says() -> None:
    assert said(delta(content=None, refusal="I will not.")).text == "I will not."


# Usage


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}, Usage(9, 8, 2, None)),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, Usage(9, None, None, None)),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": None}}, Usage(9, None, None, None)),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5}, Usage(9, 4, None, None)),
        ({"prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": 3}, Usage(9, 3, 2, None)),
        ({"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 0}}, Usage(9, 0, 2, None)),
        ({"prompt_tokens": 9, "completion_tokens": 2, "reasoning_tokens": 1}, Usage(9, None, 2, 1)),
        ({"completion_tokens_details": {"audio_tokens": 0}, "reasoning_tokens": 1}, Usage(None, None, None, 1)),
        ({"total_tokens": 0, "total_characters": 0}, Usage()),
        ({"prompt_tokens": True, "completion_tokens": "2", "cached_tokens": -1}, Usage()),
    ],
)  # fmt: skip
def test_usage_in_each_dialect(reported: dict[str, Any], usage: Usage) -> None:
    assert read_usage(reported) == usage


def test_usage_with_every_chunk_counts_its_last_word() -> None:
    def counted(prompt: int | None, completion: int | None) -> dict[str, Any]:
        return delta(content="x") | {"usage": {"prompt_tokens": prompt, "completion_tokens": completion}}

    chunks = [counted(9, 1), counted(9, 2), counted(None, 3), {"usage": None, "choices": []}, finish("stop")]
    _, _, accumulator = fold(chunks)
    assert accumulator.usage == Usage(9, None, 3, None)


# Errors with status 200


@pytest.mark.parametrize(
    ("code", "status"),
    [(1002, 429), (1004, 401), (1008, 402), (1027, 400), (1039, 429), (2013, 400), (1000, 500)],
)
def test_errors_of_the_hosted_api(code: int, status: int) -> None:
    answer = {"choices": None, "base_resp": {"status_code": code, "status_msg": "words"}}
    assert hosted_error(answer) == (status, f"words ({code})")


@pytest.mark.parametrize("base", [None, {}, {"status_code": 0, "status_msg": ""}, "x"])
def test_no_error_of_the_hosted_api(base: object) -> None:
    assert hosted_error({"base_resp": base}) is None
    assert hosted_error({}) is None


# Whatever a server sends, it does not fail


@pytest.mark.parametrize(
    "chunk",
    [
        {},
        {"choices": None},
        {"choices": [None]},
        {"choices": [{"index": 0}]},
        {"choices": [{"index": 0, "delta": None, "finish_reason": 7, "message": []}]},
        delta(content=7, reasoning=[], tool_calls={}, reasoning_details="x", function_call="x", refusal=0),
        delta(
            content=[{"type": "text"}, None, "x"],
            tool_calls=[[], {"index": "0", "id": 5, "function": {"name": 5}}],
        ),
        delta(reasoning_details=[None, {"text": None}, {"text": 5}, {"index": [], "text": "x"}]),
        {"choices": [], "usage": {"prompt_tokens_details": [], "completion_tokens_details": 5}},
    ],
)
def test_odd_chunks(chunk: dict[str, Any]) -> None:
    message, reason, _ = fold([chunk, finish("stop")])
    assert (message.calls, reason) == ((), "stop")


def test_long_texts_in_small_pieces_are_not_put_together_for_every_piece() -> None:
    text = json.dumps({"path": "a", "content": "x" * 20_000})
    texts = [text[start : start + 20] for start in range(0, len(text), 20)]
    events = [delta(reasoning=piece, content=piece) for piece in texts]
    events += [call(0, "file_write", texts[0], "x"), *(call(0, None, piece) for piece in texts[1:])]
    joins = 0

    def count(_frame: object, event: str, function: object) -> None:
        nonlocal joins
        joins += event == "c_call" and getattr(function, "__name__", "") == "join"

    accumulator = Accumulator(TOOLS, turn=1)
    sys.setprofile(count)
    try:
        for event in events:
            accumulator.add(event)
    finally:
        sys.setprofile(None)
    assert joins < len(events) / 10, joins
