import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

# `tests.servers` is shared; the tests' folders are no packages, so the root has to be on the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.servers.misbehaving import MisbehavingServer


@pytest.fixture
async def server() -> AsyncIterator[MisbehavingServer]:
    with MisbehavingServer() as running:
        yield running
