"""Turn the findings of an examination into checks: prefix cache, cached tokens, speed of the tokenizer."""

from __future__ import annotations

from m3agent.serving.check.check import Check
from m3agent.serving.check.prefix_probe import (
    CACHING_SWITCHES,
    REPORTING_SWITCHES,
    SLOW_TOKENIZER,
    TOKENIZER_SWITCHES,
    Findings,
)
from m3agent.serving.client.endpoint import Endpoint, Flavour


def examined_checks(endpoint: Endpoint, findings: Findings) -> list[Check]:
    """Return the three checks; `ok` is None where the examination found nothing out."""
    cached, reported, seconds = findings.prefix_caching, findings.cached_tokens, findings.tokenizer_seconds
    speed = None if seconds is None else f"{seconds:.2g} s for a million tokens"
    return [
        _check(
            endpoint,
            "prefix cache",
            cached,
            "a prefix sent twice came from the cache",
            "no prefix cache: each turn computes the whole prompt again",
            CACHING_SWITCHES,
        ),
        _check(
            endpoint,
            "cached tokens",
            reported,
            "usage reports cached tokens",
            "does not report how many prompt tokens were cached",
            REPORTING_SWITCHES,
        ),
        _check(
            endpoint,
            "tokenizer",
            None if seconds is None else seconds <= SLOW_TOKENIZER,
            speed or "",
            f"slow, in each turn: {speed}",
            TOKENIZER_SWITCHES,
            timed=True,
        ),
    ]


def _check(
    endpoint: Endpoint,
    name: str,
    ok: bool | None,
    good: str,
    bad: str,
    switches: dict[Flavour, str],
    *,
    timed: bool = False,
) -> Check:
    if ok is None:
        return Check(name, None, "unknown", timed=timed)
    return Check(name, ok, good if ok else bad, "" if ok else switches[endpoint.flavour], timed)
