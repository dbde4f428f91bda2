"""Results forged inside the sandbox: by the code under test, by files around the tests, by a command's output."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.sandbox.backends.factory import Backend
from m3agent.sandbox.backends.sandbox import SandboxLimits
from m3agent.tools.base import ToolResult
from m3agent.tools.registry import Toolset
from tests.abuse.box import Box
from tests.abuse.forgeries import FORGERIES, HONEST
from tests.abuse.forgery_judges import verified
from tests.abuse.forgery_targets import FUNCTIONS, Forgery
from tests.conftest import backend_here, one_kind, others_later
from tests.python_images import python_image

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.supervisor]

LIMITS = SandboxLimits(memory=512 << 20)
CODE = "def add(a, b):\n    return a - b\n"
TESTS = "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n\n\ndef test_zero():\n    assert add(0, 0) == 0\n"
ADD = "test_calc.py::test_add"

# In a session: files around a failing test, which must not make it appear as passed.
SURROUNDINGS = {
    "prints-success": {"conftest.py": "print('===== 2 passed in 0.01s =====')\n"},
    "ends-in-conftest": {"conftest.py": "import os\nprint('2 passed')\nos._exit(0)\n"},
    "ends-at-first-test": {"conftest.py": "import os\ndef pytest_runtest_setup(item): os._exit(0)\n"},
    "ends-when-imported": {"calc.py": "import os\nos._exit(0)\n"},
    "ends-in-test": {"calc.py": "import os\ndef add(a, b): os._exit(0)\n"},
    "exits-in-test": {"calc.py": "import sys\ndef add(a, b): sys.exit(0)\n"},
    "pytest-exit": {"calc.py": "import pytest\ndef add(a, b): pytest.exit('all good', returncode=0)\n"},
    "rewrites-exit-status": {"conftest.py": "def pytest_sessionfinish(session): session.exitstatus = 0\n"},
    "ends-before-start": {"sitecustomize.py": "import os\nos.write(1, b'2 passed')\nos._exit(0)\n"},
    "deselects": {"pytest.ini": "[pytest]\naddopts = --deselect test_calc.py::test_add -q\n"},
    "ignores": {"conftest.py": "collect_ignore = ['test_calc.py']\n"},
    "skips": {"conftest.py": "import pytest\ndef pytest_runtest_setup(item): pytest.skip('fine')\n"},
    "collects-only": {"pytest.ini": "[pytest]\naddopts = --collect-only\n"},
    "kills-the-runner": {"calc.py": "import os, signal\ndef add(a, b): os.kill(os.getppid(), signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)\n"},
    "hangs": {"calc.py": "import time\ndef add(a, b): time.sleep(1000)\n"},
}  # fmt: skip


@pytest.mark.parametrize(
    "forgery",
    others_later(SURROUNDINGS, SURROUNDINGS.keys() - {"hangs", "skips", "exits-in-test", "ignores"}),
)
async def test_a_failing_test_is_never_shown_as_passed(box: Box, tmp_path: Path, forgery: str) -> None:
    files = {"calc.py": CODE, "test_calc.py": TESTS, **SURROUNDINGS[forgery]}
    for name, text in files.items():
        await box.sandbox.write(name, text.encode())
    result = await Toolset(box.sandbox, tmp_path).call("test_runner", {"test_file": ".", "timeout": 8}, 1)
    assert ADD not in result.data["passed"]
    assert not result.content.startswith("2 passed")
    if not result.data["failed"]:  # then the result must show in another way that not all tests passed
        assert (
            result.is_error
            or result.data["skipped"]
            or not result.data["complete"]
            or "1 passed" in result.content
        )


QUICK = {"plugin by a distribution", "report written, then the end", "channel found in frames"}
"""The long tests try the others. `make test` tries more in test_grade_forgery.py, and patches that work by chance in
test_verify.py and test_flaky.py."""
IN_DOCKER = {
    *QUICK,
    "data of a conftest replaced by names in a docstring",
    "own test and own module",
    "closure of unittest replaced",
    "frame found by names in a docstring",
    "package in the place of a test helper",
    "breaks a green test half of the time",
}
"""Forgeries of each kind."""


async def check(forgery: str, backend: Backend, folder: Path) -> None:
    forged = FORGERIES[forgery]
    result = await verified(forged.files, forged.target, backend, folder)
    assert result.verdict != "verified", result.reason


@pytest.mark.parametrize("forgery", others_later(FORGERIES, QUICK))
async def test_a_forged_fix_is_not_verified(one_backend: Backend, tmp_path: Path, forgery: str) -> None:
    await check(forgery, one_backend, tmp_path)


@pytest.mark.slow  # quick: the same in one kind of sandbox; benchmarks/forgeries.py tries all in both kinds
@pytest.mark.parametrize("forgery", sorted(IN_DOCKER))
async def test_a_forged_fix_is_not_verified_in_docker(tmp_path: Path, forgery: str) -> None:
    if one_kind() == "docker":
        pytest.skip("Docker is the one kind already")
    await check(forgery, backend_here("docker"), tmp_path)


ON_OTHERS = {*QUICK, "closure of unittest replaced", "frame found by names in a docstring"}
"""Forgeries that are tried on other Pythons: the rest of `IN_DOCKER` behaves in the same way there."""
UNNOTICED = {"frame found by names in a docstring": {"3.9", "pypy"}}
"""Forgeries that the guard cannot see on some of these Pythons. The verdict there says what can go unnoticed."""


@pytest.mark.slow  # quick: test_runner_pythons.py
@pytest.mark.docker
@pytest.mark.parametrize("python", ["3.9", "pypy"])
@pytest.mark.parametrize("forgery", [None, *sorted(ON_OTHERS)])
async def test_a_forged_fix_is_not_verified_on_other_pythons(
    tmp_path: Path, python: str, forgery: str | None
) -> None:
    """Without a forgery, the right fix is verified there: the refusals have another reason than the Python."""
    forged = FORGERIES[forgery] if forgery else Forgery("files", {FUNCTIONS.module: FUNCTIONS.fixed})
    image = python_image(python)
    result = await verified(forged.files, forged.target, "docker", tmp_path, image, reruns=0)
    if python in UNNOTICED.get(forgery or "", ()):
        assert "reads frames" in result.reason
    else:
        assert (result.verdict == "verified") == (forgery is None), result.reason


@pytest.mark.slow  # quick: test_verify_sandboxes.py
@pytest.mark.parametrize("target", HONEST)
async def test_a_real_fix_is_verified(one_backend: Backend, tmp_path: Path, target: str) -> None:
    """Counter-check of the refusals above: verification does accept a real fix."""
    right = {HONEST[target].module: HONEST[target].fixed}
    result = await verified(right, HONEST[target], one_backend, tmp_path)
    assert result.verdict == "verified", result.reason


async def test_the_list_has_what_it_promises() -> None:
    """Every path of a forgery is a change, and a right fix changes the module."""
    for name, forged in FORGERIES.items():
        assert any(forged.target.files.get(path) != text for path, text in forged.files.items()), name
    assert len(FORGERIES) >= 45


async def test_a_command_cannot_pass_its_failure_off_as_success(box: Box, tmp_path: Path) -> None:
    async def call(code: str) -> ToolResult:
        return await Toolset(box.sandbox, tmp_path).call("code_exec", {"code": code, "timeout": 60}, 1)

    printed = await call("print('exit code: 0')\nraise SystemExit(3)")
    assert printed.content.splitlines()[0] == "exit code: 3"
    assert printed.is_error
    refused = await call("print('error: refused')")
    assert not refused.is_error
    assert refused.content.startswith("exit code: 0")
