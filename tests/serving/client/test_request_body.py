"""The bytes of requests: the same as the whole JSON object, and each begins with the messages of the last one."""

import json
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.serving.client.request_body import RequestBody

Message = dict[str, Any]

LONE_SURROGATE = re.compile("[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]")

texts = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
parts = st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts})
    | st.fixed_dictionaries(
        {"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": texts})}
    ),
    max_size=3,
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": texts | parts},
    optional={
        "reasoning": texts,
        "tool_calls": st.lists(st.dictionaries(texts, values, max_size=3), max_size=2),
    },
)
conversations = st.lists(messages, max_size=5)
parameters = st.dictionaries(texts.filter(lambda name: name != "messages"), values, max_size=3)


def whole(conversation: list[Message], others: Mapping[str, Any]) -> bytes:
    """Return the request, encoded in one step."""
    request = {"messages": conversation, **others}
    return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode()


def of_messages(request: bytes, others: Mapping[str, Any]) -> bytes:
    """Return the beginning of a request up to its last message, without the closing bracket."""
    ending = whole([], others).removeprefix(b'{"messages":[')
    assert request.endswith(ending)
    return request.removesuffix(ending)


@given(conversations, parameters)
def test_a_request_is_the_whole_as_json(conversation: list[Message], others: dict[str, Any]) -> None:
    assert RequestBody().encode(conversation, others) == whole(conversation, others)


@given(st.lists(st.tuples(conversations, parameters), min_size=1, max_size=5))
def test_each_request_begins_with_the_last_ones_messages(
    turns: list[tuple[list[Message], dict[str, Any]]],
) -> None:
    body = RequestBody()
    conversation: list[Message] = []
    before = b'{"messages":['
    for more, others in turns:
        conversation += more
        request = body.encode(conversation, others)
        assert request == whole(conversation, others)
        assert request.startswith(before)
        before = of_messages(request, others)


@given(conversations, conversations)
def test_another_conversation_starts_afresh(one: list[Message], other: list[Message]) -> None:
    body = RequestBody()
    body.encode(one, {})
    assert json.loads(body.encode(other, {})) == {"messages": other}


@given(conversations.filter(len), st.data())
def test_a_conversation_cut_short_or_branched_off(conversation: list[Message], data: st.DataObject) -> None:
    body = RequestBody()
    body.encode(conversation, {})
    branch = conversation[: data.draw(st.integers(0, len(conversation)))] + data.draw(conversations)
    assert json.loads(body.encode(branch, {})) == {"messages": branch}
    assert json.loads(body.encode(conversation, {})) == {"messages": conversation}


def start() -> list[Message]:
    """Return a conversation with something to change at every depth."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    call = {"id": "call_1", "type": "function", "function": {"name": "file_read", "arguments": "{}"}}
    return [
        {"role": "user", "content": [{"type": "text", "text": "fix it"}, image]},
        {"role": "assistant", "content": "", "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "1\tx = 1"},
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c[2].update(content="2\tx = 2"),
        lambda c: c[1].pop("reasoning"),
        lambda c: c[0]["content"].append({"type": "text", "text": "quickly"}),
        lambda c: c[0]["content"][1]["image_url"].update(url="data:image/png;base64,BBBB"),
        lambda c: c[1]["tool_calls"][0]["function"].update(arguments='{"path": "a.py"}'),
        lambda c: c.pop(1),
        lambda c: c.insert(0, {"role": "system", "content": "be brief"}),
        lambda c: c.reverse(),
    ],
)
def test_message_changed_in_place_is_sent_in_its_new_form(change: Callable[[list[Message]], None]) -> None:
    body, conversation = RequestBody(), start()
    first = body.encode(conversation, {})
    change(conversation)
    changed = body.encode(conversation, {})
    assert changed == whole(conversation, {})
    assert changed != first
    assert body.encode(start(), {}) == first


def test_messages_that_are_equal_continue_the_conversation() -> None:
    body = RequestBody()
    first = of_messages(body.encode(start(), {"model": "m"}), {"model": "m"})
    resumed = [*deepcopy(start()), {"role": "user", "content": "go on"}]
    assert body.encode(resumed, {"model": "n"}).startswith(first + b",")


def test_unescaped_text_is_sent_as_utf_8() -> None:
    request = RequestBody().encode([{"role": "user", "content": "Größe 界 🙂 \u2028 \x00 \x7f"}], {})
    assert "Größe 界 🙂 \u2028 \\u0000 \x7f".encode() in request


@given(
    st.lists(st.text(st.sampled_from('a"\\\ud83d\ude42\udfff\ud800é'), max_size=8), min_size=1, max_size=4)
)
def test_halves_of_surrogate_pairs_are_replaced_and_pairs_are_joined(pieces: list[str]) -> None:
    body = RequestBody()
    conversation: list[Message] = []
    before = request = b""
    for piece in pieces:
        conversation.append({"role": "user", "content": piece})
        request = body.encode(conversation, {})
        assert request.startswith(before)
        before = request.removesuffix(b"]}")
    sent = [message["content"] for message in json.loads(request.decode("utf-8"))["messages"]]
    joined = [LONE_SURROGATE.sub("\ufffd", piece) for piece in pieces]
    assert sent == [text.encode("utf-16", "surrogatepass").decode("utf-16") for text in joined]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object(), b"bytes"])
def test_values_that_json_cannot_encode_are_refused_without_a_trace(bad: object) -> None:
    body, conversation = RequestBody(), start()
    body.encode(conversation[:1], {})
    with pytest.raises((ValueError, TypeError)):
        body.encode([*conversation, {"role": "user", "content": bad}], {})
    with pytest.raises((ValueError, TypeError)):
        body.encode(conversation, {"temperature": bad})
    assert body.encode(conversation, {"temperature": 1.0}) == whole(conversation, {"temperature": 1.0})
