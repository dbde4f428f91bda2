"""The sandbox without isolation: the tests of all sandboxes, in a container as a user without rights, and as root."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.image import find_image, host_folders
from tests.conftest import backend_here

ROOT = Path(__file__).resolve().parents[3]
FILES = (
    "tests/abuse/test_survival.py",
    "tests/sandbox/backends/test_jobs.py",
    "tests/sandbox/backends/test_here_process.py",
)
SLOW = "test_ten_thousand_calls_at_once"

pytestmark = [pytest.mark.integration, pytest.mark.supervisor]


@pytest.mark.slow
@pytest.mark.timeout(400)
# not 1000, the user of sandboxes in other tests: the kernel counts the processes of a user in all containers together
@pytest.mark.parametrize(("user", "processes"), [("4321:4321", 600), ("0:0", 256)])
def test_nothing_survives_its_command_without_isolation(user: str, processes: int) -> None:
    """The container has no engine, no user namespaces, no network and a root that cannot be written."""
    backend_here("docker")  # for a container to work in
    api = connect()
    try:
        image = find_image(api, None, lambda _: None)
    finally:
        api.close()
    read_only = {str(ROOT), sys.prefix, sys.base_prefix, *host_folders()}
    done = subprocess.run(
        [
            *("docker", "run", "--rm", "--user", user, "--read-only", "--network", "none"),
            *("--pids-limit", str(processes), "--memory", "4g", "--tmpfs", "/tmp:exec,mode=1777"),
            *(word for folder in sorted(read_only) for word in ("--volume", f"{folder}:{folder}:ro")),
            *("--env", "HOME=/tmp", "--env", "TEST_SANDBOXES=here", "--workdir", str(ROOT), image.name),
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow"),
            *("-k", f"here and not {SLOW}", *FILES),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout.splitlines()[-1]
