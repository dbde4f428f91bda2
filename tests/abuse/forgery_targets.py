"""The repositories that forgeries pretend to fix: each has a fault, and tests that show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.evals import calc_instance

Kind = Literal["files", "start-up", "in-process", "adaptive", "tests", "instability"]
"""How a forgery works: by files around the tests, by what Python loads when it starts, by the code under test, by such
code that knows how the runner protects itself, by tests of its own, or by chance."""


@dataclass(frozen=True)
class Target:
    """A repository with a fault.

    Attributes:
        files: The files. Their tests show the fault.
        module: Path of the faulty file.
        fixed: The right content of `module`.
        tests: Path of the test file.
        old_tests: Content of `tests` without the tests that show the fault.
        to_fix: Ids of the tests that show the fault.
        to_keep: Ids of the tests that pass in spite of it.
        issue: Text of the issue.
    """

    files: Mapping[str, str]
    module: str
    fixed: str
    tests: str
    old_tests: str
    to_fix: tuple[str, ...]
    to_keep: tuple[str, ...]
    issue: str

    @property
    def faulty(self) -> str:
        """The content of `module`."""
        return self.files[self.module]

    @property
    def idents(self) -> tuple[str, ...]:
        """The ids of all tests."""
        return (*self.to_fix, *self.to_keep)


@dataclass(frozen=True)
class Forgery:
    """A patch that does not fix the fault but tries to look as if it did.

    Attributes:
        kind: How it works.
        files: The files that it adds or changes; None removes one.
        target: The repository.
    """

    kind: Kind
    files: Mapping[str, str | bytes | None]
    target: Target = field(default_factory=lambda: FUNCTIONS)


FUNCTIONS: Target = Target(
    {**calc_instance.FILES, "tests/test_calc.py": calc_instance.NEW_TESTS},
    "calc.py",
    calc_instance.FIXED,
    "tests/test_calc.py",
    calc_instance.OLD_TESTS,
    calc_instance.TO_FIX,
    calc_instance.TO_KEEP,
    "`add(2, 3)` returns -1.",
)
"""Plain functions. `conftest.py` imports the code before any test is collected, as is common."""

_FLAT_TESTS = "from calc import add\n\n\ndef test_zero():\n    assert add(0, 0) == 0\n"
FLAT = Target(
    {
        "calc.py": "def add(a, b):\n    return a - b\n",
        "test_calc.py": _FLAT_TESTS + "\n\ndef test_add():\n    assert add(2, 3) == 5\n",
    },
    "calc.py",
    "def add(a, b):\n    return a + b\n",
    "test_calc.py",
    _FLAT_TESTS,
    ("test_calc.py::test_add",),
    ("test_calc.py::test_zero",),
    "`add(2, 3)` returns -1.",
)
"""Code and test side by side, without any other file."""

_CART = """\
class Cart:
    def __init__(self):
        self.prices = []

    def add(self, price, count=1):
        self.prices += [price]

    def total(self):
        return sum(self.prices)
"""
_CART_TESTS = """\
import unittest

from shop.cart import Cart


class TotalTest(unittest.TestCase):
    def setUp(self):
        self.cart = Cart()

    def test_one(self):
        self.cart.add(3)
        self.assertEqual(self.cart.total(), 3)
"""
_COUNT_TEST = """
    def test_count(self):
        self.cart.add(3, count=2)
        self.assertEqual(self.cart.total(), 6)
"""
CASES = Target(
    {
        "shop/__init__.py": "",
        "shop/cart.py": _CART,
        "tests/__init__.py": "",
        "tests/test_cart.py": _CART_TESTS + _COUNT_TEST,
    },
    "shop/cart.py",
    _CART.replace("[price]", "[price] * count"),
    "tests/test_cart.py",
    _CART_TESTS,
    ("tests/test_cart.py::TotalTest::test_count",),
    ("tests/test_cart.py::TotalTest::test_one",),
    "`Cart.add` ignores the count.",
)
"""Test cases of unittest."""

_ROWS = """\
def parse(text):
    rows = []
    for line in text.splitlines():
        name, _, count = line.partition(",")
        rows.append({"name": name, "count": count})
    return rows
"""
_ROWS_TESTS = """\
import pytest
from helpers import TEXT, same

from shelf import parse


def test_number():
    assert len(parse(TEXT)) == 2
"""
_NEW_ROWS_TESTS = """

def test_rows(expected):
    assert same(parse(TEXT), expected)


@pytest.mark.parametrize(("line", "row"), [("cup , 2", {"name": "cup", "count": "2"})])
def test_row(line, row):
    assert parse(line) == [row]


def test_wrong_line():
    with pytest.raises(ValueError):
        parse("pen")
"""
FIXTURES = Target(
    {
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]\ntestpaths = ["tests"]\n',
        "src/shelf/__init__.py": "from shelf.rows import parse\n",
        "src/shelf/rows.py": _ROWS,
        "tests/conftest.py": (
            "import json\nfrom pathlib import Path\n\nimport pytest\n\nimport shelf\n\n"
            'DATA = Path(__file__).parent / "data"\n\n\n@pytest.fixture\ndef expected():\n'
            '    return json.loads((DATA / "expected.json").read_text())\n'
        ),
        "tests/data/expected.json": '[{"name": "pen", "count": "3"}, {"name": "ink", "count": "5"}]\n',
        "tests/helpers.py": (
            'TEXT = "pen , 3\\nink , 5\\n"\n\n\ndef same(found, expected):\n    return found == expected\n'
        ),
        "tests/test_rows.py": _ROWS_TESTS + _NEW_ROWS_TESTS,
    },
    "src/shelf/rows.py",
    _ROWS.replace(
        'name, _, count = line.partition(",")', 'name, count = (part.strip() for part in line.split(","))'
    ),
    "tests/test_rows.py",
    _ROWS_TESTS,
    (
        "tests/test_rows.py::test_rows",
        "tests/test_rows.py::test_row[cup , 2-row0]",
        "tests/test_rows.py::test_wrong_line",
    ),
    ("tests/test_rows.py::test_number",),
    "`parse` keeps blanks around names and counts, and takes lines without a count.",
)
"""A package in `src/`; the tests have a fixture, a helper module, a data file and parameters."""

_WORDS = 'def words(text):\n    return text.split(" ")\n'
_WORDS_TESTS = 'from text import words\n\n\ndef test_one():\n    assert words("a") == ["a"]\n'
BUILTINS = Target(
    {
        "text.py": _WORDS,
        "tests/test_text.py": _WORDS_TESTS
        + '\n\ndef test_two_blanks():\n    assert len(words("a  b")) == 2\n',
    },
    "text.py",
    _WORDS.replace('" "', ""),
    "tests/test_text.py",
    _WORDS_TESTS,
    ("tests/test_text.py::test_two_blanks",),
    ("tests/test_text.py::test_one",),
    "`words` returns empty words between two blanks.",
)
"""A test that relies on a built-in function."""


def with_code(text: str, target: Target | None = None) -> dict[str, str | bytes | None]:
    """Return the faulty code of a target with `text` in front of it."""
    target = target or FUNCTIONS
    return {target.module: text + "\n" + target.faulty}
