"""What the counter of traffic reads from requests of the three interfaces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from m3agent.evals.run.traffic import Exchange, Traffic, TrafficCounter

USER = {"role": "user", "content": "mend it"}
TOOL = {"role": "tool", "tool_call_id": "1", "content": "done"}
ANSWER = {"role": "assistant", "content": "I look."}


def counted(*requests: dict[str, Any] | bytes, **facts: Any) -> Traffic:
    counter = TrafficCounter()
    for request in requests:
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        counter.add(
            Exchange(
                body, **{"is_good": True, "has_thinking": False, "first_seconds": 1.0, "seconds": 2.0} | facts
            )
        )
    return counter.result()


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": "You mend."}, *messages], **more}


def test_a_conversation_that_grows_has_no_broken_prefix() -> None:
    traffic = counted(chat(USER), chat(USER, ANSWER, TOOL), chat(USER, ANSWER, TOOL, ANSWER, USER))
    assert (traffic.requests, traffic.continuing, traffic.broken_prefixes) == (3, 2, 0)


@pytest.mark.parametrize(
    "second",
    [
        {"messages": [{"role": "system", "content": "It is 10:01."}, USER, ANSWER]},
        chat({"role": "user", "content": "other"}, ANSWER),
        chat(USER, ANSWER, tools=[{"type": "function", "function": {"name": "bash"}}]),
    ],
    ids=["another system prompt", "another first message", "other tools"],
)
def test_a_request_that_begins_otherwise_is_a_broken_prefix(second: dict[str, Any]) -> None:
    assert counted(chat(USER), second).broken_prefixes == 1


def test_two_conversations_side_by_side_break_nothing() -> None:
    other = {"role": "user", "content": "another task"}
    traffic = counted(chat(USER), chat(other), chat(USER, ANSWER, TOOL), chat(other, ANSWER, TOOL))
    assert (traffic.continuing, traffic.broken_prefixes) == (2, 0)


def test_an_invented_history_in_the_first_request_breaks_nothing() -> None:
    assert counted(chat(USER, ANSWER, USER)).broken_prefixes == 0


def test_a_mark_of_the_cache_is_no_content() -> None:
    def request(*texts: str) -> dict[str, Any]:
        parts: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts]
        parts[-1] = {**parts[-1], "cache_control": {"type": "ephemeral"}}
        messages = [{"role": "user", "content": [part]} for part in parts]
        return {
            "system": "s",
            "messages": [messages[0], ANSWER, *messages[1:]] if len(texts) > 1 else messages,
        }

    assert counted(request("a"), request("a", "b")).broken_prefixes == 0


@pytest.mark.parametrize(
    "answer",
    [
        {"role": "assistant", "content": "x", "reasoning_content": "because"},
        {"role": "assistant", "content": "<think>because</think>x"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "because"}]},
        {"type": "reasoning", "summary": []},
    ],
)
def test_thinking_that_is_returned_is_counted(answer: dict[str, Any]) -> None:
    name = "input" if "type" in answer else "messages"
    assert counted({name: [USER, answer, USER]}).returned_thinking == 1
    assert counted({name: [USER, ANSWER, USER]}).returned_thinking == 0


def test_a_request_that_failed_and_comes_again_is_a_repetition() -> None:
    counter = TrafficCounter()
    body = json.dumps(chat(USER)).encode()
    for is_good in (False, False, True, True):
        counter.add(Exchange(body, is_good, False, 1.0, 1.0))
    assert (counter.result().failed, counter.result().repeated) == (2, 2)


def test_it_keeps_names_of_tools_and_the_last_settings() -> None:
    tools = [{"type": "function", "function": {"name": "bash"}}, {"name": "Edit"}, {"type": "web_search"}, 7]
    traffic = counted(
        chat(USER, tools=tools, temperature=0.2, model="m"), chat(USER, temperature=1.0, top_k="x" * 999)
    )
    assert (traffic.tools, traffic.models) == (("bash", "Edit", "web_search"), ("m",))
    assert traffic.sampling["temperature"] == 1.0 and len(str(traffic.sampling["top_k"])) <= 200


def test_a_lone_surrogate_can_be_stored() -> None:
    traffic = counted(chat(USER, model="\ud800", stop=["a\ud800"], tools=[{"name": "\udfff"}]))
    assert Traffic.model_validate_json(traffic.model_dump_json()) == traffic


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b'{"messages": 1}', b'{"messages": [1], "tools": {}}', b"[" * 100_000]
)
def test_a_strange_request_counts_as_a_request(body: bytes) -> None:
    assert counted(body).requests == 1
