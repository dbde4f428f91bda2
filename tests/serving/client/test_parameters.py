"""Which parameters each kind of server is sent."""

from __future__ import annotations

from typing import Any

import pytest

from m3agent.serving.client.endpoint import Flavour
from m3agent.serving.client.parameters import SERVER_DEFAULTS, Sampling, request_parameters
from tests.serving.talk import endpoint

TOOL = {"type": "function", "function": {"name": "f"}}
COMMON = {"model", "stream", "stream_options", "temperature", "top_p", "tools"}


def parameters(flavour: Flavour, **changes: Any) -> dict[str, Any]:
    field = "reasoning_details" if flavour == "minimax" else "reasoning"
    at = endpoint("http://h/v1", flavour=flavour, reasoning_field=field)
    values: dict[str, Any] = {"tools": [TOOL], "sampling": Sampling(), "tool_choice": "auto"}
    return request_parameters(at, **(values | {"max_tokens": None, "thinking": "adaptive"} | changes))


@pytest.mark.parametrize(
    ("flavour", "more"),
    [
        ("vllm", {"tool_choice", "top_k", "chat_template_kwargs"}),
        ("sglang", {"tool_choice", "top_k", "chat_template_kwargs"}),
        ("trtllm", {"tool_choice", "top_k", "chat_template_kwargs"}),
        ("embedded", {"tool_choice", "top_k", "chat_template_kwargs"}),
        ("minimax", {"reasoning_split", "thinking"}),
        ("openrouter", {"tool_choice"}),
        ("unknown", {"tool_choice"}),
    ],
)
def test_names(flavour: Flavour, more: set[str]) -> None:
    assert parameters(flavour).keys() == COMMON | more
    assert parameters(flavour, tools=[]).keys() == (COMMON | more) - {"tools", "tool_choice"}
    limit = "max_completion_tokens" if flavour == "minimax" else "max_tokens"
    assert parameters(flavour, max_tokens=5).keys() == COMMON | more | {limit}


@pytest.mark.parametrize(
    ("flavour", "thinking", "sent"),
    [
        ("vllm", "enabled", {"chat_template_kwargs": {"thinking_mode": "enabled"}}),
        ("minimax", "enabled", {"thinking": {"type": "adaptive"}}),
        ("minimax", "disabled", {"thinking": {"type": "disabled"}}),
        ("openrouter", "disabled", {"reasoning": {"enabled": False}}),
    ],
)
def test_thinking(flavour: Flavour, thinking: str, sent: dict[str, Any]) -> None:
    assert sent.items() <= parameters(flavour, thinking=thinking).items()


def test_sampling() -> None:
    made = parameters("vllm", sampling=Sampling(temperature=0.2, top_p=0.5, top_k=7))
    assert (made["temperature"], made["top_p"], made["top_k"]) == (0.2, 0.5, 7)


def test_a_whole_answer_is_requested_without_the_options_of_streams() -> None:
    streamed = parameters("vllm")
    del streamed["stream_options"]
    assert parameters("vllm", stream=False) == streamed | {"stream": False}


def test_sampling_may_be_left_to_the_server() -> None:
    assert parameters("vllm", sampling=SERVER_DEFAULTS).keys() == COMMON - {"temperature", "top_p"} | {
        "tool_choice",
        "chat_template_kwargs",
    }


def test_tokens_are_asked_of_vllm_only() -> None:
    assert {"logprobs": True, "return_token_ids": True}.items() <= parameters("vllm", tokens=True).items()
    assert parameters("unknown", tokens=True) == parameters("unknown")
