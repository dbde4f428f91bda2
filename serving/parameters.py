"""The parameters of a chat request beside its messages: only those that the server at hand knows.

Others may be refused (hosted M3 fails on `reasoning_effort`) or, worse, passed over in silence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from m3agent.serving.endpoint import Endpoint
from m3agent.serving.wire import ThinkingMode

# Servers that hand `chat_template_kwargs` to M3's template, and know `top_k`.
_TEMPLATE_FLAVOURS = frozenset({"vllm", "sglang", "trtllm", "embedded"})


@dataclass(frozen=True)
class Sampling:
    """How the model draws its tokens; the defaults are MiniMax's for M3. seed: for the embedded engine's search only,
    since servers sample slower with one."""

    temperature: float = 1.0
    top_p: float = 0.95
    top_k: int = 40
    seed: int | None = None


def request_parameters(
    endpoint: Endpoint,
    tools: Sequence[Mapping[str, Any]],
    *,
    tool_choice: str | Mapping[str, Any],
    max_tokens: int | None,
    thinking: ThinkingMode,
    sampling: Sampling,
) -> dict[str, Any]:
    """What follows the messages, in an order that never changes."""
    hosted_by_minimax = endpoint.flavour == "minimax"
    parameters: dict[str, Any] = {
        "model": endpoint.model,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        parameters["tools"] = tools
        if not hosted_by_minimax:  # its documentation has no `tool_choice`
            parameters["tool_choice"] = tool_choice
    if max_tokens is not None:
        parameters["max_completion_tokens" if hosted_by_minimax else "max_tokens"] = max_tokens
    parameters |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
    if endpoint.flavour == "embedded" and sampling.seed is not None:
        parameters["seed"] = sampling.seed
    if endpoint.flavour in _TEMPLATE_FLAVOURS:
        parameters |= {"top_k": sampling.top_k, "chat_template_kwargs": {"thinking_mode": thinking}}
    elif hosted_by_minimax:  # it thinks as it sees fit, or not at all
        parameters["thinking"] = {"type": "disabled" if thinking == "disabled" else "adaptive"}
    elif endpoint.flavour == "openrouter" and thinking == "disabled":
        parameters["reasoning"] = {"enabled": False}
    if endpoint.reasoning_field == "reasoning_details":  # else it stands within the text
        parameters["reasoning_split"] = True
    return parameters
