"""Messages as the next request contains them."""

import json
from typing import get_args

import pytest

from m3agent.serving.client.messages import AssistantMessage, ReasoningField, ToolCall, reasoning_of

CALL = ToolCall("call_1_0", "file_read", {"path": "ü.py", "start": 1}, '{"path": "ü.py", "start": 1}')
BROKEN = ToolCall("call_1_1", "file_read", None, '{"path": ', "the arguments are not valid JSON")


@pytest.mark.parametrize("field", get_args(ReasoningField))
def test_the_reasoning_of_a_sent_message_is_found(field: str) -> None:
    assert reasoning_of(AssistantMessage(reasoning="I look").to_request(field)) == "I look"
    assert reasoning_of(AssistantMessage(text="Done.").to_request(field)) == ""


def test_an_assistant_message_in_a_request() -> None:
    message = AssistantMessage("because", "Reading.", (CALL,)).to_request("reasoning")
    assert message == {
        "role": "assistant",
        "content": "Reading.",
        "reasoning": "because",
        "tool_calls": [
            {
                "id": "call_1_0",
                "type": "function",
                "function": {"name": "file_read", "arguments": '{"path": "ü.py", "start": 1}'},
            }
        ],
    }
    assert list(message) == ["role", "content", "reasoning", "tool_calls"]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "reasoning_details"])
def test_reasoning_goes_under_exactly_one_key(name: str) -> None:
    message = AssistantMessage("because", "").to_request(name)
    assert {key for key in message if key.startswith("reasoning")} == {name}
    assert "because" in json.dumps(message[name])


def test_empty_fields_are_left_out() -> None:
    assert AssistantMessage().to_request("reasoning").keys() == {"role", "content"}


def test_servers_refuse_a_message_without_text_and_calls() -> None:
    assert AssistantMessage("because", " \n").to_request("reasoning")["content"].strip()
    assert AssistantMessage(calls=(BROKEN,)).to_request("reasoning")["content"] == ""


def test_malformed_arguments_never_enter_the_history() -> None:
    [made] = AssistantMessage(calls=(BROKEN,)).to_request("reasoning")["tool_calls"]
    assert made["function"]["arguments"] == "{}"
