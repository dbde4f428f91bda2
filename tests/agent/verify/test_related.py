"""Which red tests an issue is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.agent.verify.related import related_tests
from tests.agent.verify.test_verify import patched

CALC = """\
from calc import add as plus, total
import shop.cart

def test_sum(): assert plus(2, 3) == 5
def test_all(): assert total([1]) == shop.cart.price("a_b")
class TestMore:
    def test_other(self): assert local(1)
"""
TESTS = {"tests/test_calc.py": CALC, "tests/test_broken.py": "def test_bad(:\n    price_of(x)\n"}
IDS = {
    "tests/test_calc.py::test_sum",
    "tests/test_calc.py::test_all[1]",
    "tests/test_calc.py::TestMore::test_other",
    "tests/test_broken.py",
}


@pytest.mark.parametrize(
    ("issue", "about"),
    [
        ("", ""),
        ("?", "sum all other broken"),
        ("total is wrong for empty lists", "all"),  # any word for what the test imports
        ("plus is wrong", "sum"),
        ("local is wrong", ""),  # a word of the language, perhaps
        ("`local` is wrong", "other"),
        ("local(1) raises", "other"),
        ("shop.cart fails", "all"),
        ("price_of fails", "broken"),
        ("the test test_sum fails", "sum"),
        ("see test_calc.py", "sum all other"),
        ("The weather is bad", ""),
    ],
)
def test_the_tests_that_an_issue_is_about(tmp_path: Path, issue: str, about: str) -> None:
    workspace, patch = patched(tmp_path, TESTS, {})
    found = related_tests(workspace, patch.base, issue, IDS)
    assert found == {
        ident
        for ident in IDS
        for word in about.split()
        if word in ident.rpartition("/")[2].replace("calc.py::", "")
    }
