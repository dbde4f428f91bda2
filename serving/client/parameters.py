"""Build the parameters of a chat request, except its messages.

It sends only parameters that the server knows. Servers may reject others (hosted M3 fails on
`reasoning_effort`) or, worse, silently ignore them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.wire import ThinkingMode


@dataclass(frozen=True)
class Sampling:
    """How the model draws its tokens; the defaults are MiniMax's for M3.

    Attributes:
        temperature: Sampling temperature.
        top_p: Probability mass of nucleus sampling.
        top_k: Number of candidate tokens.
        seed: For the embedded engine's search only, because model servers sample slower with a seed.
    """

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
    stream: bool = True,
) -> dict[str, Any]:
    """Return the parameters that follow the messages, in a fixed order."""
    hosted_by_minimax = endpoint.flavour == "minimax"
    parameters: dict[str, Any] = {"model": endpoint.model, "stream": stream}
    if stream:  # a whole answer has its usage anyway, and vLLM refuses the option there
        parameters["stream_options"] = {"include_usage": True}
    if tools:
        parameters["tools"] = tools
        if not hosted_by_minimax:  # not in its documentation
            parameters["tool_choice"] = tool_choice
    if max_tokens is not None:
        parameters["max_completion_tokens" if hosted_by_minimax else "max_tokens"] = max_tokens
    parameters |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
    if endpoint.flavour == "embedded" and sampling.seed is not None:
        parameters["seed"] = sampling.seed
    if endpoint.takes_template:
        parameters |= {"top_k": sampling.top_k, "chat_template_kwargs": {"thinking_mode": thinking}}
    elif hosted_by_minimax:  # it has no mode that always thinks
        parameters["thinking"] = {"type": "disabled" if thinking == "disabled" else "adaptive"}
    elif endpoint.flavour == "openrouter" and thinking == "disabled":
        parameters["reasoning"] = {"enabled": False}
    if endpoint.reasoning_field == "reasoning_details":  # otherwise the reasoning is part of the text
        parameters["reasoning_split"] = True
    return parameters
