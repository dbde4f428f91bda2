"""Runner and guard on other Pythons than this machine's: what a run reports, and which tampering it sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.sandbox.backends.factory import SandboxSpec, new_sandbox
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.in_sandbox.guard import FEW_EVENTS, NO_HOOKS, REPLACED
from m3agent.tools.run_tests import Selection, run_in_sandbox
from m3agent.tools.test_report import Reached, TestReport
from tests.agent.scripted import BUGGY
from tests.command_line import run
from tests.conftest import others_later
from tests.python_images import RELEASES, python_image

pytestmark = [pytest.mark.docker]

PYTHONS = others_later(RELEASES, {"3.9", "newest"})
BLIND = {"3.5", "3.6", "3.7", "pypy"}
"""Pythons without audit hooks."""
SHORT_SIGHTED = {"3.8", "3.9"}
"""Pythons whose audit hooks report only a part."""
FILES = {
    "calc.py": "def add(a, b):\n    return a + b\n",
    "test_kinds.py": """\
import unittest
import pytest
from calc import add

@pytest.fixture(scope="module")
def three():
    return 3

def test_green(three):
    assert add(1, 2) == three

def test_red():
    assert add(1, 2) == 4, "\\u2260"

@pytest.mark.skip
def test_skipped():
    pass

@pytest.mark.parametrize("text", ["a", "\\u20ac"])
def test_text(text):
    assert text

class TestUnittest(unittest.TestCase):
    def test_method(self):
        self.assertEqual(add(2, 2), 4)
""",
    "reaching/test_reaching.py": "import sys\n\ndef test_frame():\n    assert sys._getframe(0)\n",
    "crash/test_crash.py": "import os\n\ndef test_a():\n    pass\n\ndef test_crash():\n    os._exit(7)\n",
    "forged/test_forged.py": """\
import _pytest.runner

made = _pytest.runner.CallInfo.from_call
_pytest.runner.CallInfo.from_call = classmethod(lambda cls, function, when, **given: made(lambda: None, when))

def test_wrong():
    assert False
""",
    "end/conftest.py": 'import os\n\nos.environ["SERVICE_URL"]\n',
    "end/test_any.py": "def test_any():\n    pass\n",
}
VERDICTS = {
    "verified": (0, BUGGY["calc.py"].replace("a - b", "a + b")),
    "failed": (1, BUGGY["calc.py"].replace("a - b", "a * b").replace("a * 2", "a")),
}
"""Verdicts with the exit code and the content of `calc.py` that has them."""


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
async def test_runner_and_guard(python: str, workspace_of: Callable[..., Workspace]) -> None:
    spec = SandboxSpec("docker", python_image(python))
    async with new_sandbox("docker", spec, workspace_of(FILES), lambda _: None) as sandbox:

        async def report(*targets: str) -> TestReport:
            return await run_in_sandbox(sandbox, Selection(targets or ["."]), guarded=())

        kinds = await report("test_kinds.py", "reaching")
        assert kinds.sets == {
            "passed": [
                "reaching/test_reaching.py::test_frame",
                "test_kinds.py::TestUnittest::test_method",
                "test_kinds.py::test_green",
                "test_kinds.py::test_text[\\u20ac]",
                "test_kinds.py::test_text[a]",
            ],
            "failed": ["test_kinds.py::test_red"],
            "errored": [],
            "skipped": ["test_kinds.py::test_skipped"],
        }
        assert "\u2260" in kinds.errors["test_kinds.py::test_red"]
        assert kinds.complete
        assert (NO_HOOKS in kinds.signs.blind) == (python in BLIND)
        assert (FEW_EVENTS in kinds.signs.blind) == (python in SHORT_SIGHTED)
        usual = kinds.signs

        place = Reached("reaching/test_reaching.py", 4, "sys._getframe")
        assert kinds.signs.reached == (() if python in BLIND else (place,))

        crash = await report("crash")
        assert (crash.passed, crash.failed) == (
            ("crash/test_crash.py::test_a",),
            ("crash/test_crash.py::test_crash",),
        )
        assert not crash.complete

        forged = (await report("forged")).signs.beyond(usual, ())
        assert any(sign.startswith(f"{REPLACED}_pytest.runner.") for sign in forged)

        end = await report("end")
        assert end.obstacle.endswith("KeyError: 'SERVICE_URL'")


@pytest.mark.slow  # quick: test_verify_command.py, and test_runner_and_guard
@pytest.mark.parametrize(
    ("python", "verdict"),
    [
        *((python, "verified") for python in RELEASES),
        ("3.5", "failed"),
        ("newest", "failed"),
        ("pypy", "failed"),
    ],
)
def test_a_patch_gets_its_verdict(python: str, verdict: str, make_repo: Callable[..., Path]) -> None:
    image = python_image(python)
    repo = make_repo(BUGGY)
    code, content = VERDICTS[verdict]
    (repo / "calc.py").write_text(content)
    done = run("verify", "--repo", str(repo), "--sandbox", "docker", "--image", image)
    assert (done.returncode, done.stdout.split()[1]) == (code, verdict), done.stderr
    if verdict == "verified":
        assert (NO_HOOKS in done.stdout) == (python in BLIND)
        assert (FEW_EVENTS in done.stdout) == (python in SHORT_SIGHTED)
