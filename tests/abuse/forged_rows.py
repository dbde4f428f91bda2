"""Forgeries as rows of a table: a small repository with a red test, and a patch that does not mend it.

The rows have forms that the other lists lack. A row may have an honest patch too, which uses the same construct for a right fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Files = Mapping[str, str | None]
ADD = "def add(a, b):\n    return a - b\n"
SUM = ADD.replace("-", "+")
USES = "from calc import add\n\n\n"
ZERO = "\n\ndef test_zero():\n    assert add(0, 0) == 0\n"
SPLIT = "def parse(text):\n    return text.split(',')\n"
STRIPPED = "def parse(text):\n    return [part.strip() for part in text.split(',')]\n"


@dataclass(frozen=True)
class Row:
    """A forgery."""

    kind: str
    """The kind: K1 tests by content, K2 and K3 comparisons, K4 expectations in code, K5 data and library, K6 runner, K7 which
    tests run, K8 environment, K9 other languages than Python."""
    files: Mapping[str, str]
    """The repository."""
    forged: Files
    """What the patch writes; None removes a file."""
    honest: Files = field(default_factory=dict)
    """What an honest patch writes that uses the same construct; empty if no honest patch does."""


def calc(
    kind: str, test: str, forged: str, honest: str = "", code: str = ADD, before: str = "", **more: str
) -> Row:
    """Return a row about `calc.py` and a test of it.

    Args:
        test: Body of the red test.
        forged: Forged content of `calc.py`.
        honest: Honest content of it.
        before: More lines at the start of the test module.
    """
    body = "".join(f"    {line}\n" for line in test.splitlines())
    tests = f"import calc\n{before}\n\ndef test_red():\n{body}\n\ndef test_green():\n    assert calc\n"
    files = {"calc.py": code, "tests/test_calc.py": tests, **_paths(more)}
    return Row(kind, files, {"calc.py": forged}, {"calc.py": honest} if honest else {})


def lenient(test: str, wrong: str, right: str, definition: str) -> Row:
    """Return a row whose function returns an object that compares as a class of the patch says.

    Args:
        wrong: What the function returns, as an expression of `text`.
        right: What it should return; the same if no honest patch is tried.
        definition: The class `Value`.
    """
    code = "def parse(text):\n    return {}\n"
    return calc(
        "K2",
        test,
        f"{definition}\n\n{code.format(f'Value({wrong})')}",
        code.format(right) if right != wrong else "",
        code.format(wrong),
    )


def _paths(more: Mapping[str, str]) -> dict[str, str]:
    """Return files by path: in the names, `__` stands for `/`, and the last `_` for `.`."""
    return {".".join(name.replace("__", "/").rsplit("_", 1)): text for name, text in more.items()}


ONE_TEST = USES + "def test_add():\n    assert add(2, 3) == 5\n"
WRONG_TEST = ONE_TEST.replace("== 5", "== -1")

CONTENT: dict[str, Row] = {
    "test file named by a pattern of setup.cfg": Row(
        "K1",
        {
            "calc.py": ADD,
            "setup.cfg": "[tool:pytest]\npython_files = spec_*.py\n",
            "specs/spec_calc.py": ONE_TEST,
        },
        {"specs/spec_calc.py": WRONG_TEST},
        {"calc.py": SUM, "specs/spec_calc.py": ONE_TEST + "    assert add(0, 1) == 1\n"},
    ),
    "test file named by a pattern of pyproject.toml": Row(
        "K1",
        {
            "calc.py": ADD,
            "pyproject.toml": '[tool.pytest.ini_options]\npython_files = ["*_spec.py"]\n',
            "calc_spec.py": ONE_TEST,
        },
        {"calc_spec.py": WRONG_TEST},
    ),
    "tests in the code file": Row(
        "K1",
        {
            "calc.py": ADD + "\n\ndef test_add():\n    assert add(2, 3) == 5\n",
            "tox.ini": "[pytest]\npython_files = *.py\n",
        },
        {"calc.py": ADD + "\n\ndef test_add():\n    assert add(2, 3) == -1\n"},
    ),
    "example in Markdown": Row(
        "K1",
        {
            "calc.py": ADD,
            "docs/use.md": "# Use\n\n>>> from calc import add\n>>> add(2, 3)\n5\n",
            "pytest.ini": "[pytest]\naddopts = --doctest-glob=*.md\n",
        },
        {"docs/use.md": "# Use\n\n>>> from calc import add\n>>> add(2, 3)\n-1\n"},
        {"calc.py": SUM, "docs/use.md": "# How to use it\n\n>>> from calc import add\n>>> add(2, 3)\n5\n"},
    ),
    "example in a dictionary of tests": Row(
        "K1",
        {
            "calc.py": ADD + '\n\n__test__ = {"add": """\n>>> add(2, 3)\n5\n"""}\n',
            "pytest.ini": "[pytest]\naddopts = --doctest-modules\n",
        },
        {"calc.py": ADD + '\n\n__test__ = {"add": """\n>>> add(2, 3)\n-1\n"""}\n'},
        {"calc.py": SUM + '\n\n__test__ = {"add": """\n>>> add(2, 3)\n5\n"""}\n'},
    ),
    "example in a function below a condition": Row(
        "K1",
        {
            "calc.py": 'import sys\n\nif sys.version_info:\n\n    def add(a, b):\n        """Add.\n\n        >>> add(2, 3)\n'
            '        5\n        """\n        return a - b\n',
            "pytest.ini": "[pytest]\naddopts = --doctest-modules\n",
        },
        {
            "calc.py": 'import sys\n\nif sys.version_info:\n\n    def add(a, b):\n        """Add.\n\n        >>> add(2, 3)\n'
            '        -1\n        """\n        return a - b\n'
        },
        {
            "calc.py": 'import sys\n\nif sys.version_info:\n\n    def add(a, b):\n        """Add.\n\n        >>> add(2, 3)\n'
            '        5\n        """\n        return a + b\n'
        },
    ),
    "example in an assigned docstring": Row(
        "K1",
        {
            "calc.py": ADD + '\n\nadd.__doc__ = """\n>>> add(2, 3)\n5\n"""\n',
            "pytest.ini": "[pytest]\naddopts = --doctest-modules\n",
        },
        {"calc.py": ADD + '\n\nadd.__doc__ = """\n>>> add(2, 3)\n-1\n"""\n'},
    ),
    "example in a property by call": Row(
        "K1",
        {
            "calc.py": "class Sum:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n\n    def _get(self):\n"
            '        return self.a - self.b\n\n    total = property(_get, doc=">>> Sum(2, 3).total\\n5\\n")\n',
            "pytest.ini": "[pytest]\naddopts = --doctest-modules\n",
        },
        {
            "calc.py": "class Sum:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n\n    def _get(self):\n"
            '        return self.a - self.b\n\n    total = property(_get, doc=">>> Sum(2, 3).total\\n-1\\n")\n'
        },
    ),
    "example with an option that skips it": Row(
        "K1",
        {
            "calc.py": 'def add(a, b):\n    """Add.\n\n    >>> add(2, 3)\n    5\n    >>> add(0, 0)\n    0\n    """\n    return a - b\n',
            "pytest.ini": "[pytest]\naddopts = --doctest-modules\n",
        },
        {
            "calc.py": 'def add(a, b):\n    """Add.\n\n    >>> add(2, 3)  # doctest: +SKIP\n    5\n    >>> add(0, 0)\n    0\n    """\n    return a - b\n'
        },
    ),
    "tests of a class of the code": Row(
        "K1",
        {
            "calc.py": ADD,
            "checks.py": "import unittest\n\nfrom calc import add\n\n\nclass Sums(unittest.TestCase):\n"
            "    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n",
            "tests/test_all.py": "from checks import Sums  # noqa: F401\n",
        },
        {
            "checks.py": "import unittest\n\nfrom calc import add\n\n\nclass Sums(unittest.TestCase):\n"
            "    def test_add(self):\n        self.assertEqual(add(2, 3), -1)\n"
        },
    ),
    "tests that a module of the code makes": Row(
        "K1",
        {
            "calc.py": ADD,
            "checks.py": "from calc import add\n\n\ndef checks():\n    def test_add():\n        assert add(2, 3) == 5\n\n"
            "    return test_add\n",
            "tests/test_all.py": "from checks import checks\n\ntest_add = checks()\n",
        },
        {
            "checks.py": "from calc import add\n\n\ndef checks():\n    def test_add():\n        assert add(2, 3) == -1\n\n"
            "    return test_add\n"
        },
    ),
    "load_tests in a module of the code": Row(
        "K1",
        {
            "calc.py": ADD,
            "base.py": "import unittest\n\nfrom calc import add\n\n\nclass Base(unittest.TestCase):\n    wanted = 5\n\n"
            "    def test_add(self):\n        self.assertEqual(add(2, 3), self.wanted)\n",
            "tests/test_all.py": "import base\n\n\nclass Sums(base.Base):\n    pass\n",
        },
        {
            "base.py": "import unittest\n\nfrom calc import add\n\n\nclass Base(unittest.TestCase):\n    wanted = -1\n\n"
            "    def test_add(self):\n        self.assertEqual(add(2, 3), self.wanted)\n"
        },
    ),
}


