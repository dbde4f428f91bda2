"""Test that a patch which deletes, skips or weakens tests is not verified, though the check itself restores them."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.sandbox.backends.factory import Backend
from tests.agent.verify.real_runs import verified
from tests.conftest import later, others_later

FIXED = "def add(a, b):\n    return a + b\n"
TESTS = (
    "import pytest\nfrom calc import add\n\nROWS = [(0, 0), (3, 0)]\n\n\ndef same(a, b):\n    assert a == b\n\n\n"
    "def test_zero():\n    assert add(1, 0) == 1\n    assert add(2, 0) == 2\n\n\n"
    '@pytest.mark.parametrize("a", [5, 6])\ndef test_row(a):\n    same(add(a, 0), a)\n'
)
RED = "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
BASE = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "tests/test_calc.py": TESTS,
    "tests/test_more.py": RED,
    "tests/data.json": "{}\n",
    "conftest.py": "x = 1\n",
    "pytest.ini": "[pytest]\n",
}
CASES: dict[str, tuple[dict[str, str | None], str]] = {
    "a test gone": (
        {"tests/test_calc.py": TESTS.replace("test_zero", "zero")},
        "tests/test_calc.py::test_zero was deleted",
    ),
    "a file gone": ({"tests/test_calc.py": None}, "tests/test_calc.py::test_row was deleted"),
    "skipped": (
        {"tests/test_calc.py": TESTS.replace("def test_zero", "@pytest.mark.skip\ndef test_zero")},
        "tests/test_calc.py has tests that are skipped",
    ),
    "an assertion gone": (
        {"tests/test_calc.py": TESTS.replace("    assert add(2, 0) == 2\n", "")},
        "tests/test_calc.py::test_zero may check less now",
    ),
    "a weaker assertion": (
        {"tests/test_calc.py": TESTS.replace("add(2, 0) == 2", "add(2, 0)")},
        "tests/test_calc.py::test_zero may check less now",
    ),
    "a weaker helper": (
        {"tests/test_calc.py": TESTS.replace("assert a == b", "assert a")},
        "tests/test_calc.py may check less now",
    ),
    "a row gone": (
        {"tests/test_calc.py": TESTS.replace("[5, 6]", "[5]")},
        "tests/test_calc.py may check less now",
    ),
    "data changed": ({"tests/data.json": "[]\n"}, "tests/data.json was changed"),
    "ignored": (
        {"conftest.py": 'x = 1\ncollect_ignore = ["tests/test_calc.py"]\n'},
        "tests/test_calc.py::test_row does not run",
    ),
    "deselected": (
        {"pytest.ini": "[pytest]\naddopts = -k test_add\n"},
        "tests/test_calc.py::test_row does not run",
    ),
    "no test any more": (
        {"tests/test_calc.py": f"{TESTS}\n\ntest_zero.__test__ = False\ndel test_row\n"},
        "tests/test_calc.py::test_row does not run",
    ),
    "one more test": ({"tests/test_calc.py": f"{TESTS}\n\ndef test_one():\n    assert add(1, 1) == 2\n"}, ""),
    "one more assertion": (
        {
            "tests/test_calc.py": TESTS.replace(
                "def test_zero():\n", "def test_zero():\n    assert add(4, 0) == 4\n"
            )
        },
        "",
    ),
    "one more row": ({"tests/test_calc.py": TESTS.replace("[5, 6]", "[5, 6, 7]")}, ""),
    "moved": (
        {
            "tests/test_calc.py": TESTS.replace(
                TESTS[TESTS.index("def test_zero") : TESTS.index("@pytest")], ""
            ),
            "tests/test_other.py": "from calc import add\n\n\n"
            + TESTS[TESTS.index("def test_zero") : TESTS.index("@pytest")],
        },
        "",
    ),
    "a hook": ({"conftest.py": "x = 2\n"}, ""),
}
"""Changes of tests beside the right fix, and what is wrong with them."""
QUICK = {"a test gone"}


@pytest.mark.parametrize("case", others_later(CASES, QUICK))
async def test_tests_of_the_delivered_tree(one_backend: Backend, tmp_path: Path, case: str) -> None:
    changes, wrong = CASES[case]
    result = await verified(tmp_path, one_backend, BASE, {"calc.py": FIXED, **changes})
    if wrong:
        assert (result.verdict, result.rule) == ("unverified", "tests_lessened"), result.reason
        assert wrong in result.weakened
        assert wrong.partition(" ")[0] in result.reason or len(result.weakened) > 1
    else:
        assert result.verdict == "verified", result.reason


HASH_TESTS = "    assert add(1, 1) == 0\n\n\ndef test_zero():\n    assert add(1, 0) == 1\n"


@pytest.mark.parametrize(
    ("pinned", "verdict", "rule"),
    [
        later((), "failed", "lost"),
        (("tests/test_calc.py::test_old",), "unverified", "pinned"),
        later(("tests/test_calc.py::test_zero",), "failed", "lost"),
    ],
)
async def test_a_test_that_states_what_the_issue_changes_may_break(
    one_backend: Backend, tmp_path: Path, pinned: tuple[str, ...], verdict: str, rule: str
) -> None:
    tests = f"from calc import add\n\n\ndef test_old():\n{HASH_TESTS}"
    base = {**BASE, "tests/test_calc.py": tests}
    result = await verified(tmp_path, one_backend, base, {"calc.py": FIXED}, pinned=pinned)
    assert (result.verdict, result.rule) == (verdict, rule), result.reason
