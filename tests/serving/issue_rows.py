"""A row of issues.toml for tests, so that they do not depend on those that a person may correct."""

from __future__ import annotations

from datetime import date
from functools import cache

import pytest

from m3agent.serving.facts.table import Condition
from m3agent.serving.plan import known_issues
from m3agent.serving.plan.known_issues import KnownIssue, Severity


def add_issue(monkeypatch: pytest.MonkeyPatch, severity: Severity, versions: str) -> KnownIssue:
    """Add a known issue of some versions of vLLM on Hopper."""
    when = Condition(
        {"engine": "vllm", "architecture": "hopper", "versions": versions},
        {"engine": str, "architecture": str},
    )
    row = KnownIssue(
        source="a test", date=date(2026, 11, 30), name="of-a-test", severity=severity, when=(when,),
        effect="answers are slow", remedy="wait", example={}, unlike={},
    )  # fmt: skip
    monkeypatch.setattr(known_issues, "TRAPS", (*known_issues.TRAPS, row))
    monkeypatch.setattr(known_issues, "_of", cache(known_issues._of.__wrapped__))
    return row
