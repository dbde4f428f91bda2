"""Reading errors of servers: each server's message about a prompt that is too long."""

from __future__ import annotations

import pytest

from m3agent.serving.client.http import refusal
from m3agent.serving.errors import ContextTooLong, EndpointRefused


@pytest.mark.parametrize(
    ("text", "limit", "asked"),
    [
        (  # from a real vLLM 0.24
            (
                "This model's maximum context length is 1048576 tokens. However, you requested 8 output tokens and your prompt "
                "contains at least 1048569 input tokens, for a total of at least 1048577 tokens. Please reduce the length of "
                "the input prompt or the number of requested output tokens. (parameter=input_tokens, value=1048569)"
            ),
            1048576,
            1048577,
        ),
        (
            "This model's maximum context length is 4096 tokens. However, your prompt contains at least 5000 input tokens.",
            4096,
            5000,
        ),
        ("Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens).", 59862, 160062),
        ("The prompt (length 5000) is longer than the maximum model length of 4096.", 4096, 5000),
    ],
)
def test_the_numbers_of_a_prompt_that_is_too_long(text: str, limit: int, asked: int) -> None:
    error = refusal(400, text, "gpu:8000")
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked) == (limit, asked)
    assert f"{limit:,} tokens, and {asked:,}" in str(error)


def test_a_prompt_that_was_not_even_counted() -> None:
    text = (
        "This model's maximum context length is 4096 tokens. However, you requested 8 output tokens and your prompt contains "
        "900000 characters (more than 524288 characters, which is the upper bound for 4088 input tokens)."
    )
    error = refusal(400, text, "gpu:8000")
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked) == (4096, None)


@pytest.mark.parametrize("status", [401, 404, 429, 500])
def test_other_refusals_are_not_about_the_context_length(status: int) -> None:
    assert isinstance(refusal(status, "the context length is 5 tokens", "gpu:8000"), EndpointRefused)
