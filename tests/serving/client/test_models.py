"""What is known about hosted models, and what it changes in requests."""

from __future__ import annotations

from typing import Any

import pytest

from m3agent.serving.client.endpoint import unasked
from m3agent.serving.client.models import known_model, refuse_unknown_effort
from m3agent.serving.client.parameters import Sampling, request_parameters
from tests.serving.talk import endpoint

FLASH = "MiniMax-M3.1-Flash"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("MiniMax-M3", "MiniMax-M3"),
        ("minimax/minimax-m3:free", "MiniMax-M3"),
        ("minimax-m3.1-flash", FLASH),
        ("MiniMax-M3.1-Flash-Preview", FLASH),
        ("MiniMax-M2.7", None),
        ("", None),
    ],
)
def test_the_name_of_a_model(name: str, row: str | None) -> None:
    known = known_model(name)
    assert (known.name if known is not None else None) == row


@pytest.mark.parametrize(
    ("model", "effort", "thinking", "word"),
    [
        ("MiniMax-M3", "low", "enabled", "leave out --effort"),
        ("minimax-m3", "max", "disabled", "leave out --effort"),
        ("another", "low", "enabled", "leave out --effort"),
        (FLASH, "tiny", "enabled", "low, medium, high, xhigh, max"),
        (FLASH, None, "disabled", "always thinks"),
    ],
)
def test_what_a_model_lacks_is_refused(model: str, effort: str | None, thinking: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        refuse_unknown_effort(model, effort, thinking)


@pytest.mark.parametrize("effort", [None, "low", "xhigh"])
def test_what_a_model_has_is_not(effort: str | None) -> None:
    refuse_unknown_effort(FLASH, effort, "enabled")
    refuse_unknown_effort("MiniMax-M3", None, "disabled")


def parameters(url: str, model: str, **fields: Any) -> dict[str, Any]:
    at = unasked(url, model)
    at = endpoint(at.url, flavour=at.flavour, reasoning_field=at.reasoning_field, model=model, **fields)
    tools = [{"type": "function", "function": {"name": "f"}}]
    return request_parameters(
        at, tools, tool_choice="auto", max_tokens=None, thinking="enabled", sampling=Sampling()
    )


@pytest.mark.parametrize(
    ("url", "sent", "left_out"),
    [
        (
            "https://api.minimax.cn/v1",
            {"thinking": {"type": "adaptive"}, "reasoning_effort": "low"},
            {"tool_choice", "stop", "reasoning_split"},
        ),
        ("https://openrouter.ai/api/v1", {"reasoning": {"enabled": True, "effort": "low"}}, {"thinking"}),
        (
            "https://integrate.api.nvidia.com/v1",
            {"thinking": {"type": "enabled"}, "reasoning_effort": "low"},
            {"reasoning"},
        ),
        ("http://gpu:8000/v1", {"reasoning_effort": "low"}, {"thinking", "reasoning"}),
    ],
)
def test_thinking_and_effort(url: str, sent: dict[str, Any], left_out: set[str]) -> None:
    made = parameters(url, FLASH, effort="low")
    assert sent.items() <= made.items()
    assert not left_out & made.keys()


def test_hosted_models_have_a_window() -> None:
    assert unasked("https://api.minimax.io/v1", "MiniMax-M3").max_model_len == 1_000_000
    assert unasked("http://gpu:8000/v1", "MiniMax-M3").max_model_len is None