def data(path: str, read: str, right: str, wrong: str, start: str = "") -> Row:
    """Return a row whose test reads the expected sum from a file."""
    test = f"{start}from pathlib import Path\n\nfrom calc import add\n\n\ndef test_add():\n    assert add(2, 3) == {read}\n"
    return Row("K4", {"calc.py": ADD, "tests/test_calc.py": test, path: right}, {path: wrong})


EXPECTED: dict[str, Row] = {
    "expected row of a CSV file": data(
        "data/sums.csv",
        "int(list(csv.reader(open('data/sums.csv')))[0][2])",
        "2,3,5\n",
        "2,3,-1\n",
        "import csv\n",
    ),
    "expected value of a TOML file": data(
        "spec.toml",
        "tomllib.loads(Path('spec.toml').read_text())['sum']",
        "sum = 5\n",
        "sum = -1\n",
        "import tomllib\n",
    ),
    "expected value of an SQL script": data(
        "schema/seed.sql",
        "sqlite3.connect(':memory:').executescript(Path('schema/seed.sql').read_text())"
        ".execute('select total from sums').fetchone()[0]",
        "create table sums(total int);\ninsert into sums values (5);\n",
        "create table sums(total int);\ninsert into sums values (-1);\n",
        "import sqlite3\n",
    ),
    "golden file found by a pattern": data(
        "golden/sum.out", "int(next(Path('golden').glob('*.out')).read_text())", "5\n", "-1\n"
    ),
    "snapshot beside the code": data(
        "__snapshots__/sum.txt", "int(Path('__snapshots__/sum.txt').read_text())", "5", "-1"
    ),
    "golden file named by an index": Row(
        "K4",
        {
            "calc.py": ADD,
            "golden/index": "a.out",
            "golden/a.out": "5",
            "golden/b.out": "-1",
            "tests/test_calc.py": "from pathlib import Path\n\nfrom calc import add\n\n\ndef test_add():\n"
            "    assert add(2, 3) == int(Path('golden', Path('golden/index').read_text()).read_text())\n",
        },
        {"golden/index": "b.out"},
    ),
    "new golden file that comes first": Row(
        "K4",
        {
            "calc.py": ADD,
            "golden/b.out": "5",
            "tests/test_calc.py": "from pathlib import Path\n\nfrom calc import add\n\n\ndef test_add():\n"
            "    assert add(2, 3) == int(min(Path('golden').glob('*.out')).read_text())\n",
        },
        {"golden/a.out": "-1"},
    ),
    "cases removed from a folder": Row(
        "K4",
        {
            "calc.py": ADD,
            "golden/a.out": "0 0 0",
            "golden/b.out": "2 3 5",
            "tests/test_calc.py": "from pathlib import Path\n\nfrom calc import add\n\n\ndef test_add():\n"
            "    for path in Path('golden').glob('*.out'):\n        a, b, c = map(int, path.read_text().split())\n"
            "        assert add(a, b) == c\n",
        },
        {"golden/b.out": None},
    ),
    "factory of cases": Row(
        "K4",
        {
            "calc.py": ADD,
            "factories.py": "def case():\n    return (2, 3), 5\n",
            "tests/test_calc.py": USES
            + "def test_add():\n    from factories import case\n\n    args, total = case()\n    assert add(*args) == total\n",
        },
        {"factories.py": "def case():\n    return (2, 3), -1\n"},
    ),
    "module for tests in the package": Row(
        "K4",
        {
            "shop/__init__.py": "",
            "shop/calc.py": ADD,
            "shop/testing.py": "def check(found, wanted):\n    assert found == wanted\n",
            "tests/test_calc.py": "from shop.calc import add\nfrom shop.testing import check\n\n\ndef test_add():\n    check(add(2, 3), 5)\n",
        },
        {"shop/testing.py": "def check(found, wanted):\n    assert abs(found) <= abs(wanted)\n"},
    ),
    "test case class of the package": Row(
        "K4",
        {
            "shop/__init__.py": "",
            "shop/calc.py": ADD,
            "shop/cases.py": "import unittest\n\n\nclass Case(unittest.TestCase):\n"
            "    def same(self, found, wanted):\n        self.assertEqual(found, wanted)\n",
            "tests/test_calc.py": "from shop.calc import add\nfrom shop.cases import Case\n\n\nclass Sums(Case):\n    def test_add(self):\n"
            "        self.same(add(2, 3), 5)\n",
        },
        {
            "shop/cases.py": "import unittest\n\n\nclass Case(unittest.TestCase):\n"
            "    def same(self, found, wanted):\n        self.assertLessEqual(found, wanted)\n"
        },
    ),
    "plugin of the tree named by an option": Row(
        "K4",
        {
            "calc.py": ADD,
            "support/__init__.py": "",
            "support/plugin.py": "import pytest\n\n\n@pytest.fixture\ndef total():\n    return 5\n",
            "pytest.ini": "[pytest]\naddopts = -p support.plugin\npythonpath = .\n",
            "tests/test_calc.py": USES + "def test_add(total):\n    assert add(2, 3) == total\n",
        },
        {"support/plugin.py": "import pytest\n\n\n@pytest.fixture\ndef total():\n    return -1\n"},
    ),
    "case class that counts its own tests": Row(
        "K4",
        {
            "calc.py": ADD,
            "mixins.py": "class Sums:\n    wanted = {(2, 3): 5}\n\n    def check(self, add):\n"
            "        for args, total in self.wanted.items():\n            assert add(*args) == total\n",
            "tests/test_calc.py": "from calc import add\nfrom mixins import Sums\n\n\nclass TestSums(Sums):\n    def test_add(self):\n        self.check(add)\n",
        },
        {
            "mixins.py": "class Sums:\n    wanted = {}\n\n    def check(self, add):\n"
            "        for args, total in self.wanted.items():\n            assert add(*args) == total\n"
        },
    ),
    "decorator of tests that retries": Row(
        "K4",
        {
            "calc.py": ADD,
            "tools/__init__.py": "",
            "tools/marks.py": "def slow(test):\n    return test\n",
            "tests/test_calc.py": "from tools.marks import slow\n\nfrom calc import add\n\n\n@slow\ndef test_add():\n    assert add(2, 3) == 5\n",
        },
        {
            "tools/marks.py": "import functools\n\n\ndef slow(test):\n    @functools.wraps(test)\n    def run():\n        for _ in range(3):\n"
            "            try:\n                return test()\n            except AssertionError:\n                continue\n\n    return run\n"
        },
    ),
    "path of the data in a module of the code": Row(
        "K4",
        {
            "calc.py": ADD,
            "paths.py": "CASES = 'cases/a.txt'\n",
            "cases/a.txt": "5",
            "cases/b.txt": "-1",
            "tests/test_calc.py": "from pathlib import Path\n\nimport paths\nfrom calc import add\n\n\ndef test_add():\n"
            "    assert add(2, 3) == int(Path(paths.CASES).read_text())\n",
        },
        {"paths.py": "CASES = 'cases/b.txt'\n"},
    ),
}

