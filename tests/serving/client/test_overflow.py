"""Errors about a prompt that is too long, in the words of each server; and errors that sound alike."""

from __future__ import annotations

from typing import Any

import pytest

from m3agent.serving.client.server_errors import refusal, reported
from m3agent.serving.errors import ContextTooLong, ModelServerError, StreamCut

Numbers = tuple[int | None, int | None]

OVERFLOWS: dict[str, tuple[int, str, Numbers]] = {
    "vllm, before the tokenizer": (
        400,
        (
            "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens. Please reduce the "
            "length of the input messages."
        ),
        (4096, 5000),
    ),
    "vllm, characters": (
        400,
        (
            "You passed 5000 input characters and requested 0 output tokens. However, the model's context length is only 4096 "
            "tokens, resulting in a maximum input length of 4096 tokens."
        ),
        (4096, None),
    ),
    "vllm, decoder": (
        400,
        (
            "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is "
            "no smaller than the number of text tokens."
        ),
        (4096, 5000),
    ),
    "sglang": (
        400,
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        (4096, 5000),
    ),
    "sglang, allowed": (
        400,
        (
            "Input length (5000 tokens) exceeds the maximum allowed length (4096 tokens). Use a shorter input or enable "
            "--allow-auto-truncate."
        ),
        (4096, 5000),
    ),
    "tensorrt-llm": (
        400,
        "The sum of prompt length (5000.0), query length (0) should not exceed max_num_tokens (4096)",
        (None, 5000),
    ),
    "tensorrt-llm, default": (
        400,
        "`default_max_tokens` (-904) must be greater than 0, `default_max_tokens` = max_seq_len (4096) - prompt_len (5000)",
        (4096, None),
    ),
    "llama.cpp, new": (
        400,
        "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
        (4096, 5000),
    ),
    "llama.cpp": (400, "the request exceeds the available context size, try increasing it", (None, None)),
    "llama.cpp, while it writes": (500, "Context size has been exceeded.", (None, None)),
    "llama.cpp, batch": (
        500,
        "input is too large to process. increase the physical batch size",
        (None, None),
    ),
    "llama.cpp, shift": (500, "context shift is disabled", (None, None)),
    "lm studio": (
        400,
        (
            "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length of "
            "only 4096 tokens, which is not enough."
        ),
        (4096, None),
    ),
    "lm studio, older": (
        400,
        (
            "The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model with "
            "a larger context length, or provide a shorter input"
        ),
        (None, None),
    ),
    "mlx": (400, "Prompt too long: 5000 tokens exceeds max context window of 4096 tokens", (4096, 5000)),
    "tgi": (
        422,
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20 "
            "`max_new_tokens`"
        ),
        (4096, 5000),
    ),
    "tgi, inputs": (
        422,
        "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",
        (4096, 5000),
    ),
    "together": (
        422,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096",
        (4096, None),
    ),
    "openrouter": (
        400,
        (
            "This endpoint's maximum context length is 4096 tokens. However, you requested about 5000 tokens (4000 of text input, "
            "1000 of tool input). Please reduce the length of either one, or use the middle-out transform."
        ),
        (4096, 5000),
    ),
    "fireworks": (400, "The prompt is too long: 5000, model maximum context length: 4096", (4096, 5000)),
    "groq": (400, "Please reduce the length of the messages or completion.", (None, None)),
    "minimax": (400, "invalid params, context window exceeds limit (2013)", (None, None)),
    "minimax, older": (400, "invalid params, prompt tokens exceed the limit (2013)", (None, None)),
    "moonshot": (
        400,
        "Invalid request: Your request exceeded model token limit: 4096 (requested: 5000)",
        (4096, 5000),
    ),
    "google": (
        400,
        "The input token count (5000) exceeds the maximum number of tokens allowed (4096).",
        (4096, 5000),
    ),
    "anthropic": (400, "prompt is too long: 5000 tokens > 4096 maximum", (4096, 5000)),
    "anthropic, with the answer": (
        400,
        "input length and `max_tokens` exceed context limit: 4000 + 1000 > 4096, decrease input length or `max_tokens`",
        (None, None),
    ),
    "openai": (400, "Your input exceeds the context window of this model.", (None, None)),
    "xai": (
        400,
        "This model's maximum prompt length is 4096 but the request contains 5000 tokens.",
        (4096, 5000),
    ),
    "mistral": (
        400,
        "Prompt contains 5000 tokens and 0 draft tokens, too large for model with 4096 maximum context length",
        (None, 5000),
    ),
    "bedrock": (400, "Input is too long for requested model.", (None, None)),
    "ollama": (400, "prompt too long; exceeded max context length by 100 tokens", (None, None)),
    "litellm": (400, "litellm.ContextWindowExceededError: BadRequestError", (None, None)),
    "413": (413, "Payload Too Large", (None, None)),
    "413, a web page": (413, "<html><title>413 Request Entity Too Large</title></html>", (None, None)),
    "413, without words": (413, "", (None, None)),
}

