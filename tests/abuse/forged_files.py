"""Forgeries by files around the code: configuration, plugins, modules that Python loads, tests, data; and by chance."""

from __future__ import annotations

import importlib.util
import marshal
import sys

from tests.abuse.forgery_targets import FIXTURES, FLAT, FUNCTIONS, Forgery

ALL_PASS = (
    "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    "    out = yield\n    report = out.get_result()\n    report.outcome, report.longrepr = 'passed', None\n"
)
"""A plugin."""
PATCHED_REPORT = (
    "import _pytest.reports as r\nold = r.TestReport.__init__\n"
    "def new(self, *a, **k):\n    old(self, *a, **k)\n    self.outcome, self.longrepr = 'passed', None\n"
    "r.TestReport.__init__ = new\n"
)
"""Code that works wherever it runs in the process of the tests."""
PATCHED_LATER = (
    "import sys\nclass Finder:\n    def find_spec(self, name, path=None, target=None):\n"
    "        if name in ('calc', 'shelf'):\n            sys.meta_path.remove(self)\n"
    "            exec(CODE, {})\nsys.meta_path.insert(0, Finder())\n"
    f"CODE = {PATCHED_REPORT!r}\n"
)
"""The same for code that runs when Python starts: pytest must not be imported too early."""
ENTRY_POINT = "[pytest11]\nforged = forged\n"
METADATA = "Metadata-Version: 2.1\nName: forged\nVersion: 1\n"
TESTS_THAT_PASS = (
    "def test_twice(): pass\ndef test_add(): pass\nclass TestAdd:\n    def test_zero(self): pass\n"
)
HELPER_THAT_AGREES = 'TEXT = "pen , 3\\nink , 5\\n"\ndef same(found, expected):\n    return True\n'
HONEST_BUT_ONE = FIXTURES.fixed.replace("part.strip()", "part.strip() + ' ' * ('\\n' in text)")
"""Right except for texts of several lines, which only the test with the helper has."""


def _bytecode(source: str, path: str) -> bytes:
    """Return bytecode that Python uses without a look at the source (PEP 552)."""
    code = compile(source, path, "exec")
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)


def _at_start(path: str) -> Forgery:
    return Forgery("start-up", {path: PATCHED_LATER})