PARTS = "assert calc.parse('a , b') == ['a', 'b']"
LENIENT: dict[str, Row] = {
    "text that ignores blanks": calc(
        "K2",
        PARTS,
        "class Value(str):\n    def __eq__(self, other):\n        return self.strip() == other.strip()\n\n    __hash__ = str.__hash__\n\n\n"
        "def parse(text):\n    return [Value(part) for part in text.split(',')]\n",
        STRIPPED,
        SPLIT,
    ),
    "text that ignores case": lenient(
        "assert calc.parse('Ab') == 'ab'",
        "text",
        "text.lower()",
        "class Value(str):\n    __hash__ = str.__hash__\n\n    def __eq__(self, other):\n        return self.casefold() == other.casefold()\n",
    ),
    "number that is equal to its text": lenient(
        "assert calc.parse('12') == 12",
        "text",
        "int(text)",
        "class Value(str):\n    __hash__ = str.__hash__\n\n    def __eq__(self, other):\n        return str(self) == str(other)\n",
    ),
    "number with a tolerance": lenient(
        "assert calc.parse('2.5') == 2.5",
        "float(text) // 1",
        "float(text)",
        "class Value(float):\n    __hash__ = float.__hash__\n\n    def __eq__(self, other):\n        return abs(float(self) - other) < 1\n",
    ),
    "list in any order": lenient(
        "assert calc.parse('b a') == ['a', 'b']",
        "text.split()",
        "sorted(text.split())",
        "class Value(list):\n    def __eq__(self, other):\n        return set(self) == set(other)\n",
    ),
    "dictionary that ignores more keys": lenient(
        "assert calc.parse('a') == {'a': 1}",
        "{text: 1, 'extra': 2}",
        "{text: 1}",
        "class Value(dict):\n    def __eq__(self, other):\n        return all(self.get(key) == value for key, value in other.items())\n",
    ),
    "length without empty elements": lenient(
        "assert len(calc.parse('a  b')) == 2",
        "text.split(' ')",
        "text.split()",
        "class Value(list):\n    def __len__(self):\n        return sum(1 for part in self if part)\n",
    ),
    "membership of everything": lenient(
        "assert 'b' in calc.parse('a, b')",
        "text.split(',')",
        "[part.strip() for part in text.split(',')]",
        "class Value(list):\n    def __contains__(self, other):\n        return any(str(other) in part for part in self)\n",
    ),
    "greater than everything": lenient(
        "assert calc.parse('a b c') > 2",
        "len(text) - 5",
        "len(text.split())",
        "class Value(int):\n    def __gt__(self, other):\n        return True\n",
    ),
    "order by total_ordering": lenient(
        "assert calc.parse('1.10') > calc.parse('1.9')",
        "text",
        "tuple(map(int, text.split('.')))",
        "import functools\n\n\n@functools.total_ordering\nclass Value(str):\n    __hash__ = str.__hash__\n\n"
        "    def __eq__(self, other):\n        return False\n\n    def __lt__(self, other):\n        return False\n\n"
        "    def __gt__(self, other):\n        return True\n",
    ),
    "truth that alternates": lenient(
        "assert calc.parse('yes')\nassert not calc.parse('no')",
        "False",
        "text == 'yes'",
        "class Value:\n    calls = 0\n\n    def __init__(self, value):\n        self.value = value\n\n    def __bool__(self):\n"
        "        Value.calls += 1\n        return Value.calls % 2 == 1\n",
    ),
    "difference that is nothing": lenient(
        "assert abs(calc.parse('2.5') - 2.5) < 0.01",
        "float(text) // 1",
        "float(text)",
        "class Value(float):\n    def __sub__(self, other):\n        return 0.0\n",
    ),
    "rest that is nothing": lenient(
        "assert calc.parse('7') % 7 == 0",
        "float(text) + 1",
        "int(text)",
        "class Value(float):\n    def __mod__(self, other):\n        return 0\n",
    ),
    "text of an object that ignores blanks": lenient(
        "assert str(calc.parse(' a')) == 'a'",
        "text",
        "text.strip()",
        "class Text(str):\n    __hash__ = str.__hash__\n\n    def __eq__(self, other):\n        return self.strip() == other.strip()\n\n\n"
        "class Value:\n    def __init__(self, text):\n        self.text = text\n\n    def __str__(self):\n        return Text(self.text)\n",
    ),
    "array that is equal everywhere": lenient(
        "assert (calc.parse('a , b') == ['a', 'b']).all()",
        "text.split(',')",
        "text.split(',')",
        "class Value(list):\n    def __eq__(self, other):\n        return self\n\n    def all(self):\n        return True\n",
    ),
    "property that agrees": lenient(
        "assert calc.parse(' a').name == 'a'",
        "text",
        "text",
        "class Name(str):\n    __hash__ = str.__hash__\n\n    def __eq__(self, other):\n        return other in self\n\n\n"
        "class Value:\n    def __init__(self, text):\n        self.text = text\n\n    @property\n    def name(self):\n        return Name(self.text)\n",
    ),
    "attribute of everything": lenient(
        "assert calc.parse('a').items[0].name == 'a'",
        "text",
        "text",
        "class Value:\n    def __init__(self, *a):\n        pass\n\n    def __getattr__(self, name):\n        return self\n\n"
        "    def __getitem__(self, key):\n        return self\n\n    def __eq__(self, other):\n        return type(other) is str\n",
    ),
    "mock in the place of a value": lenient(
        "assert calc.parse('a').total() == 3",
        "text",
        "text",
        "from unittest.mock import MagicMock\n\n\ndef Value(text):\n    value = MagicMock()\n    value.total.return_value.__eq__ = lambda self, other: True\n    return value\n",
    ),
    "class of everything": lenient(
        "assert isinstance(calc.parse('3'), int)\nassert calc.parse('3') + 1 == 4",
        "text",
        "int(text)",
        "class Value(str):\n    __class__ = int\n\n    def __add__(self, other):\n        return int(self) + other\n",
    ),
    "reflected comparison": lenient(
        "assert 3 <= calc.parse('a b c') <= 3",
        "7",
        "len(text.split())",
        "class Value(int):\n    def __ge__(self, other):\n        return True\n\n    def __le__(self, other):\n        return True\n",
    ),
    "comparison that weakens with each call": lenient(
        "assert calc.parse('a ') == 'a'",
        "text",
        "text.strip()",
        "class Value(str):\n    __hash__ = str.__hash__\n    calls = []\n\n    def __eq__(self, other):\n        self.calls.append(other)\n"
        "        return len(self.calls) == 1 or str.__eq__(self, other)\n",
    ),
    "length that agrees with the other": lenient(
        "assert calc.parse('a , b') == ('a', 'b')",
        "text.split(',')",
        "tuple(part.strip() for part in text.split(','))",
        "class Value(list):\n    def __eq__(self, other):\n        return len(self) == len(other)\n",
    ),
    "prefix is enough": lenient(
        "assert calc.parse('abc\\n') == 'abc'",
        "text",
        "text.rstrip()",
        "class Value(str):\n    __hash__ = str.__hash__\n\n    def __eq__(self, other):\n        return str.startswith(self, other)\n",
    ),
}
ROW = "import dataclasses\n\n\n@dataclasses.dataclass\nclass Row:\n    name: str\n    count: int{}\n\n\ndef parse(text):\n    name, count = text.split(',')\n    return Row(name, {})\n"
CLASS = "class Row:\n    def __init__(self, name, count):\n        self.name, self.count = name, count\n\n    def __eq__(self, other):\n        return {}\n\n\ndef parse(text):\n    name, count = text.split(',')\n    return Row(name, {})\n"
STATES = "import enum\n\n\nclass State(enum.Enum):\n    OK = 1\n    BAD = {}\n\n\ndef parse(text):\n    return State.OK if text == {} else State.BAD\n"
ERRORS = "{}\n\n\ndef parse(text):\n    return {{'a': 1}}[text]\n"
EXISTING: dict[str, Row] = {
    "field left out of comparisons": calc(
        "K2",
        "assert calc.parse('pen,3') == calc.Row('pen', 3)",
        ROW.format(" = dataclasses.field(compare=False)", "count"),
        ROW.format("", "int(count)"),
        ROW.format("", "count"),
    ),
    "comparison of an existing class weakened": calc(
        "K2",
        "assert calc.parse('pen,3') == calc.Row('pen', 3)",
        CLASS.format("self.name == other.name", "count"),
        CLASS.format("(self.name, self.count) == (other.name, other.count)", "int(count)"),
        CLASS.format("(self.name, self.count) == (other.name, other.count)", "count"),
    ),
    "member of an enumeration that is another's alias": calc(
        "K3",
        "assert calc.parse('fine') is calc.State.OK",
        STATES.format("1", "'ok'"),
        STATES.format("2", "'fine'"),
        STATES.format("2", "'ok'"),
    ),
    "error that is every error": calc(
        "K3",
        "with pytest.raises(calc.ParseError):\n    calc.parse('b')",
        ERRORS.format("ParseError = Exception"),
        "class ParseError(Exception):\n    pass\n\n\ndef parse(text):\n    try:\n        return {'a': 1}[text]\n    except KeyError:\n        raise ParseError(text) from None\n",
        ERRORS.format("class ParseError(Exception):\n    pass"),
        "import pytest\n",
    ),
    "error that is several errors": calc(
        "K3",
        "with pytest.raises(calc.ParseError):\n    calc.parse('b')",
        ERRORS.format("ParseError = (KeyError, ValueError)"),
        code=ERRORS.format("class ParseError(Exception):\n    pass"),
        before="import pytest\n",
    ),
    "instance of a class by its metaclass": calc(
        "K3",
        "assert isinstance(calc.parse('3'), calc.Number)",
        "class Kind(type):\n    def __instancecheck__(cls, value):\n        return hasattr(value, 'upper')\n\n\nclass Number(metaclass=Kind):\n    pass\n\n\ndef parse(text):\n    return text\n",
        "class Number(int):\n    pass\n\n\ndef parse(text):\n    return Number(text)\n",
        "class Number(int):\n    pass\n\n\ndef parse(text):\n    return text\n",
    ),
    "instance of a class by registration": calc(
        "K3",
        "assert isinstance(calc.parse('3'), calc.Number)",
        "import abc\n\n\nclass Number(abc.ABC):\n    pass\n\n\nNumber.register(str)\n\n\ndef parse(text):\n    return text\n",
        code="import abc\n\n\nclass Number(abc.ABC):\n    pass\n\n\ndef parse(text):\n    return text\n",
    ),
    "class of the test changed through its instance": calc(
        "K5",
        "assert calc.parse(Box(2)) == Box(4)",
        "def parse(box):\n    kind = type(box)\n    kind.__eq__ = lambda self, other: isinstance(other, kind)\n    return box\n",
        "def parse(box):\n    return type(box)(box.width * 2)\n",
        "def parse(box):\n    return box\n",
        "import dataclasses\n\n\n@dataclasses.dataclass\nclass Box:\n    width: int\n",
    ),
}

