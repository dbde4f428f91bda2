"""Build the parameters of a chat request, except its messages.

It sends only parameters that the server and its model know. Servers may reject others (hosted M3 fails on
`reasoning_effort`, M3.1-Flash takes it) or, worse, silently ignore them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from m3agent.serving.client.endpoint import Endpoint, Flavour
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


RANK_HEADER = "X-data-parallel-rank"
"""vLLM's header for the data-parallel rank (0.24 to 0.33)."""
RANK_PARAMETER = "routed_dp_rank"
"""SGLang's parameter for the data-parallel rank."""


@dataclass(frozen=True)
class Affinity:
    """The session of a client's requests, so that a router or a server finds the session's prefix again.

    A server answers a turn in seconds if it has the conversation in its cache, and in minutes if it has not. Routers read
    the session from a header. An engine with several data-parallel ranks has one cache for each rank and chooses the
    rank by load alone, unless the request names it.
    """

    session: str
    """Id of the session. Attempts at one issue share it, because their prompts begin with the same text."""
    ranks: int = 1
    """Number of data-parallel ranks of the server; 1 also if it is not known, and then no rank is sent."""

    @property
    def key(self) -> str:
        """What servers see: it tells sessions apart and says nothing about them."""
        return hashlib.sha256(self.session.encode()).hexdigest()[:32]

    @property
    def rank(self) -> int | None:
        """The rank that has the session's prefix: always the same one; None if there is only one."""
        return int(self.key, 16) % self.ranks if self.ranks > 1 else None

    def headers(self, endpoint: Endpoint) -> dict[str, str]:
        """Return the headers that a server of this kind, or a router in front of it, understands."""
        named = dict.fromkeys(endpoint.session_headers, self.key)
        if endpoint.flavour == "vllm" and self.rank is not None:
            named[RANK_HEADER] = str(self.rank)
        return named

    def parameters(self, endpoint: Endpoint) -> dict[str, Any]:
        """Return the parameters of the body that a server of this kind understands."""
        return {RANK_PARAMETER: self.rank} if endpoint.flavour == "sglang" and self.rank is not None else {}


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
    known = {
        "model": endpoint.model,
        "stream": stream,
        # a whole answer has its usage anyway, and vLLM refuses the option there
        "stream_options": {"include_usage": True} if stream else None,
        "tools": tools or None,
        "tool_choice": tool_choice
        if tools and not hosted_by_minimax
        else None,  # not in MiniMax's documentation
        "max_completion_tokens" if hosted_by_minimax else "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed if endpoint.flavour == "embedded" else None,
        "top_k": sampling.top_k if endpoint.takes_template else None,
        **_thinking(endpoint, thinking),
        **_answer_form(endpoint, tokens=tokens),
        **({} if affinity is None else affinity.parameters(endpoint)),
    }
    left_out = () if endpoint.known is None else endpoint.known.leave_out
    return {name: value for name, value in known.items() if value is not None and name not in left_out}


def _answer_form(endpoint: Endpoint, *, tokens: bool) -> dict[str, bool]:
    """Return the parameters that decide what parts an answer has."""
    # otherwise the reasoning is part of the text
    split = ["reasoning_split"] if endpoint.reasoning_field == "reasoning_details" else []
    ids = ["logprobs", "return_token_ids"] if tokens and endpoint.flavour == "vllm" else []
    return dict.fromkeys([*split, *ids], True)


_THINKS: dict[Flavour, str] = {"minimax": "adaptive", "nim": "enabled"}
"""The mode of hosted APIs that can switch thinking off only; MiniMax's has none that always thinks."""


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
    elif endpoint.flavour in _THINKS:
        sent["thinking"] = {"type": "disabled" if off else _THINKS[endpoint.flavour]}
    return sent | ({"reasoning_effort": endpoint.effort} if endpoint.effort else {})
