import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# `tests.servers` is shared; the tests' folders are no packages, so the root has to be on the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.servers.misbehaving import MisbehavingServer


@pytest.fixture(scope="session")
def running_server() -> Iterator[MisbehavingServer]:
    with MisbehavingServer() as running:
        yield running


@pytest.fixture
def server(running_server: MisbehavingServer) -> MisbehavingServer:
    running_server.reset()
    return running_server
