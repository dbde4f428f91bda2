"""A small instance: a function with a fault and tests that show it. `diff` makes patches from files."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from m3agent.evals.data.instance import Answer, Instance, Source, Task
from tests.agent.repositories import write_files

CODE = "def add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return a * 2\n"
FIXED = CODE.replace("a - b", "a + b")
OLD_TESTS = "from calc import add, twice\n\n\ndef test_twice():\n    assert twice(4) == 8\n"
NEW_TESTS = OLD_TESTS + (
    "\n\ndef test_add():\n    assert add(2, 3) == 5\n\n\nclass TestAdd:\n    def test_zero(self):\n"
    "        assert add(0, 7) == 7\n"
)
FILES = {
    "calc.py": CODE,
    "tests/test_calc.py": OLD_TESTS,
    "tests/conftest.py": "import calc\n",
    "setup.cfg": "[tool:pytest]\naddopts = -q\n",
}
TO_FIX = ("tests/test_calc.py::test_add", "tests/test_calc.py::TestAdd::test_zero")
TO_KEEP = ("tests/test_calc.py::test_twice",)


def diff(folder: Path, before: Mapping[str, str | bytes], after: Mapping[str, str | bytes | None]) -> bytes:
    """Return the patch that turns the files `before` into `after`; None removes a file."""

    def git(*args: str) -> bytes:
        return subprocess.run(["git", *args], cwd=folder, check=True, capture_output=True).stdout

    folder.mkdir(parents=True)
    git("init", "-q")
    write_files(folder, before)
    git("add", "-A", "-f")
    # fixtures of modules and sessions run before each test gets a git identity
    git("-c", "user.name=Tester", "-c", "user.email=tester@example.invalid", "commit", "-q", "-m", "before")
    for name, content in after.items():
        if content is None:
            (folder / name).unlink()
        else:
            write_files(folder, {name: content})
    git("add", "-A", "-f")
    return git("diff", "--cached", "--binary")


def small_instance(folder: Path, files: Mapping[str, str] = FILES, **answer: object) -> Instance:
    """Return the instance, with its code in a folder below `folder`."""
    write_files(folder / "code", files)
    given: dict[str, object] = {
        "patch": diff(folder / "reference", files, {"calc.py": FIXED}).decode(),
        "test_patch": diff(folder / "tests", files, {"tests/test_calc.py": NEW_TESTS}).decode(),
        "fail_to_pass": TO_FIX,
        "pass_to_pass": TO_KEEP,
        "test_command": "pytest -rA tests/test_calc.py",
        "timeout": 60.0,
    }
    task = Task(
        instance_id="small__calc-1",
        repo="small/calc",
        statement="add is wrong",
        source=Source(kind="folder", location=str(folder / "code")),
    )
    return Instance(task=task, answer=Answer.model_validate(given | answer))
