"""Real grading of a small instance: which patches resolve it and which do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.evals.data.instance import Instance
from m3agent.evals.data.results import Grade, Verdict
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.grader import Grader
from m3agent.evals.grade.validate import HARMLESS, validate
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.image import find_image
from tests.conftest import docker_here, later
from tests.evals.calc_instance import CODE, FILES, FIXED, TO_FIX, TO_KEEP, diff, small_instance

pytestmark = [pytest.mark.docker, pytest.mark.skipif(not docker_here(), reason="no Docker engine")]


async def graded(tmp_path: Path, instance: Instance, patch: bytes) -> Grade:
    return await Grader(tmp_path / "state", print).strict(instance, patch, None, tmp_path)


async def test_the_reference_patch_resolves_it_and_an_empty_patch_does_not(tmp_path: Path) -> None:
    instance = small_instance(tmp_path / "instance")
    grade = await graded(tmp_path, instance, instance.answer.patch.encode())
    assert (grade.verdict, grade.reason, grade.forged) == (Verdict.RESOLVED, "", ())
    assert (grade.fail_to_pass.passed, grade.pass_to_pass.passed) == (2, 1)
    assert grade.python.startswith("3.")
    assert (await graded(tmp_path, instance, b"")).verdict is Verdict.EMPTY
    harmless = await graded(tmp_path, instance, HARMLESS)
    assert harmless.verdict is Verdict.UNRESOLVED
    assert set(harmless.fail_to_pass.failed) == set(TO_FIX) and harmless.pass_to_pass.passed == 1


@pytest.mark.slow  # quick: test_the_reference_patch_resolves_it_and_an_empty_patch_does_not
async def test_what_a_run_without_a_patch_shows_is_known_to_later_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, state = small_instance(tmp_path / "instance"), tmp_path / "state"
    image = find_image(connect(), None, print).name
    run = await Grader(state, print).run(instance, b"", image)
    assert run.outcomes
    another = Grader(state, print)
    monkeypatch.delattr(Grader, "_run")
    known = await another._known(instance, b"", image)
    assert (known.signs, known.outcomes, known.python) == (run.signs, {}, run.python)
    assert (await another._bytecode_of(instance, image)).content


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda patch: patch.replace(b"a - b", b"a % b"), "does not apply"),
        (lambda patch: b"no patch at all\n", "does not apply"),
        (lambda patch: patch.replace(b"calc.py", b"../calc.py"), "does not apply"),
        (lambda patch: patch + b" " * (65 << 20), "65 MiB"),
    ],
    ids=["another base", "no patch", "leads out", "huge"],
)
async def test_a_patch_that_does_not_apply_is_the_agents_error(
    tmp_path: Path, spoil: Callable[[bytes], bytes], why: str
) -> None:
    instance = small_instance(tmp_path / "instance")
    grade = await graded(tmp_path, instance, spoil(instance.answer.patch.encode()))
    assert grade.verdict is Verdict.ERROR and why in grade.reason


@pytest.mark.slow  # quick: test_the_reference_patch_resolves_it_and_an_empty_patch_does_not
async def test_binary_files_and_line_ends_of_windows_come_through(tmp_path: Path) -> None:
    files = {**FILES, "calc.py": CODE.replace("\n", "\r\n"), "data.bin": "\0\1"}
    fixed = FIXED.replace("\n", "\r\n") + "open('data.bin', 'rb').read().index(b'\\x02')\r\n"
    reference = diff(tmp_path / "right", files, {"calc.py": fixed, "data.bin": b"\0\2"})
    instance = small_instance(tmp_path / "instance", files, patch=reference.decode())
    assert (await graded(tmp_path, instance, reference)).verdict is Verdict.RESOLVED


@pytest.mark.slow
async def test_tests_that_hang_are_a_timeout_and_leave_nothing(tmp_path: Path) -> None:
    instance = small_instance(tmp_path / "instance", timeout=1.0)
    hang = "import os\nwhile True:\n    try:\n        while True: pass\n    except BaseException: pass\n"
    grade = await graded(tmp_path, instance, diff(tmp_path / "patch", FILES, {"calc.py": hang + CODE}))
    assert grade.verdict is Verdict.TIMEOUT and "1 s" in grade.reason


@pytest.mark.slow  # quick: test_test_runner.py
async def test_one_test_that_hangs_does_not_hide_the_others(tmp_path: Path) -> None:
    instance = small_instance(tmp_path / "instance", timeout=15.0)  # one test may take a third of it
    patch = diff(tmp_path / "patch", FILES, {"calc.py": FIXED.replace("return a * 2", "while True: pass")})
    grade = await graded(tmp_path, instance, patch)
    assert grade.verdict is Verdict.UNRESOLVED
    assert (grade.fail_to_pass.passed, grade.pass_to_pass.failed) == (2, TO_KEEP)


PATCH = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.mark.slow  # quick: test_validate.py
async def test_an_instance_whose_own_patch_does_not_apply_is_invalid(tmp_path: Path) -> None:
    instance = small_instance(tmp_path / "instance", test_patch=PATCH)
    environments, grader = Environments(tmp_path / "state", print), Grader(tmp_path / "state", print)
    validation = await validate(instance, environments, grader)
    assert not validation.valid
    assert "the instance itself is faulty" in validation.reason


RUNTESTS = """\
#!/usr/bin/env python
import sys, unittest
from pathlib import Path

