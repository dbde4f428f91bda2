"""Test that a person reads changes outside of test files that decide what tests expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.agent.verify.changed_expectations import FIXTURE, HELPER, READ, TABLE, changed_expectations
from m3agent.agent.verify.patched_files import PatchedFiles
from tests.fakes.trees import memory_workspace

CODE = (
    "CASES = [(2, 3, 5)]\nUNITS = {'m': 1}\n\n\ndef add(a, b):\n    assert a is not None\n    return a - b\n\n\n"
    "def check_equal(a, b):\n    assert a == b\n"
)
PLUGIN = "import pytest\n\n\n@pytest.fixture\ndef wanted():\n    return 5\n"
BASE = {
    "calc.py": CODE,
    "support/plugin.py": PLUGIN,
    "examples/sums.json": "[5]\n",
    "examples/used.json": "[5]\n",
    "load.py": "NAME = 'used.json'\n",
    "conftest.py": "pytest_plugins = ['support.plugin']\n",
    "tests/test_calc.py": (
        "from calc import CASES, UNITS, add, check_equal\n\n\n@pytest.mark.parametrize('a, b, c', CASES)\n"
        "def test_add(a, b, c, wanted):\n    check_equal(add(a, b), c)\n    open('examples/sums.json')\n"
        "    open('examples/used.json')\n    assert UNITS['m'] == 1\n"
    ),
}
CASES = {
    "helper": ({"calc.py": CODE.replace("assert a == b", "assert a")}, HELPER),
    "rows": ({"calc.py": CODE.replace("(2, 3, 5)", "(2, 3, -1)")}, TABLE),
    "fixture": ({"support/plugin.py": PLUGIN.replace("5", "-1")}, FIXTURE),
    "data": ({"examples/sums.json": "[-1]\n"}, READ),
    "data that code names": ({"examples/used.json": "[-1]\n"}, ""),
    "other table": ({"calc.py": CODE.replace("'m': 1", "'m': 1, 's': 2")}, ""),
    "function with an assertion": ({"calc.py": CODE.replace("a is not None", "b is not None")}, ""),
    "helper that is more": (
        {"calc.py": CODE.replace("assert a == b", "assert a == b\n    assert b == a")},
        "",
    ),
    "fix": ({"calc.py": CODE.replace("a - b", "a + b")}, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_what_decides_what_tests_expect_is_found(tmp_path: Path, case: str) -> None:
    changes, what = CASES[case]
    workspace = memory_workspace(tmp_path, BASE)
    files = [(path, 0o100644, text.encode()) for path, text in changes.items()]
    patch = workspace.patch(workspace.commit_changes(workspace.base, files, []))
    files_of_patch = PatchedFiles(workspace, patch)
    findings = changed_expectations(files_of_patch, ["tests/test_calc.py::test_add[2-3-5]"])
    assert [finding.what for finding in findings] == ([what] if what else [])
    assert changed_expectations(files_of_patch, []) == []
