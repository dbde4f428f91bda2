"""Requirements of tests of environments, and a replacement for tests that do not depend on the environment."""

from __future__ import annotations

import os
import shutil

import pytest

from m3agent.evals.data.instance import Task
from m3agent.evals.environments.environments import Environments
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.image import find_image
from tests.conftest import docker_here

needs_docker = pytest.mark.skipif(not docker_here(), reason="no Docker engine")
needs_base = pytest.mark.skipif(
    not docker_here() or shutil.which("debootstrap") is None or os.geteuid() != 0,
    reason="a base image takes a Docker engine, debootstrap and root",
)


class Bare(Environments):
    """Use the sandboxes' own image for every task, for code that needs only pytest."""

    async def image(self, task: Task) -> str:
        api = connect()
        try:
            return find_image(api, None, self._say).name
        finally:
            api.close()
