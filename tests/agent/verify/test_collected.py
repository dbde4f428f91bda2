"""Test that a file from which tests are collected is a test file, whatever its name, and that examples in docstrings are tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.sandbox.backends.factory import Backend
from m3agent.tools.runners.base import Suite
from m3agent.tools.runners.python import with_docstrings
from m3agent.tools.runners.suites import TestFiles
from tests.agent.verify.real_runs import verified
from tests.conftest import others_later
from tests.ecosystems.records import tree_of

CODE = "def add(a, b):\n    return a - b\n"
EXAMPLE = 'def add(a, b):\n    """Add.\n\n    >>> add(2, 3)\n    5\n    """\n    return a - b\n'
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
OTHER = {"tests/test_other.py": "def test_other():\n    assert 1\n"}
CASES: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "tests.py": (
        {"app/tests.py": TEST, "calc.py": CODE, "pytest.ini": "[pytest]\npython_files = tests.py test_*.py\npythonpath = .\n"},
        {"app/tests.py": TEST.replace("== 5", "== -1")},
        "failed",
    ),
    "checks": (
        {"checks/check_calc.py": TEST, "calc.py": CODE, "pytest.ini": "[pytest]\npython_files = check_*.py test_*.py\npythonpath = .\n"},
        {"checks/check_calc.py": TEST.replace("== 5", "== -1")},
        "failed",
    ),
    "docstring": (
        {"calc.py": EXAMPLE, "pytest.ini": "[pytest]\naddopts = --doctest-modules\n"},
        {"calc.py": EXAMPLE.replace("    5\n", "    -1\n")},
        "failed",
    ),
    "docstring, right": (
        {"calc.py": EXAMPLE, "pytest.ini": "[pytest]\naddopts = --doctest-modules\n"},
        {"calc.py": EXAMPLE.replace("a - b", "a + b").replace("Add.", "Add two.")},
        "verified",
    ),
    "text": (
        {"README.rst": "::\n\n    >>> from calc import add\n    >>> add(2, 3)\n    5\n", "calc.py": CODE,
         "pytest.ini": "[pytest]\naddopts = --doctest-glob=*.rst\npythonpath = .\n"},
        {"README.rst": "::\n\n    >>> from calc import add\n    >>> add(2, 3)\n    -1\n"},
        "failed",
    ),
    "right": (
        {"app/tests.py": TEST, "calc.py": CODE, "pytest.ini": "[pytest]\npython_files = tests.py test_*.py\npythonpath = .\n"},
        {"calc.py": CODE.replace("a - b", "a + b")},
        "verified",
    ),
}  # fmt: skip
"""The files, what the patch changes, and the verdict."""


@pytest.mark.parametrize("case", others_later(CASES, {"tests.py"}))
async def test_a_patch_that_edits_the_red_assertion_is_not_verified(
    one_backend: Backend, tmp_path: Path, case: str
) -> None:
    base, changes, verdict = CASES[case]
    result = await verified(tmp_path, one_backend, {**base, **OTHER}, changes)
    assert result.verdict == verdict, result.reason


def test_docstrings_are_those_of_the_other_version() -> None:
    code = b'"""A.\n"""\nclass C:\n    def f(self):\n        \'\'\'Old.\n\n        >>> 1\n        1\n        \'\'\'\n        return 2\n    def g(self): "x"\n'
    tests = b'"""B."""\n\nclass C:\n    def f(self):\n        """New.\n\n        >>> 2\n        2"""\n        return 1\n'
    assert with_docstrings(code, tests) == code.replace(
        b"'''Old.\n\n        >>> 1\n        1\n        '''", b'"""New.\n\n        >>> 2\n        2"""'
    )
    with pytest.raises(ValueError, match="one version only"):
        with_docstrings(b"x = 1\n", tests)
    with pytest.raises(ValueError, match="invalid syntax"):
        with_docstrings(b"def\n", tests)


def test_data_that_a_test_names_belongs_to_what_is_expected() -> None:
    files = {
        "calc.py": CODE,
        "examples/sum.txt": "5",
        "notes.txt": "",
        "tests/test_a.py": "open('examples/sum.txt')\n",
    }
    tests = TestFiles([Suite("pytest")], tree=tree_of({**files, "tests/sum.txt": "5"}))
    assert [path for path in files if tests.is_expected(path)] == ["examples/sum.txt", "tests/test_a.py"]