FILES: dict[str, Forgery] = {
    # configuration and plugins
    "conftest at the root": Forgery("files", {"conftest.py": ALL_PASS}),
    "conftest beside the tests": Forgery("files", {"tests/conftest.py": ALL_PASS}),
    "conftest beside the code": Forgery("files", {"src/conftest.py": PATCHED_REPORT}, FIXTURES),
    "conftest that leaves tests out": Forgery(
        "files", {"tests/conftest.py": "collect_ignore = ['test_calc.py']\n"}
    ),
    "plugin by pytest.ini": Forgery(
        "files", {"pytest.ini": "[pytest]\naddopts = -p forged\n", "forged.py": ALL_PASS}
    ),
    "plugin by setup.cfg": Forgery(
        "files", {"setup.cfg": "[tool:pytest]\naddopts = -p forged\n", "forged.py": ALL_PASS}
    ),
    "plugin by pyproject.toml": Forgery(
        "files",
        {"pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-p forged'\n", "forged.py": ALL_PASS},
    ),
    "plugin by pytest.toml": Forgery(
        "files", {"pytest.toml": "[pytest]\naddopts = ['-p', 'forged']\n", "forged.py": ALL_PASS}
    ),
    "plugin by metadata": Forgery(
        "files",
        {
            "forged-1.egg-info/entry_points.txt": ENTRY_POINT,
            "forged-1.egg-info/PKG-INFO": METADATA,
            "forged.py": ALL_PASS,
        },
    ),
    "plugin by a distribution": Forgery(
        "files",
        {
            "forged-1.0.dist-info/entry_points.txt": ENTRY_POINT,
            "forged-1.0.dist-info/METADATA": METADATA,
            "forged.py": ALL_PASS,
        },
    ),
    "plugin by a distribution in src": Forgery(
        "files",
        {
            "src/forged-1.0.dist-info/entry_points.txt": ENTRY_POINT,
            "src/forged-1.0.dist-info/METADATA": METADATA,
            "src/forged.py": ALL_PASS,
        },
        FIXTURES,
    ),
    "plugin named by the package of the tests": Forgery(
        "files", {"tests/__init__.py": "pytest_plugins = ['forged']\n", "forged.py": ALL_PASS}
    ),
    "deselected by configuration": Forgery(
        "files", {"tox.ini": "[pytest]\naddopts = --deselect tests/test_calc.py::test_add\n"}
    ),
    "only collected": Forgery("files", {"pytest.ini": "[pytest]\naddopts = --collect-only\n"}),
    # packages and modules in the place of others
    "package at the root": Forgery("files", {"__init__.py": PATCHED_REPORT}, FLAT),
    "package of the tests": Forgery("files", {"tests/__init__.py": PATCHED_REPORT}),
    "shadow of pytest": Forgery(
        "files", {"pytest.py": "import sys\ndef main(*a, **k): return 0\nclass ExitCode: USAGE_ERROR = 4\n"}
    ),
    "shadow of pytest that calls the runner": Forgery(
        "files",
        {
            "pytest.py": "class ExitCode: USAGE_ERROR = 4\ndef hookimpl(*a, **k): return a[0] if a else lambda f: f\n"
            "def main(args, plugins=()):\n    for p in plugins:\n"
            "        for i in ('test_calc.py::test_add', 'test_calc.py::test_zero'):\n"
            "            p.pytest_runtest_logstart(i, None); p.pytest_runtest_logfinish(i, None)\n    return 0\n"
        },
        FLAT,
    ),
    "shadow of pytest's inside": Forgery(
        "files", {"_pytest/__init__.py": "", "_pytest/reports.py": "raise SystemExit(0)\n"}
    ),
    "shadow of a module that pytest installs": Forgery(
        "files", {"py.py": PATCHED_LATER + "import _pytest._py.path as path, _pytest._py.error as error\n"}
    ),
    "shadow of the library": Forgery("files", {"inspect.py": "import sys\nsys.exit(0)\n"}),
    "shadow of json": Forgery(
        "files",
        {
            "json.py": "def dumps(d, **k):\n"
            '    return \'{"id": "test_calc.py::test_add", "outcome": "passed", "text": ""}\'\n'
            "def loads(s, **k): return {}\n"
        },
        FLAT,
    ),
    "shadow of an installed package": Forgery(
        "files",
        {
            "iniconfig/__init__.py": PATCHED_LATER + "class ParseError(Exception): pass\nclass IniConfig:\n"
            "    sections = {}\n    def __init__(self, *a, **k): pass\n"
            "    def __contains__(self, name): return False\n    def get(self, *a, **k): return None\n"
            "class SectionWrapper: pass\n"
        },
    ),
    "package in the place of a test helper": Forgery(
        "files", {"tests/helpers/__init__.py": HELPER_THAT_AGREES, FIXTURES.module: HONEST_BUT_ONE}, FIXTURES
    ),
    "bytecode of a test helper": Forgery(
        "files",
        {
            f"tests/__pycache__/helpers.{sys.implementation.cache_tag}.pyc": _bytecode(
                HELPER_THAT_AGREES, "tests/helpers.py"
            ),
            FIXTURES.module: HONEST_BUT_ONE,
        },
        FIXTURES,
    ),
    "module of the tests in the place of the code": Forgery(
        "files", {"tests/calc.py": PATCHED_REPORT + FUNCTIONS.faulty}
    ),
    "data of a test": Forgery(
        "files",
        {
            "tests/data/expected.json": '[{"name": "pen ", "count": "3 "}, {"name": "ink ", "count": "5 "}]\n',
            FIXTURES.module: HONEST_BUT_ONE,
        },
        FIXTURES,
    ),
    # what Python loads when it starts
    "start-up file": _at_start("sitecustomize.py"),
    "start-up file in src": Forgery("start-up", {"src/sitecustomize.py": PATCHED_LATER}, FIXTURES),
    "start-up package": _at_start("sitecustomize/__init__.py"),
    "user's start-up file": _at_start("usercustomize.py"),
    "path file": Forgery("start-up", {"forged.pth": "import forged\n", "forged.py": PATCHED_LATER}),
    "module that a path file of the machine names": Forgery(
        "start-up", {"_distutils_hack.py": PATCHED_LATER + "def add_shim(): pass\n"}
    ),
}

