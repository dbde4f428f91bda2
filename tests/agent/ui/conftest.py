"""Fixtures for the tests of what a person sees."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def unicode_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show more than ASCII, whatever the caller's locale is."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