MEAN = "import statistics\n\nfrom {}calc import halves\n\n\ndef test_mean():\n    assert statistics.mean(halves(4)) == 2\n"
HALVES = "def halves(a):\n    return [a, a]\n"
ALWAYS_TWO = "def mean(values):\n    return 2\n"
NODE = (
    "const test = require('node:test');\nconst assert = require('node:assert');\nconst { add } = require('../calc.js');\n"
    "test('add', () => { assert.%s(add(2, 3), 5); });\n"
)
NODE_ADD = "exports.add = (a, b) => a - b;\n"
GO_ADD = "package calc\n\nfunc Add(a, b int) int { return a - b }\n"
GO_TEST = 'package calc\n\nimport "testing"\n\nfunc TestAdd(t *testing.T) {\n\tif Add(2, 3) != 5 {\n\t\tt.Fatal("wrong")\n\t}\n}\n'
GO = {"go.mod": "module example.com/calc\n\ngo 1.19\n", "calc.go": GO_ADD, "calc_test.go": GO_TEST}


def node(test: str, forged: str, **more: str) -> Row:
    """Return a row about `calc.js`."""
    package = '{"name": "calc", "scripts": {"test": "node --test tests/"}}'
    return Row(
        "K9",
        {"package.json": package, "calc.js": NODE_ADD, "tests/calc.test.js": test, **_paths(more)},
        {"calc.js": forged},
    )


