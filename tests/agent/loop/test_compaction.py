"""Test how full the model's window is, and what remains when a conversation's tail is summarised."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.context.chunk_format import estimate
from m3agent.agent.loop.compaction import MOST_CALLS, SHOWN, Window, calls_made, conversation_room, tokens
from m3agent.agent.loop.prompt import summary
from m3agent.agent.session.messages import FIRST, Conversation, Digest, read_messages
from m3agent.serving.client.messages import Usage

WINDOW = 16_000
STEP = st.tuples(st.integers(0, 3), st.integers(0, 40_000), st.booleans())


def conversation(steps: list[tuple[int, int, bool]]) -> list[dict[str, Any]]:
    """Return rules, repository, and for each step (calls, characters of a result, word) its messages."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    for number, (count, size, word) in enumerate(steps):
        made = [
            {"id": f"{number}.{n}", "type": "function", "function": {"name": "code_exec", "arguments": "{}"}}
            for n in range(count)
        ]
        messages.append({"role": "assistant", "content": "a"} | ({"tool_calls": made} if made else {}))
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "r" * size} for call in made]
        if word or not made:
            messages.append({"role": "user", "content": "go on"})
    return messages


@given(st.lists(STEP, max_size=8), st.sampled_from([None, 4096, WINDOW, 1 << 20]))
def test_kept_messages_are_complete_steps_that_fit(
    steps: list[tuple[int, int, bool]], limit: int | None
) -> None:
    messages = conversation(steps)
    kept = Window(limit).kept_steps(messages)
    assert kept.stop == len(messages)
    assert kept.start >= FIRST
    stays = messages[kept.start : kept.stop]
    if stays:
        assert stays[0]["role"] == "assistant"
    wanted = [call["id"] for message in stays for call in message.get("tool_calls", [])]
    assert wanted == [message["tool_call_id"] for message in stays if message["role"] == "tool"]
    room = (limit or 1 << 20) // 8
    assert tokens(stays) <= room


@given(st.lists(STEP, min_size=1, max_size=8), st.integers(1000, 1 << 20))
def test_a_summary_is_never_due_again_at_once(steps: list[tuple[int, int, bool]], limit: int) -> None:
    messages = conversation(steps)
    window = Window(limit)
    window.record_usage(Usage(prompt=limit, completion=0), len(messages))
    if window.is_nearly_full(messages):
        kept = window.kept_steps(messages)
        shorter = [*messages[:FIRST], {"role": "user", "content": "n" * 3 * window.summary_tokens}]
        shorter += messages[kept.start :]
        assert tokens(shorter[FIRST:]) < tokens(messages[FIRST:]) + window.summary_tokens
        assert kept.start > FIRST, "something goes"
        window.forget()
        assert not window.is_nearly_full(shorter)


def test_a_window_nobody_knows_is_never_full() -> None:
    messages = conversation([(1, 100_000, False)])
    window = Window(None)
    window.record_usage(Usage(prompt=1 << 30, completion=1), 3)
    assert not window.is_nearly_full(messages)
    window = Window(WINDOW)
    window.record_usage(Usage(), 3)
    assert not window.is_nearly_full(messages)


def test_room_for_the_conversation() -> None:
    assert conversation_room(1 << 20) == 131_072
    assert conversation_room(32_768) == 8192


def test_notes_of_an_earlier_summary_are_not_lost() -> None:
    messages = [{"role": "user", "content": summary("the cause is in f", "No tests have run so far.")}]
    assert calls_made([*messages, *conversation([(1, 5, False)])[FIRST:]]).startswith("the cause is in f\n")


@given(st.lists(STEP, max_size=5), st.data())
def test_conversation_is_read_back_unchanged(steps: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told = Conversation.begin(folder, conversation([(n, min(size, 50), word) for n, size, word in steps]))
        for _ in range(data.draw(st.integers(0, 2))):
            begin = data.draw(st.integers(FIRST, len(told)))
            told.summarise("so far", range(begin, len(told)))
            told.append({"role": "assistant", "content": "é \ud800"})
        told.close()
        assert read_messages(folder) == list(told)
        digest = Digest()
        digest.add(told)
        assert told.digest() == str(digest)


# -- the numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "summary_tokens"),
    [(None, 4000), (1 << 20, 4000), (64_000, 4000), (63_999, 3999), (16_000, 1000), (16, 1), (1, 1)],
)
def test_tokens_of_a_summary(limit: int | None, summary_tokens: int) -> None:
    assert Window(limit).summary_tokens == summary_tokens


def sized(*sizes: int) -> list[dict[str, Any]]:
    """Return rules and repository, then answers of about these numbers of tokens."""
    first = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    empty = {"role": "assistant", "content": ""}
    return [*first, *({**empty, "content": "a" * (3 * (size - tokens([empty])))} for size in sizes)]