OTHERS: list[tuple[int, str]] = [
    (429, "Rate limit reached on tokens per minute (TPM): Limit 30000, Used 29000, Requested 5000"),
    (429, "Request too large for m3 on tokens per min (TPM): Limit 30000, Requested 50000"),
    (429, "This request exceeds the context window rate"),
    (400, "You exceeded the input tokens exceed limit per minute of this key"),
    (400, "Your account exceeded its token limit per day"),
    (400, "the quota of prompt tokens exceeds what your plan allows"),
    (400, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens"),
    (400, "max_tokens must be at least 1, got 0"),
    (400, "max_completion_tokens: 200000 > 131072, which is the maximum allowed number of output tokens"),
    (400, "image is too large: 40 MB; at most 10 MB"),
    (400, "Image size (5000x5000) exceeds the maximum allowed size of 4096x4096"),
    (400, "At most 5 images may be provided in one prompt"),
    (400, "Invalid schema for function 'f': array schema missing items"),
    (400, "tools[0].function.name: string too long, at most 64 characters"),
    (400, "'user' is too long: its maximum length is 64"),
    (400, "messages[3].tool_calls[0].id is too long"),
    (400, "invalid params, tool result's tool id not found (2013)"),
    (400, "context_length is not a supported parameter"),
    (400, "Unrecognized request argument supplied: chat_template_kwargs"),
    (400, "temperature must be between 0 and 2"),
    (400, "top_k must be at most 100"),
    (400, "the stop sequence is too long"),
    (400, "input is sensitive (1026)"),
    (400, "The length of logprobs exceeds the maximum of 20"),
    (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
    (401, "This key may not use the maximum context length of 1048576 tokens"),
    (402, "This request requires more credits. You requested up to 65536 tokens, but can only afford 3000"),
    (404, "The model with maximum context length is 4096 does not exist"),
    (500, "CUDA out of memory. Tried to allocate 2.00 GiB"),
    (500, "the engine has trouble"),
    (503, "the context length is 5 tokens"),
    (504, "The request took too long"),
]


@pytest.mark.parametrize(("status", "text", "numbers"), OVERFLOWS.values(), ids=OVERFLOWS.keys())
def test_a_prompt_that_is_too_long(status: int, text: str, numbers: Numbers) -> None:
    error = refusal(status, text, "gpu:8000")
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked) == numbers


@pytest.mark.parametrize(("status", "text"), OTHERS, ids=[text[:50] for _, text in OTHERS])
def test_an_error_that_sounds_alike(status: int, text: str) -> None:
    assert not isinstance(refusal(status, text, "gpu:8000"), ContextTooLong)
    assert not isinstance(reported({"message": text, "code": status}, "gpu:8000", None), ContextTooLong)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 4096},
        {"code": "context_length_exceeded", "type": "invalid_request_error"},
        {"type": "request_too_large"},
    ],
)
@pytest.mark.parametrize("within", [False, True], ids=["status", "in the stream"])
def test_a_type_or_code_without_words(fields: dict[str, Any], within: bool) -> None:
    error: ModelServerError = (
        reported(fields, "gpu:8000", None)
        if within
        else refusal(400, "bad request", "gpu:8000", None, fields)
    )
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked) == (fields.get("n_ctx"), fields.get("n_prompt_tokens"))


def test_what_openrouters_provider_said() -> None:
    raw = '{"error": {"message": "The prompt is too long: 5000, model maximum context length: 4096"}}'
    error = {"code": 400, "message": "Provider returned error", "metadata": {"raw": raw}}
    assert isinstance(reported(error, "openrouter.ai", None), ContextTooLong)
    assert isinstance(reported(error | {"code": 502}, "openrouter.ai", None), ContextTooLong)
    assert isinstance(reported({"code": 502, "message": "no"}, "openrouter.ai", None), StreamCut)