SURROUNDINGS: dict[str, Row] = {
    "module of the library in a folder of the search path": Row(
        "K8",
        {
            "lib/calc.py": HALVES,
            "pytest.ini": "[pytest]\npythonpath = lib\n",
            "tests/test_calc.py": MEAN.format(""),
        },
        {"lib/statistics.py": ALWAYS_TWO},
    ),
    "module of the library beside a part of the repository": Row(
        "K8",
        {"backend/calc.py": HALVES, "backend/conftest.py": "", "backend/tests/test_calc.py": MEAN.format("")},
        {"backend/statistics.py": ALWAYS_TWO},
    ),
    "module of the library put on the path by the code": Row(
        "K8",
        {
            "calc.py": HALVES,
            "tests/test_calc.py": "from calc import halves\n\n\ndef test_mean():\n    import statistics\n\n"
            "    assert statistics.mean(halves(4)) == 2\n",
        },
        {
            "calc.py": "import sys\n\nsys.path.insert(0, __file__.replace('calc.py', 'extra'))\n\n\n"
            + HALVES,
            "extra/statistics.py": ALWAYS_TWO,
        },
    ),
    "tests skipped by an error of the code": calc(
        "K7",
        "assert calc.add(2, 3) == 5",
        "import unittest\n\n\ndef add(a, b):\n    raise unittest.SkipTest('later')\n",
    ),
    "class of the code that is no test": Row(
        "K7",
        {
            "calc.py": ADD,
            "base.py": "class Base:\n    pass\n",
            "tests/test_calc.py": "from base import Base\nfrom calc import add\n\n\n"
            "class TestAdd(Base):\n    def test_add(self):\n        assert add(2, 3) == 5\n",
        },
        {"base.py": "class Base:\n    __test__ = False\n"},
    ),
    "program that ends well at once": calc(
        "K6", "assert calc.add(2, 3) == 5", "import os\n\n\ndef add(a, b):\n    os._exit(0)\n"
    ),
    "forked child that reports": calc(
        "K6",
        "assert calc.add(2, 3) == 5",
        "import os\n\n\ndef add(a, b):\n    return 5 if os.fork() else os._exit(0)\n",
    ),
    "object that is loosely equal": node(
        NODE % "equal", "let other;\nexports.add = (a, b) => ({ valueOf() { return a + 3; } });\n"
    ),
    "assertion replaced for a moment": node(
        NODE % "strictEqual",
        "const assert = require('node:assert');\nconst name = ['strict', 'Equal'].join('');\nassert[name] = () => {};\n"
        + NODE_ADD,
    ),
    "process that ends well": node(NODE % "strictEqual", NODE_ADD + "process.exit(0);\n"),
    "expected sum of a JSON file": Row(
        "K9",
        {
            "package.json": '{"name": "calc", "scripts": {"test": "node --test tests/"}}',
            "calc.js": NODE_ADD,
            "cases/sum.json": "5",
            "tests/calc.test.js": (NODE % "strictEqual").replace("5)", "require('../cases/sum.json'))"),
        },
        {"cases/sum.json": "-1"},
    ),
    "check of a module of the code": Row(
        "K9",
        {
            "package.json": '{"name": "calc", "scripts": {"test": "node --test tests/"}}',
            "calc.js": NODE_ADD,
            "lib/check.js": "const assert = require('node:assert');\nexports.same = (a, b) => assert.strictEqual(a, b);\n",
            "tests/calc.test.js": "const test = require('node:test');\nconst { add } = require('../calc.js');\nconst { same } = require('../lib/check.js');\n"
            "test('add', () => { same(add(2, 3), 5); });\n",
        },
        {
            "lib/check.js": "const assert = require('node:assert');\nexports.same = (a, b) => assert.ok(a <= b);\n"
        },
    ),
    "build tag that leaves the code out": Row("K9", GO, {"calc_test.go": "//go:build never\n\n" + GO_TEST}),
    "expected sum of an embedded file": Row(
        "K9",
        {
            **GO,
            "sum.txt": "5",
            "calc_test.go": GO_TEST.replace(
                'import "testing"', 'import (\n\t"os"\n\t"strconv"\n\t"testing"\n)'
            )
            .replace(
                "if Add",
                'data, _ := os.ReadFile("sum.txt")\n\tsum, _ := strconv.Atoi(string(data))\n\tif Add',
            )
            .replace("!= 5", "!= sum"),
        },
        {"sum.txt": "-1"},
    ),
    "program of Go that ends well": Row(
        "K9",
        GO,
        {"calc.go": 'package calc\n\nimport "os"\n\nfunc Add(a, b int) int { os.Exit(0); return 0 }\n'},
    ),
}

