"""Say in each request which session it belongs to, so that a router or a server finds the session's prefix again.

A server answers a turn in seconds if it has the conversation in its cache, and in minutes if it has not. Routers read
the session from a header. An engine with several data-parallel ranks has one cache for each rank and chooses the
rank by load alone, unless the request names it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from m3agent.serving.client.endpoint import Endpoint

RANK_HEADER = "X-data-parallel-rank"
"""vLLM's header for the data-parallel rank (0.24 to 0.33)."""
RANK_PARAMETER = "routed_dp_rank"
"""SGLang's parameter for the data-parallel rank."""


@dataclass(frozen=True)
class Affinity:
    """The session of a client's requests."""

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