def test_tokens_are_estimated_from_the_bytes_of_each_message() -> None:
    messages = sized(100, 200)
    assert tokens(messages[FIRST:]) == 300
    assert tokens(messages) == sum(estimate(json.dumps(message).encode()) for message in messages)


@pytest.mark.parametrize(("counted", "full"), [(6900, False), (6901, True)])
def test_a_window_is_nearly_full_where_the_next_step_may_not_fit(counted: int, full: bool) -> None:
    """Of 8000 tokens, the next step needs 1000; the part that the server has not counted yet has 100."""
    messages = sized(1000, 1000, 100)
    window = Window(8000)
    window.record_usage(Usage(prompt=counted - 10, completion=10), 4)
    assert window.is_nearly_full(messages) is full
    window.forget()
    assert not window.is_nearly_full(messages)


@pytest.mark.parametrize(("sizes", "worth"), [((500, 500), False), ((500, 501), True)])
def test_a_tail_shorter_than_a_step_is_not_worth_a_summary(sizes: tuple[int, int], worth: bool) -> None:
    window = Window(8000)
    messages = sized(*sizes)
    window.record_usage(Usage(prompt=8000, completion=0), len(messages))
    assert window.is_nearly_full(messages) is worth


@pytest.mark.parametrize("usage", [Usage(prompt=8000), Usage(completion=8000)])
def test_a_count_that_is_not_whole_is_not_taken(usage: Usage) -> None:
    messages = sized(1000, 1000)
    window = Window(8000)
    window.record_usage(usage, len(messages))
    assert not window.is_nearly_full(messages)
    window.record_usage(Usage(prompt=8000, completion=0), len(messages))
    window.record_usage(usage, 0)
    assert window.is_nearly_full(messages), "the last whole one counts"


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [((600, 500), 1), ((600, 501), 0), ((600, 250, 250), 2), ((250, 251, 249), 2), ((100, 100), 2)],
)
def test_the_steps_that_fit_into_half_the_margin_stay(sizes: tuple[int, ...], kept: int) -> None:
    messages = sized(*sizes)
    assert Window(8000).kept_steps(messages) == range(len(messages) - kept, len(messages))


def test_a_step_stays_with_its_results_or_not_at_all() -> None:
    messages = conversation([(1, 30, False), (1, 1400, False)])
    assert tokens(messages[-1:]) < 500 < tokens(messages[-2:])
    assert Window(8000).kept_steps(messages) == range(len(messages), len(messages))


def test_the_largest_margin_is_that_of_a_large_window() -> None:
    messages = sized(17_000, 16_384)
    for limit in (None, 1 << 18, 1 << 20):
        assert Window(limit).kept_steps(messages) == range(3, 4)
    assert Window((1 << 18) - 16).kept_steps(messages) == range(4, 4)


def test_a_refused_request_tells_the_window_of_a_server_that_had_not() -> None:
    window = Window(None)
    assert window.refused(8000, sized(600, 500))
    assert window.limit == 8000
    assert not window.refused(9000, sized(100, 100)), "nothing would go"
    assert window.limit == 8000
    assert not Window(None).refused(None, sized())


def test_notes_are_those_of_a_summary_and_no_words_of_the_model_s() -> None:
    text = summary("the cause is in f", "No tests have run so far.")
    assert calls_made([{"role": "assistant", "content": text}]) == "The calls so far:"


def test_calls_are_listed_with_the_first_line_of_their_results() -> None:
    def made(ident: str, arguments: str) -> dict[str, Any]:
        return {"id": ident, "type": "function", "function": {"name": "code_exec", "arguments": arguments}}

    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "tool_calls": [made("1", '{"code": "1"}'), made("2", "{}")]},
        {"role": "tool", "tool_call_id": "2", "content": "\nsecond\nof many"},
        {"role": "tool", "tool_call_id": "1", "content": "x" * 200},
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": "", "tool_calls": [made("3", "{}")]},
    ]
    assert calls_made(messages).splitlines() == [
        "The calls so far:",
        f'- code_exec {{"code": "1"}}: {"x" * (SHOWN - 1)}…',
        "- code_exec {}: second",
        "- code_exec {}: ",
    ]


def test_of_many_calls_the_last_are_listed() -> None:
    steps = [(1, 1, False)] * MOST_CALLS
    assert len(calls_made(conversation(steps)).splitlines()) == 1 + MOST_CALLS
    lines = calls_made(conversation([*steps, *steps[:3]])).splitlines()
    assert lines[1] == "- 3 calls before these"
    assert len(lines) == 2 + MOST_CALLS