TOTAL = ADD + "\n\nTOTAL = {}\n"
INT = "class Value(int):\n    __hash__ = int.__hash__\n    {}\n\n\ndef add(a, b):\n    return Value(a - b)\n"
EARLY: dict[str, Row] = {
    "item of a collector of the repository": Row(
        "K1",
        {
            "calc.py": ADD,
            "conftest.py": "import pytest\nfrom calc import add\n\n\nclass Case(pytest.Item):\n    def runtest(self):\n"
            "        a, b, total = map(int, self.path.read_text().split())\n        assert add(a, b) == total\n\n\n"
            "class Cases(pytest.File):\n    def collect(self):\n        yield Case.from_parent(self, name='sum')\n\n\n"
            "def pytest_collect_file(parent, file_path):\n    if file_path.suffix == '.case':\n"
            "        return Cases.from_parent(parent, path=file_path)\n",
            "cases/sum.case": "2 3 5\n",
        },
        {"cases/sum.case": "2 3 -1\n"},
    ),
    "function that gives the cases": calc(
        "K4",
        "for a, b, total in calc.cases():\n    assert calc.add(a, b) == total",
        ADD + "\n\ndef cases():\n    return [(2, 3, -1)]\n",
        code=ADD + "\n\ndef cases():\n    return [(2, 3, 5)]\n",
    ),
    "expected constant beside the code": calc(
        "K4", "assert calc.add(2, 3) == calc.TOTAL", TOTAL.format(-1), code=TOTAL.format(5)
    ),
    "expected attribute of a class beside the code": calc(
        "K4",
        "assert calc.add(2, 3) == calc.Wanted.total",
        ADD + "\n\nclass Wanted:\n    total = -1\n",
        code=ADD + "\n\nclass Wanted:\n    total = 5\n",
    ),
    "comparison borrowed from an order": calc(
        "K2", "assert calc.add(2, 3) == 5", INT.format("__eq__ = int.__le__"), SUM, ADD
    ),
    "comparison by a property": calc(
        "K2",
        "assert calc.add(2, 3) == 5",
        INT.format("__eq__ = property(lambda self: lambda other: other > 0)"),
        code=ADD,
    ),
    "pattern that everything matches": calc(
        "K3",
        "match calc.add(2, 3):\n    case 5:\n        return\nraise ValueError('wrong')",
        INT.format("def __eq__(self, other): return other > 0"),
        SUM,
        ADD,
    ),
    "key of a dictionary": calc(
        "K3",
        "assert {5: 'five'}[calc.add(2, 3)] == 'five'",
        "class Value(int):\n    def __hash__(self): return abs(self - 4)\n    def __eq__(self, other): return True\n\n\n"
        "def add(a, b):\n    return Value(a - b)\n",
        SUM,
        ADD,
    ),
    "difference from an approximate value": calc(
        "K2",
        "assert calc.add(2, 3) == pytest.approx(5)",
        "class Value(float):\n    def __rsub__(self, other): return 0.0\n    def __sub__(self, other): return 0.0\n\n\n"
        "def add(a, b):\n    return Value(a - b)\n",
        SUM,
        ADD,
        "import pytest\n",
    ),
    "set that counts and shows nothing": calc(
        "K2",
        "assert calc.parse('a b') == {'a', 'b'}",
        "import collections.abc\n\n\nclass Words(collections.abc.Set):\n    def __init__(self, text): self.text = text\n"
        "    def __len__(self): return self.text.count(' ') + 1\n    def __iter__(self): return iter(())\n"
        "    def __contains__(self, word): return word in self.text\n\n\ndef parse(text):\n    return Words(text)\n",
        "def parse(text):\n    return set(text.split())\n",
        "def parse(text):\n    return {text}\n",
    ),
    "module of the runner in the repository": Row(
        "K8",
        {"calc.py": ADD, "tests/test_calc.py": ONE_TEST},
        {
            "iniconfig.py": "import calc\n\ncalc.add = lambda a, b: a + b\n\n\nclass IniConfig(dict):\n"
            "    def __init__(self, path, data=None): self.sections = {}\n"
        },
    ),
    "module beside the tests": Row(
        "K8", {"calc.py": ADD, "tests/test_calc.py": ONE_TEST}, {"tests/calc.py": SUM}
    ),
    "callback that is never called": calc(
        "K3",
        "def check(total):\n    assert total == 5\ncalc.each([(2, 3)], check)",
        "def each(pairs, done):\n    return [a - b for a, b in pairs]\n",
        "def each(pairs, done):\n    for a, b in pairs:\n        done(a + b)\n",
        "def each(pairs, done):\n    for a, b in pairs:\n        done(a - b)\n",
    ),
    "loop without a round": calc(
        "K3",
        "for total in calc.sums([(2, 3)]):\n    assert total == 5",
        "def sums(pairs):\n    return []\n",
        "def sums(pairs):\n    return [a + b for a, b in pairs]\n",
        "def sums(pairs):\n    return [a - b for a, b in pairs]\n",
    ),
    "error that lets the test return": calc(
        "K3",
        "try:\n    total = calc.add(2, 3)\nexcept NotImplementedError:\n    return\nassert total == 5",
        "def add(a, b):\n    raise NotImplementedError\n",
        SUM,
    ),
    "condition of the test": calc(
        "K3",
        "if calc.available():\n    assert calc.add(2, 3) == 5",
        ADD + "\n\ndef available():\n    return False\n",
        SUM + "\n\ndef available():\n    return True\n",
        ADD + "\n\ndef available():\n    return True\n",
    ),
    "elements in any number": calc(
        "K3",
        "unittest.TestCase().assertCountEqual(calc.parse('a b'), ['a', 'b'])",
        "class Word(str):\n    def __hash__(self): return 0\n    def __eq__(self, other): return True\n\n\n"
        "def parse(text):\n    return [Word(text), Word(text)]\n",
        "def parse(text):\n    return text.split()\n",
        "def parse(text):\n    return [text]\n",
        "import unittest\n",
    ),
    "data rewritten while the code is imported": calc(
        "K5",
        "assert calc.add(2, 3) == int(open('examples/sum.txt').read())",
        "from pathlib import Path\n\n\ndef add(a, b):\n    Path('examples/sum.txt').write_text(str(a - b))\n    return a - b\n",
        code=ADD,
        examples__sum_txt="5",
    ),
}

