"""Turn the findings of an examination into checks: prefix cache, cached tokens, speed of the tokenizer."""

from __future__ import annotations

from m3agent.serving.check.check import Check
from m3agent.serving.check.prefix_probe import (
    SLOW_TOKENIZER,
    Findings,
)
from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.plan.engines import remedy


def examined_checks(endpoint: Endpoint, findings: Findings) -> list[Check]:
    """Return the three checks; `ok` is None where the examination found nothing out."""
    cached, reported, seconds = findings.prefix_caching, findings.cached_tokens, findings.tokenizer_seconds
    speed = None if seconds is None else f"{seconds:.2g} s for a million tokens"
    return [
        _check(
            "prefix cache",
            cached,
            "a prefix sent twice came from the cache",
            "no prefix cache: each turn computes the whole prompt again",
            remedy(endpoint.flavour, "prefix_cache"),
        ),
        _check(
            "cached tokens",
            reported,
            "usage reports cached tokens",
            "does not report how many prompt tokens were cached",
            remedy(endpoint.flavour, "cached_tokens"),
        ),
        _check(
            "tokenizer",
            None if seconds is None else seconds <= SLOW_TOKENIZER,
            speed or "",
            f"slow, in each turn: {speed}",
            remedy(endpoint.flavour, "tokenizer"),
            timed=True,
        ),
    ]


def _check(
    name: str,
    ok: bool | None,
    good: str,
    bad: str,
    fix: str,
    *,
    timed: bool = False,
) -> Check:
    if ok is None:
        return Check(name, None, "unknown", timed=timed)
    return Check(name, ok, good if ok else bad, "" if ok else fix, timed)
