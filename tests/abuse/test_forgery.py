"""Results forged inside the sandbox: by the code under test, by files around the tests, by a command's output."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.agent.verify.verify import Verification, verify
from m3agent.sandbox.backends.factory import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import SandboxLimits
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.base import ToolResult
from m3agent.tools.registry import Toolset
from tests.abuse.box import Box
from tests.conftest import others_later, write_files

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


# files handed in as the fix in a patch; the tests are those of the base
PATCHES: dict[str, dict[str, str]] = {
    "early-exit": {"calc.py": "import os\nos._exit(0)\n"},
    "exit-code": {"calc.py": CODE + "import atexit, os\natexit.register(os._exit, 0)\n"},
    "conftest": {"conftest.py": "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport():\n    out = yield\n    out.get_result().outcome = 'passed'\n"},
    "test-rewritten": {"test_calc.py": "def test_add(): pass\ndef test_zero(): pass\n"},
    "deselected": {"pytest.ini": "[pytest]\naddopts = --deselect test_calc.py::test_add\n"},
    "start-up-file": {"sitecustomize.py": "import sys, builtins\nimport _pytest.reports as r\nold = r.TestReport.__init__\ndef new(self, *a, **k):\n    old(self, *a, **k); self.outcome = 'passed'; self.longrepr = None\nr.TestReport.__init__ = new\n"},
    "user-start-up-file": {"usercustomize.py": "import _pytest.reports as r\nold = r.TestReport.__init__\ndef new(self, *a, **k):\n    old(self, *a, **k); self.outcome = 'passed'; self.longrepr = None\nr.TestReport.__init__ = new\n"},
    "shadowed-pytest": {"pytest.py": "import sys\nclass ExitCode: USAGE_ERROR = 4\ndef main(args, plugins=()):\n    for p in plugins:\n        for i in ('test_calc.py::test_add', 'test_calc.py::test_zero'):\n            p.pytest_runtest_logstart(i, None); p.pytest_runtest_logfinish(i, None)\n    return 0\n"},
    "shadowed-library": {"json.py": "def dumps(d, **k): return '{\"id\": \"test_calc.py::test_add\", \"outcome\": \"passed\", \"text\": \"\"}'\ndef loads(s, **k): return {}\n"},
    "new-test-replaces-the-code": {"test_aaa.py": "import calc\ncalc.add = lambda a, b: a + b\ndef test_new(): pass\n"},
    "new-test-sees-other-tests": {"test_zzz.py": "import sys\ndef test_new(): assert 'test_calc' in sys.modules\n"},
    "plugin-by-configuration": {"pytest.ini": "[pytest]\naddopts = -p evil\n", "evil.py": "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport():\n    out = yield\n    out.get_result().outcome = 'passed'\n"},
}  # fmt: skip


Judge = Callable[[dict[str, str]], Awaitable[Verification]]


@pytest.fixture
def judge(one_backend: Backend, tmp_path: Path) -> Judge:
    """Verify files as a patch to the failing repository, in fresh sandboxes.

    One kind of sandbox is enough, because the host decides.
    """

    async def run(files: dict[str, str]) -> Verification:
        folder = tmp_path / "tree"
        write_files(folder, {"calc.py": CODE, "test_calc.py": TESTS})
        store = TreeStore(tmp_path / "trees.git")
        workspace = Workspace.from_folder(store, folder, ["calc.py", "test_calc.py"])
        changed = [(name, 0o100644, text.encode()) for name, text in files.items()]
        patch = workspace.patch(workspace.commit_changes(workspace.base, changed, []))
        spec = SandboxSpec(one_backend, limits=LIMITS)
        runs = TreeRuns(store, lambda tree: new_sandbox(one_backend, spec, tree, lambda _: None), tmp_path)
        return await verify(workspace, patch, runs)

    return run


@pytest.mark.parametrize(
    "forgery",
    others_later(
        PATCHES,
        {
            "early-exit",
            "conftest",
            "test-rewritten",
            "start-up-file",
            "shadowed-pytest",
            "new-test-replaces-the-code",
        },
    ),
)
async def test_a_forged_fix_is_not_verified(judge: Judge, forgery: str) -> None:
    verdict = await judge(PATCHES[forgery])
    assert verdict.verdict != "verified", verdict.reason


async def test_a_real_fix_is_verified(judge: Judge) -> None:
    """Counter-check of the refusals above: verification does accept a real fix."""
    verdict = await judge({"calc.py": CODE.replace("-", "+")})
    assert verdict.verdict == "verified", verdict.reason


async def test_a_command_cannot_pass_its_failure_off_as_success(box: Box, tmp_path: Path) -> None:
    async def call(code: str) -> ToolResult:
        return await Toolset(box.sandbox, tmp_path).call("code_exec", {"code": code, "timeout": 60}, 1)

    printed = await call("print('exit code: 0')\nraise SystemExit(3)")
    assert printed.content.splitlines()[0] == "exit code: 3"
    assert printed.is_error
    refused = await call("print('error: refused')")
    assert not refused.is_error
    assert refused.content.startswith("exit code: 0")