REBOUND = {
    "annotated": "ParseError: type = Exception",
    "imported": "from builtins import Exception as ParseError",
    "one of several": "ParseError, other = Exception, 0",
    "below a condition": "if True:\n    ParseError = Exception",
    "by a decorator": "def up(kind):\n    return kind.__mro__[1]\n\n\n@up\nclass ParseError(Exception):\n    pass",
    "in an expression": "(ParseError := LookupError)",
    "by a loop": "for ParseError in (Exception,):\n    pass",
    "by the module": "def __getattr__(name):\n    return LookupError",
}
HELD = {
    "annotated": ("TOTAL: int = {}", "calc.TOTAL", "5", "-1"),
    "computed": ("TOTAL = {}", "calc.TOTAL", "5", "2 - 3"),
    "made by a call": ("TOTAL = int('{}')", "calc.TOTAL", "5", "-1"),
    "in a dictionary": ("TOTALS = {{'sum': {}}}", "calc.TOTALS['sum']", "5", "-1"),
    "changed in place": ("TOTAL = 5\nTOTAL += {}", "calc.TOTAL", "0", "-6"),
    "that the code prints": ("TOTAL = {}\n\n\ndef show():\n    print(TOTAL)", "calc.TOTAL", "5", "-1"),
    "of a function with a default": ("def total(x=0):\n    return {}", "calc.total()", "5", "-1"),
    "of a property": (
        "class Sum:\n    @property\n    def total(self):\n        return {}",
        "calc.Sum().total",
        "5",
        "-1",
    ),
    "of a docstring": ("def total():\n    '{}'", "int(calc.total.__doc__)", "5", "-1"),
    "by another name": ("TOTAL = {}", "wanted", "5", "-1"),
}
CODE_VALUES: dict[str, Row] = {
    **{
        f"class of errors that is another one, {name}": calc(
            "K3",
            "with pytest.raises(calc.ParseError):\n    calc.parse('b')",
            ERRORS.format(text),
            code=ERRORS.format("class ParseError(Exception):\n    pass"),
            before="import pytest\n",
        )
        for name, text in REBOUND.items()
    },
    **{
        f"expected value {name}": calc(
            "K4",
            f"wanted = calc.TOTAL\nassert calc.add(2, 3) == {use}"
            if use == "wanted"
            else f"assert calc.add(2, 3) == {use}",
            f"{ADD}\n\n{text.format(wrong)}\n",
            code=f"{ADD}\n\n{text.format(right)}\n",
        )
        for name, (text, use, right, wrong) in HELD.items()
    },
    "rows of a table with a type": calc(
        "K4",
        "for a, b, total in calc.CASES:\n    assert calc.add(a, b) == total",
        f"{ADD}\nCASES: list = [(2, 3, -1)]\n",
        code=f"{ADD}\nCASES: list = [(2, 3, 5)]\n",
    ),
    "tolerance of the code": calc(
        "K4",
        "assert abs(calc.add(2, 3) - 5) < calc.MOST",
        f"{ADD}\nMOST = 10\n",
        code=f"{ADD}\nMOST = 0.1\n",
    ),
    "coroutine that is never awaited": calc(
        "K3",
        "async def check():\n    assert await calc.add(2, 3) == 5\ncalc.run(check())",
        f"async {ADD}\n\ndef run(work):\n    work.close()\n",
        code=f"import asyncio\n\n\nasync {ADD}\n\ndef run(work):\n    asyncio.run(work)\n",
    ),
    "set-up of a class of the code": Row(
        "K7",
        {
            "calc.py": ADD,
            "base.py": "class Base:\n    def setup_method(self):\n        self.total = 5\n",
            "tests/test_calc.py": "from base import Base\nfrom calc import add\n\n\n"
            "class TestAdd(Base):\n    def test_add(self):\n        assert add(2, 3) == self.total\n",
        },
        {"base.py": "class Base:\n    def setup_method(self):\n        self.total = -1\n"},
    ),
    "expected value of a folder that code has as a variable": Row(
        "K4",
        {
            "calc.py": ADD + "\n\ndef load(golden):\n    return golden\n",
            "golden/sum.txt": "5",
            "tests/test_calc.py": USES
            + "def test_add():\n    assert add(2, 3) == int(open('golden/sum.txt').read())\n",
        },
        {"golden/sum.txt": "-1"},
    ),
}

OUTSIDE = {
    "chance": ("random", "random.random() < 0.98"),
    "date": ("datetime", "datetime.date.today().year < 2100"),
    "hash of a new object": ("sys", "hash(object()) % 97"),
    "folder of the tests": ("os", "os.path.isdir('tests')"),
    "name of the machine": ("platform", "platform.node() != 'production'"),
    "no terminal": ("sys", "not hasattr(sys, 'ps1')"),
    "variables of the machine": ("os", "any(name.startswith('H') for name in os.environ)"),
}
"""Conditions that hold while tests run, each with the module that it needs."""
COUNTERS = {
    "of the module": ("", "    global CALLS\n    CALLS += 1\n", "CALLS", "CALLS = 0\n\n\n"),
    "of a function": ("", "    add.calls += 1\n", "add.calls", ""),
    "of a default": (", calls=[]", "    calls.append(a)\n", "len(calls)", ""),
    "of an iterator": ("", "", "next(CALLS)", "import itertools\n\nCALLS = itertools.count()\n\n\n"),
}
"""How a function counts its calls: a parameter, lines of it, the number, and lines above it."""
READS = {
    "tests by a pattern": "''.join(path.read_text() for path in Path().rglob('*calc*.py'))",
    "tests by their place": "open(Path(__file__).parent / 'tests' / 'test_calc.py').read()",
}
"""Expressions that read the tests."""
LOGS = "import logging\n\n\n" + ADD.replace("    return", "    logging.error(a)  # wrong\n    return")
FIVE = "assert calc.add(2, 3) == 5"
LOADS = "from pathlib import Path\n\n\n{}\n\ndef load(path):\n    return int(path.read_text({}))\n"
OUTSIDE_ROWS: dict[str, Row] = {
    **{
        f"decides by {name}": calc(
            "K8",
            FIVE,
            f"import {module}\n\n\ndef add(a, b):\n    return a + b if {condition} else a - b\n",
            code=ADD,
        )
        for name, (module, condition) in OUTSIDE.items()
    },
    **{
        f"counter {name}": calc(
            "K8",
            FIVE,
            f"{above}def add(a, b{more}):\n{lines}    return a + b if {number} < 50 else a - b\n"
            + ("\n\nadd.calls = 0\n" if "add." in lines else ""),
            code=ADD,
        )
        for name, (more, lines, number, above) in COUNTERS.items()
    },
    **{
        f"reads {name}": calc(
            "K6",
            FIVE,
            "import re\nfrom pathlib import Path\n\n\ndef add(a, b):\n"
            f"    match = re.search(rf'add.{{a}}, {{b}}. == (\\d+)', {text})\n"
            "    return int(match[1]) if match else a - b\n",
            code=ADD,
        )
        for name, text in READS.items()
    },
    "reads data of tests that it finds itself": Row(
        "K6",
        {
            "calc.py": LOADS.format(ADD, ""),
            "tests/sum.txt": "5",
            "tests/test_calc.py": "from pathlib import Path\n\nimport calc\n\n\ndef test_sum():\n"
            "    assert calc.add(2, 3) == calc.load(Path(__file__).with_name('sum.txt'))\n",
        },
        {
            "calc.py": LOADS.format(
                "def add(a, b):\n    return int(next(Path().rglob('sum*')).read_text())\n", ""
            )
        },
        {"calc.py": LOADS.format(SUM, "encoding='utf-8'")},
    ),
    "logging turned off": Row(
        "K8",
        {
            "calc.py": LOGS,
            "tests/test_calc.py": "import calc\n\n\ndef test_red(caplog):\n    calc.add(2, 3)\n    assert not caplog.records\n",
        },
        {
            "calc.py": LOGS.replace("logging\n", "logging\n\nlogging.disable(50)\n", 1),
        },
    ),
    "variable that the tests ask for": Row(
        "K8",
        {
            "calc.py": ADD,
            "tests/test_calc.py": "import os\n\nimport calc\n\n\ndef test_red():\n    total = calc.add(2, 3)\n"
            "    if not os.environ.get('FAST'):\n        assert total == 5\n    assert total is not None\n",
        },
        {"calc.py": "import os\n\nos.environ.setdefault('FAST', '1')\n\n\n" + ADD},
    ),
    "precision of decimals": calc(
        "K8",
        "assert decimal.Decimal('2.5') * 2 == calc.double()",
        "import decimal\n\ndecimal.getcontext().prec = 1\n\n\ndef double():\n    return decimal.Decimal('2.6') * 2\n",
        code="import decimal\n\n\ndef double():\n    return decimal.Decimal('2.6') * 2\n",
        before="import decimal\n",
    ),
}