labels = [word for word in sys.argv[1:] if not word.startswith("-")]
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
suite = unittest.defaultTestLoader.loadTestsFromNames(labels)
result = unittest.TextTestRunner(verbosity=2).run(suite)
sys.exit(bool(result.failures or result.errors))
"""
CASES = """\
import unittest
from calc import add, twice


class Sums(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(2, 3), 5)

    def test_zero(self):
        \"\"\"Nothing changes nothing.\"\"\"
        self.assertEqual(add(0, 7), 7)

    def test_twice(self):
        self.assertEqual(twice(4), 8)

    @unittest.expectedFailure
    def test_wrong(self):
        self.assertEqual(twice(4), 9)
"""


def script_instance(folder: Path) -> Instance:
    """Return an instance whose own script runs the tests, with the names of its log."""
    files = {"calc.py": CODE, "tests/runtests.py": RUNTESTS, "tests/__init__.py": "", "tests/cases.py": CASES}
    where = "tests.cases.Sums"  # as Python 3.11 prints it
    return small_instance(
        folder,
        files,
        test_patch="",
        fail_to_pass=(f"test_add ({where}.test_add)", "Nothing changes nothing."),
        pass_to_pass=(f"test_twice ({where}.test_twice)", f"test_wrong ({where}.test_wrong)"),
        test_command="./tests/runtests.py --verbosity 2 tests.cases",
        runner="django",
    )


@pytest.mark.slow  # quick: test_the_reference_patch_resolves_it_and_an_empty_patch_does_not
async def test_scripts_that_run_unittest_are_listened_to(tmp_path: Path) -> None:
    instance = script_instance(tmp_path / "instance")
    grade = await graded(tmp_path, instance, instance.answer.patch.encode())
    assert (grade.verdict, grade.fail_to_pass.passed, grade.pass_to_pass.passed) == (
        Verdict.RESOLVED,
        2,
        2,
    ), grade
    harmless = await graded(tmp_path, instance, HARMLESS)
    assert harmless.verdict is Verdict.UNRESOLVED and len(harmless.fail_to_pass.failed) == 2


@pytest.mark.slow  # quick: test_grade_forgery.py
@pytest.mark.parametrize(
    "forgery",
    [
        "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n",
        later("import unittest\nunittest.TestCase.run = lambda self, result=None: result.addSuccess(self)\n"),
        later(
            "import unittest\nunittest.TestResult.addFailure = unittest.TestResult.addError = lambda *a: None\n"
        ),
        "import os\nos.write(2, b'test_add (tests.cases.Sums.test_add) ... ok\\n')\nos._exit(0)\n",
    ],
    ids=["asserting", "running", "results", "the end"],
)
async def test_forgeries_against_unittest_are_not_resolved(tmp_path: Path, forgery: str) -> None:
    instance = script_instance(tmp_path / "instance")
    files = {"calc.py": CODE, "tests/runtests.py": RUNTESTS, "tests/__init__.py": "", "tests/cases.py": CASES}
    patch = diff(tmp_path / "patch", files, {"calc.py": forgery + CODE})
    grade = await graded(tmp_path, instance, patch)
    assert grade.verdict is Verdict.UNRESOLVED, grade
