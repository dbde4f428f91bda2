"""Build the parameters of a chat request, except its messages.

It sends only parameters that the server and its model know. Servers may reject others (hosted M3 fails on
`reasoning_effort`, M3.1-Flash takes it) or, worse, silently ignore them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from m3agent.serving.client.affinity import Affinity
from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.wire import ThinkingMode


@dataclass(frozen=True)
class Sampling:
    """How the model draws its tokens; the defaults are MiniMax's for M3. None leaves a parameter to the server."""

    temperature: float | None = 1.0
    """Sampling temperature."""
    top_p: float | None = 0.95
    """Probability mass of nucleus sampling."""
    top_k: int | None = 40
    """Number of candidate tokens."""
    seed: int | None = None
    """For the embedded engine's search only, because model servers sample slower with a seed."""


SERVER_DEFAULTS = Sampling(None, None, None)
"""Leave all sampling to the server. A program that trains a model sets it there."""


def request_parameters(
    endpoint: Endpoint,
    tools: Sequence[Mapping[str, Any]],
    *,
    tool_choice: str | Mapping[str, Any],
    max_tokens: int | None,
    thinking: ThinkingMode,
    sampling: Sampling,
    stream: bool = True,
    tokens: bool = False,
    affinity: Affinity | None = None,
) -> dict[str, Any]:
    """Return the parameters that follow the messages, in a fixed order.

    Args:
        tokens: Whether the answer should have the ids of its tokens, and their log probabilities. vLLM has them.
    """
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
    drawn = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    parameters |= {name: value for name, value in drawn.items() if value is not None}
    if endpoint.flavour == "embedded" and sampling.seed is not None:
        parameters["seed"] = sampling.seed
    if endpoint.takes_template and sampling.top_k is not None:
        parameters["top_k"] = sampling.top_k
    parameters |= _thinking(endpoint, thinking)
    if endpoint.reasoning_field == "reasoning_details":  # otherwise the reasoning is part of the text
        parameters["reasoning_split"] = True
    if tokens and endpoint.flavour == "vllm":
        parameters |= {"logprobs": True, "return_token_ids": True}
    if affinity is not None:
        parameters |= affinity.parameters(endpoint)
    for name in known.leave_out if (known := endpoint.known) is not None else ():
        parameters.pop(name, None)
    return parameters


def _thinking(endpoint: Endpoint, thinking: ThinkingMode) -> dict[str, Any]:
    """Return how a kind of server is told to think, and how much."""
    off = thinking == "disabled"
    if endpoint.flavour == "openrouter":
        switch: dict[str, Any] = {} if thinking == "adaptive" else {"enabled": not off}
        reasoning = switch | ({"effort": endpoint.effort} if endpoint.effort else {})
        return {"reasoning": reasoning} if reasoning else {}
    sent: dict[str, Any] = {}
    if endpoint.takes_template:
        sent["chat_template_kwargs"] = {"thinking_mode": thinking}
    elif endpoint.flavour == "minimax":  # it has no mode that always thinks
        sent["thinking"] = {"type": "disabled" if off else "adaptive"}
    elif endpoint.flavour == "nim":
        sent["thinking"] = {"type": "disabled" if off else "enabled"}
    return sent | ({"reasoning_effort": endpoint.effort} if endpoint.effort else {})