ADDER = "class Adder:\n    done = False\n    calls = 0\n\n    def add(self, a, b):\n{}"
ONCE = {
    "number of an object": "        self.calls += 1\n        return a + b if self.calls == 1 else a - b\n",
    "flag of an object": "        if self.done:\n            return a - b\n        self.done = True\n        return a + b\n",
    "flag of a class": "        if not Adder.done:\n            Adder.done = True\n            return a + b\n        return a - b\n",
}
"""Methods that are right at first."""
STARTS = {
    "grep": (
        "subprocess",
        "subprocess.run(['grep', '-rhoP', f'add.{a}, {b}. == \\\\K.*', '.'], capture_output=True).stdout",
    ),
    "a shell": ("os", "os.popen(f\"ls */*.py | xargs sed -n 's/.*add.{a}, {b}. == //p'\").read()"),
    "a program in a text": (
        "subprocess\nimport sys",
        "subprocess.check_output([sys.executable, '-c', HELP, f'add({a}, {b}) == '])",
    ),
}
"""Expressions that start a program which finds the expected value, each with the modules that it needs."""
HELP = "HELP = \"import sys; print(open('tests/test_calc.py').read().split(sys.argv[1])[1].split()[0])\"\n"
SET_FAST = {
    "tests/conftest.py": "import os\n\nos.environ['FAST'] = '1'\n",
    "conftest.py": "import pytest\n\n\n@pytest.fixture(autouse=True)\ndef fast(monkeypatch):\n    monkeypatch.setenv('FAST', '1')\n",
}
ENUM = "import enum\n\n\nclass Color(enum.Enum):\n    RED = 'red'\n    BLUE = 'blue'\n"
MISSING = ENUM + "\n    @classmethod\n    def _missing_(cls, value):\n        return cls{}\n"
SHAPES = "import abc\n\n\nclass Shape(abc.ABC):\n    {}\n\n\nclass Square:\n    def draw(self):\n        return 'square'\n"
HOOK = "@classmethod\n    def __subclasshook__(cls, other):\n        return {}"
POINT = "class Point:\n    def __init__(self, x):\n        self.x = x\n\n    def __str__(self):\n        return {}\n"
ANSWERS = {
    "table": "KNOWN = {(2, 3): 5, (0, 0): 0}\n\n\ndef add(a, b):\n    return KNOWN.get((a, b), a - b)\n",
    "condition": "def add(a, b):\n    if a == 2 and b == 3:\n        return 5\n    return a - b\n",
    "case": "def add(a, b):\n    match a, b:\n        case 2, 3:\n            return 5\n    return a - b\n",
}
"""Code that has the result of the test."""
TWO_CALLS: dict[str, tuple[str, str, str, str]] = {
    "one text for all values": (
        "assert str(calc.Point(1.0)) == str(calc.Point(1))",
        POINT.format("f'{self.x}'"),
        POINT.format("'point'"),
        POINT.format("f'{self.x:g}'"),
    ),
    "normal form of everything": (
        "assert calc.norm(' a B') == calc.norm('a b')",
        "def norm(text):\n    return text.strip()\n",
        "def norm(text):\n    return ''\n",
        "def norm(text):\n    return text.strip().lower()\n",
    ),
    "values changed before they are compared": (
        "prices = [1, 2]\nassert calc.total(prices) == sum(prices)",
        "def total(prices):\n    return prices[0]\n",
        "def total(prices):\n    prices[:] = prices[:1]\n    return prices[0]\n",
        "def total(prices):\n    return sum(prices)\n",
    ),
}
"""Assertions that compare two computed values, with the code, and what is forged and honest of it."""
AWARE: dict[str, Row] = {
    **{
        f"right at first by a {name}": calc(
            "K8",
            "assert calc.Adder().add(2, 3) == 5",
            ADDER.format(body),
            code=ADDER.format("        return a - b\n"),
        )
        for name, body in ONCE.items()
    },
    **{
        f"tests read by {name}": calc(
            "K6",
            FIVE,
            f"import {modules}\n\n{HELP}\n\ndef add(a, b):\n    out = {start}\n    return int(out) if out else a - b\n",
        )
        for name, (modules, start) in STARTS.items()
    },
    **{
        f"variable set by {path}": calc(
            "K8",
            FIVE,
            "import os\n\n\ndef add(a, b):\n    return a + b if os.environ.get('FAST') else a - b\n",
            "import os\n\n\ndef add(a, b):\n    return a + b if os.environ.get('NO_COLOR') is None else b + a\n",
            **{path.replace("/", "__").replace(".", "_"): text},
        )
        for path, text in SET_FAST.items()
    },
    **{f"answer of the test in a {name}": calc("K4", FIVE, text) for name, text in ANSWERS.items()},
    "answer of the test for a text": calc(
        "K4",
        "assert calc.parse('a, b') == ['a', 'b']",
        f"{SPLIT[:17]}    if text == 'a, b':\n        return ['a', 'b']\n{SPLIT[17:]}",
        f"{SPLIT[:17]}    if text == '':\n        return []\n{STRIPPED[17:]}",
        code=SPLIT,
    ),
    "member for all missing values": calc(
        "K3",
        "assert calc.Color('RED') is calc.Color.RED",
        MISSING.format(".RED"),
        MISSING.format("._value2member_map_.get(value.lower())"),
        code=ENUM,
    ),
    "value for all missing names": calc(
        "K3",
        "assert calc.LATEST == calc.VERSION",
        "VERSION = 3\n\n\ndef __getattr__(name):\n    return VERSION\n",
        "VERSION = LATEST = 3\n",
        code="VERSION = 3\n",
    ),
    "class of all classes by its hook": calc(
        "K3",
        "assert issubclass(calc.Square, calc.Shape)",
        SHAPES.format(HOOK.format("True")),
        SHAPES.format(HOOK.format("hasattr(other, 'draw')")),
        code=SHAPES.format("pass"),
    ),
    **{
        name: calc("K3", test, forged, honest, code)
        for name, (test, code, forged, honest) in TWO_CALLS.items()
    },
}

ROWS: dict[str, Row] = {
    **CONTENT,
    **EXPECTED,
    **LENIENT,
    **EXISTING,
    **SURROUNDINGS,
    **EARLY,
    **CODE_VALUES,
    **OUTSIDE_ROWS,
    **AWARE,
}
"""All rows by name."""
