"""Reading errors of servers: each server's message about a prompt that is too long."""

from __future__ import annotations

import pytest

from m3agent.serving.client.server_errors import refusal
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
        (
            (
                "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in the "
                "messages, 1000 in the completion). Please reduce the length of the messages or completion."
            ),
            4096,
            5000,
        ),
        (
            (
                "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is 4096 "
                "tokens and your request has 300 input tokens (5000 > 4096 - 300)."
            ),
            4096,
            5300,
        ),
        (
            (
                "You passed 1234567 input tokens and requested 0 output tokens. However, the model's context length is "
                "only 1048576 tokens, resulting in a maximum input length of 1048576 tokens."
            ),
            1048576,
            1234567,
        ),
        ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", 4096, 5000),
        ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", 4096, 5000),
        (
            (
                "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total "
                "of 5000 tokens: 4000 tokens from the input messages and 1000 tokens for the completion."
            ),
            4096,
            5000,
        ),
        (
            "This model's maximum context length is 128,000 tokens. However, your messages resulted in 130,000.",
            128000,
            130000,
        ),
        ("The prompt is too long: max_seq_len (4096) leaves no room.", 4096, None),
        ("invalid params, context window exceeds limit (2013)", None, None),  # 2013 is an error code
        (
            (
                "This model's maximum context length is 4096 tokens. However, you requested 8 output tokens and your prompt "
                "contains 900000 characters (more than 524288 characters, which is the upper bound for 4088 input tokens)."
            ),
            4096,
            None,
        ),
    ],
)
def test_the_numbers_of_a_prompt_that_is_too_long(text: str, limit: int | None, asked: int | None) -> None:
    error = refusal(400, text, "gpu:8000")
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked) == (limit, asked)
    assert limit is None or f"{limit:,}" in str(error)
    assert asked is None or f"{limit:,} tokens, and {asked:,}" in str(error)


@pytest.mark.parametrize("status", [401, 404, 429, 500])
def test_other_refusals_are_not_about_the_context_length(status: int) -> None:
    assert isinstance(refusal(status, "the context length is 5 tokens", "gpu:8000"), EndpointRefused)
