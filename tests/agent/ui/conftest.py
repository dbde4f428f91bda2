"""Fixtures for the tests of what a person sees."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def shown(unicode_locale: None) -> None:
    """What a person sees has more than ASCII."""
