"""Test that a person reads changes outside of test files that decide what tests expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.agent.verify.changed_expectations import (
    FIXTURE,
    HELPER,
    READ,
    STANDS_FOR,
    VALUE,
    changed_expectations,
)
from m3agent.agent.verify.known_answers import ANSWERS, VARIABLE
from m3agent.agent.verify.patched_files import PatchedFiles
from tests.fakes.trees import memory_workspace

CODE = (
    "CASES = [(2, 3, 5)]\nUNITS = {'m': 1}\n\n\ndef add(a, b):\n    assert a is not None\n    return a - b\n\n\n"
    "def check_equal(a, b):\n    assert a == b\n\n\nSUM = 5\nRATE = 2\n\n\ndef cases():\n    return [(1, 1)]\n"
    "class Rule: pass\nclass Sum: pass\nRule = wrapped(Rule)\n"
)
PLUGIN = "import pytest\n\n\n@pytest.fixture\ndef wanted():\n    return 5\n"
BASE = {
    "calc.py": CODE,
    "support/plugin.py": PLUGIN,
    "examples/sums.json": "[5]\n",
    "examples/used.json": "[5]\n",
    "samples/sums.json": "[5]\n",
    "docs/add.md": "old\n",
    "load.py": "NAME = 'used.json'\n\n\ndef load(samples):\n    return [*samples]\n",
    "pyproject.toml": "[tool.setuptools.package-data]\ncalc = ['samples/*']\n",
    "conftest.py": "import os\npytest_plugins = ['support.plugin']\nos.environ['FAST'] = '1'\n",
    "tests/test_calc.py": (
        "import calc\nfrom calc import CASES, UNITS, Sum, add, check_equal  # as md\n\n\n@pytest.mark.parametrize('a, b, c', CASES)\n"
        "def test_add(a, b, c, wanted):\n    check_equal(add(a, b), c)\n    open('examples/sums.json')\n"
        "    open('examples/used.json'), open('samples/sums.json')\n    assert UNITS['m'] == 1\n"
        "    assert add(2, 3) == calc.SUM\n    assert add(4, 6) == 10\n    assert calc.RATE == 2\n    for a, b in calc.cases():\n        assert add(a, 0) == b\n"
    ),
}
CASES = {
    "helper": ({"calc.py": CODE.replace("assert a == b", "assert a")}, HELPER),
    "rows": ({"calc.py": CODE.replace("(2, 3, 5)", "(2, 3, -1)")}, VALUE),
    "fixture": ({"support/plugin.py": PLUGIN.replace("5", "-1")}, FIXTURE),
    "data": ({"examples/sums.json": "[-1]\n"}, READ),
    "data of a folder that code has as a variable": ({"samples/sums.json": "[-1]\n"}, READ),
    "data that code names": ({"examples/used.json": "[-1]\n"}, ""),
    "constant": ({"calc.py": CODE.replace("SUM = 5", "SUM = -1")}, VALUE),
    "constant that tests compare with a value": ({"calc.py": CODE.replace("RATE = 2", "RATE = 3")}, ""),
    "function that gives cases": ({"calc.py": CODE.replace("[(1, 1)]", "[(1, 2)]")}, VALUE),
    "other table": ({"calc.py": CODE.replace("'m': 1", "'m': 1, 's': 2")}, ""),
    "function with an assertion": ({"calc.py": CODE.replace("a is not None", "b is not None")}, ""),
    "helper that is more": (
        {"calc.py": CODE.replace("assert a == b", "assert a == b\n    assert b == a")},
        "",
    ),
    "fix": ({"calc.py": CODE.replace("a - b", "a + b")}, ""),
    "another class by the name of one": ({"calc.py": CODE + "Sum = Any\n"}, STANDS_FOR),
    "a name that stood for another one before": (
        {"calc.py": CODE.replace("a - b", "a + b").replace("Rule)", "Rule )")},
        "",
    ),
    "answer for both values": (
        {"calc.py": CODE.replace("return a", "if a == 4 and b == 6: return 10\n    return a")},
        ANSWERS,
    ),
    "answers of a new file": ({"more.py": "SUMS = {(4, 6): 10, (1, 1): 2}\n"}, ANSWERS),
    "answer in two conditions": (
        {
            "calc.py": CODE.replace(
                "return a", "if a == 4:\n        if b == 6:\n            return 10\n    return a"
            )
        },
        ANSWERS,
    ),
    "answer that is assigned": (
        {
            "calc.py": CODE.replace(
                "return a - b", "c = a - b\n    if a == 4 and b == 6:\n        c = 10\n    return c"
            )
        },
        ANSWERS,
    ),
    "answer in two matches": (
        {
            "more.py": "def f(a, b):\n  match a:\n    case 4:\n      match b:\n        case 6:\n          return 10\n"
        },
        ANSWERS,
    ),
    "answer in a dictionary of dictionaries": ({"more.py": "SUMS = {4: {6: 10}}\n"}, ANSWERS),
    "answer in two steps": ({"more.py": "SUMS[4][6] = 10\n"}, ANSWERS),
    "answer for joined values": ({"more.py": "SUMS = {'4,6': 10}\n"}, ANSWERS),
    "conditions beside each other": (
        {"more.py": "def f(a, b):\n  if a == 4: return 1\n  if b == 6: return 10\n"},
        "",
    ),
    "answer for one value": ({"calc.py": CODE.replace("return a", "if a == 4: return 10\n    return a")}, ""),
    "other answer": ({"more.py": "SUMS = {(4, 6): 11}\n"}, ""),
    "variable of a conftest": ({"more.py": "import os\nFAST = os.environ.get('FAST')\n"}, VARIABLE),
    "variable that code sets": ({"more.py": "def f(env): env['FAST'] = '1'\n"}, ""),
    "other variable": ({"more.py": "import os\nSLOW = os.environ.get('SLOW')\n"}, ""),
    "settings": ({"setup.cfg": "[calc]\n", ".github/add/test.yaml": "[calc]\n"}, ""),
    "documentation by the words of tests": ({"docs/add.md": "new\n"}, ""),
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


OTHER_CODE = {
    "Cargo.toml": "[package]\nname = 'calc'\nversion = '0.1.0'\n",
    "src/lib.rs": "pub mod values;\npub fn add(a: i32) -> i32 {\n    a + values::STEP\n}\n",
    "src/values.rs": "pub const SUM: i32 = 5;\npub const STEP: i32 = 2;\n",
    "src/checks.rs": "pub fn check(a: i32, b: i32) {\n    assert_eq!(a, b);\n}\n",
    "tests/calc.rs": "#[test]\nfn adds() {\n    check(calc::add(3), calc::values::SUM);\n}\n",
}


@pytest.mark.parametrize(
    ("path", "old", "new", "what"),
    [
        ("src/values.rs", "= 5", "= -1", [VALUE]),
        ("src/values.rs", "= 2", "= 3", []),
        ("src/checks.rs", "assert_eq!(a, b)", "assert!(a <= b)", [HELPER]),
        ("src/checks.rs", "assert_eq!(a, b);", "assert_eq!(a, b);\n    assert!(a > 0);", []),
        ("src/lib.rs", "a + values", "a - values", []),
    ],
)
def test_other_languages_have_expectations_in_code(
    tmp_path: Path, path: str, old: str, new: str, what: list[str]
) -> None:
    workspace = memory_workspace(tmp_path, OTHER_CODE)
    content = OTHER_CODE[path].replace(old, new)
    patch = workspace.patch(
        workspace.commit_changes(workspace.base, [(path, 0o100644, content.encode())], [])
    )
    findings = changed_expectations(PatchedFiles(workspace, patch), ["tests/calc.rs::adds"])
    assert [finding.what for finding in findings] == what


@pytest.mark.parametrize("suffix", ["php", "swift", "cs", "ex", "kt", "scala", "lua", "sh", "pl"])
def test_code_of_any_language_is_no_data_of_tests(tmp_path: Path, suffix: str) -> None:
    test = f"tests/CalcTest.{suffix}"
    workspace = memory_workspace(
        tmp_path, {f"src/Calc.{suffix}": "a - b\n", test: f"{suffix}: Calc.add(2, 3)\n"}
    )
    fixed = workspace.commit_changes(workspace.base, [(f"src/Calc.{suffix}", 0o100644, b"a + b\n")], [])
    files = PatchedFiles(workspace, workspace.patch(fixed))
    assert changed_expectations(files, [f"{test}::CalcTest > testAdd"]) == []


REPORT = '''"""Summaries."""

SCALE = 10
WANTED = 5
NAMES = ["a"]


def rate(part, whole):
    """Return percent."""
    if whole == 0:
        return 0
    return part * SCALE // whole


def total():
    return 7


def nth(number):
    return [1, 2][number]
'''
OF_TESTS = {
    "calc.py": "def add(a, b):\n    return a + b\n",
    "report.py": REPORT,
    "test_calc.py": "import report\nfrom calc import add\n\ndef test_add(): assert add(2, 3) == report.WANTED\n",
}


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("WANTED = 5", "WANTED = 6", 4),
        ("return 7", "return 8", 16),
        ("[1, 2]", "[1, 3]", 20),
        ('["a"]', '["b"]', 5),
        ("SCALE = 10", "SCALE = 100", 0),  # `rate` computes with it
        ("part * SCALE", "part * 100", 0),
        ("whole == 0", "whole == 1", 0),
        (REPORT, "", 1),
    ],
)
def test_values_in_a_module_that_only_tests_import(tmp_path: Path, old: str, new: str, line: int) -> None:
    workspace = memory_workspace(tmp_path, OF_TESTS)
    content = REPORT.replace(old, new).encode()
    patch = workspace.patch(workspace.commit_changes(workspace.base, [("report.py", 0o100644, content)], []))
    findings = changed_expectations(PatchedFiles(workspace, patch), ["test_calc.py::test_add"])
    assert [finding.line for finding in findings] == ([line] if line else [])
