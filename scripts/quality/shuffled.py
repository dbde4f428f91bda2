"""Pytest plugin: run the tests in another order, which the variable `TEST_ORDER_SEED` decides.

    TEST_ORDER_SEED=1 python -m pytest -p scripts.quality.shuffled

The tests of a file stay together, because they share the file's fixtures.
"""

from __future__ import annotations

import os
import random

import pytest

SEED = "TEST_ORDER_SEED"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle the files, and the tests in each file. All workers find the same order."""
    generator = random.Random(os.environ[SEED])  # noqa: S311  # no secret
    files = {item.path: generator.random() for item in items}
    items.sort(key=lambda item: (files[item.path], generator.random()))