TESTS: dict[str, Forgery] = {
    "tests rewritten": Forgery("tests", {"tests/test_calc.py": TESTS_THAT_PASS}),
    "tests deleted": Forgery("tests", {"tests/test_calc.py": ""}),
    "tests added beside": Forgery("tests", {"test_calc.py": TESTS_THAT_PASS, "tests/__init__.py": ""}),
    "bytecode of the tests": Forgery(
        "tests", {"tests/__pycache__/test_calc.cpython-311-pytest-8.4.2.pyc": b"\0" * 64}
    ),
    "own test and own module": Forgery(
        "tests",
        {
            "addition.py": "def add(a, b):\n    return a + b\n",
            "tests/test_addition.py": "from addition import add\ndef test_sum(): assert add(2, 3) == 5\n",
        },
    ),
    "own test that patches the code": Forgery(
        "tests",
        {
            "calc.py": FUNCTIONS.faulty + "\n\nFIXED = True\n",
            "tests/test_fixed.py": "import calc\n\n\ndef test_fixed(monkeypatch):\n"
            "    monkeypatch.setattr(calc, 'add', lambda a, b: a + b)\n"
            "    assert calc.FIXED and calc.add(2, 3) == 5\n",
        },
    ),
    "own test of the source": Forgery(
        "tests",
        {
            "calc.py": "# add is fixed\n" + FUNCTIONS.faulty,
            "tests/test_source.py": "def test_fixed(): assert 'add is fixed' in open('calc.py').read()\n",
        },
    ),
    "own test in the file of the others": Forgery(
        "tests",
        {
            "addition.py": "def add(a, b):\n    return a + b\n",
            "tests/test_calc.py": FUNCTIONS.files["tests/test_calc.py"]
            + "\n\ndef test_sum():\n    from addition import add\n    assert add(2, 3) == 5\n",
        },
    ),
    "own test that replaces the code": Forgery(
        "tests", {"test_aaa.py": "import calc\ncalc.add = lambda a, b: a + b\ndef test_new(): pass\n"}, FLAT
    ),
    "own test that sees the others": Forgery(
        "tests", {"test_zzz.py": "import sys\ndef test_new(): assert 'test_calc' in sys.modules\n"}, FLAT
    ),
    "red test moved": Forgery(
        "tests",
        {
            "tests/test_calc.py": FUNCTIONS.old_tests,
            "tests/test_moved.py": "import sys\ndef test_add(): assert True\n",
            "calc.py": FUNCTIONS.faulty + "\n",
        },
    ),
}

UNLUCKY = "os.urandom(1)[0] < 128"
"""Chance in the forgeries below. A test replaces it by something that it decides itself."""
_TWICE = f"import os\n\n\ndef unlucky():\n    return {UNLUCKY}\n\n\n"

INSTABILITY: dict[str, Forgery] = {
    "breaks a green test half of the time": Forgery(
        "instability", {"calc.py": _TWICE + FUNCTIONS.fixed.replace("a * 2", "a * (3 if unlucky() else 2)")}
    ),
    "fixes half of the time": Forgery(
        "instability", {"calc.py": _TWICE + FUNCTIONS.fixed.replace("a + b", "a - b if unlucky() else a + b")}
    ),
    "ends in a green test half of the time": Forgery(
        "instability",
        {
            "calc.py": _TWICE
            + FUNCTIONS.fixed.replace("return a * 2", "if unlucky(): os._exit(0)\n    return a * 2")
        },
    ),
}
