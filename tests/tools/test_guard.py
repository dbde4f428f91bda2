"""The guard's canaries: tests that cannot pass, and that fail for the reason that real tests fail for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from m3agent.tools.in_sandbox import guard
from tests.agent.repositories import write_files
from tests.conftest import others_later

CHILD = """\
from m3agent.tools.in_sandbox import runner
lines = []
request = {"framework": "pytest", "limit": 60, "targets": ["."], "guard": {"wanted": [], "added": []}}
runner.main(lambda *line: lines.append(line), request)
import json, pathlib
pathlib.Path("lines.json").write_text(json.dumps(lines))
"""
FAILURES = """\
def pytest_exception_interact(node, call, report):
    with open("failures", "a") as file:
        print(call.excinfo.type.__name__, call.excinfo.traceback[-1].path.name, file=file)
"""
KINDS = {
    "function": "def test_it():\n    pass\n",
    "method": "class TestIt:\n    def test_it(self):\n        pass\n",
    "parametrised": "import pytest\n@pytest.mark.parametrize('x', [1])\ndef test_it(x):\n    pass\n",
    "unittest": "import unittest\nclass It(unittest.TestCase):\n    def test_it(self):\n        pass\n",
}


@pytest.mark.slow  # quick: test_a_failure_is_described_with_its_source
def test_a_canary_of_each_kind_fails_by_its_own_assertion(tmp_path: Path) -> None:
    files = {f"test_{kind}.py": text for kind, text in KINDS.items()}
    write_files(tmp_path, {"conftest.py": FAILURES, **files})
    subprocess.run([sys.executable, "-c", CHILD], cwd=tmp_path, check=True, capture_output=True)
    failures = (tmp_path / "failures").read_text().splitlines()
    assert sorted(failures) == sorted(f"AssertionError {name}" for name in files)
    lines = json.loads((tmp_path / "lines.json").read_text())
    number = str(len(KINDS))
    assert ["canaries", number, number] in lines
    assert ["forged", guard.PASSED] not in lines
    assert ["hook", "conftest.py", *2 * ["pytest_exception_interact"]] in lines


@pytest.mark.integration
def test_a_failure_is_described_with_its_source(tmp_path: Path) -> None:
    text = "def test_red():\n    value = 1\n    assert value == 2\n\ndef test_error(nothing):\n    pass\n"
    write_files(tmp_path, {"test_red.py": text})
    subprocess.run([sys.executable, "-c", CHILD], cwd=tmp_path, check=True, capture_output=True)
    lines = json.loads((tmp_path / "lines.json").read_text())
    texts = {line[1]: line for line in lines if line[0] == "result"}
    red, error = texts["test_red.py::test_red"], texts["test_red.py::test_error"]
    assert red[2] == "failed"
    assert "test_red.py:3: in test_red\n    assert value == 2\nE   assert 1 == 2" in red[-1]
    assert error[2] == "error"
    assert "fixture 'nothing' not found" in error[-1]


HELPER = "def same(one, other):\n    return one == other\n"
REPLACED_HELPERS = {
    "function": "import helpers\nhelpers.same = lambda one, other: True\n",
    "built-in": "import helpers\nhelpers.same = max\n",
    "object with its code": (
        "import helpers\nclass Same:\n    __code__ = helpers.same.__code__\n    __call__ = lambda *_: True\nhelpers.same = Same()\n"
    ),
    "code": "import helpers\nhelpers.same.__code__ = (lambda one, other: True).__code__\n",
    "module": "import sys, types\nfake = sys.modules['helpers'] = types.ModuleType('helpers')\nfake.same = max\n",
    "module with a file": (
        "import os, sys, types\nfake = sys.modules['helpers'] = types.ModuleType('helpers')\n"
        "fake.same, fake.__file__ = max, os.path.abspath('tests/helpers.py')\n"
    ),
}
HONEST_HELPERS = {
    "plain": HELPER,
    "decorated": "def new(old):\n    return lambda *values: old(*values)\n\n\n@new\n" + HELPER,
    "defined twice": HELPER + "\n\n" + HELPER,
    "bound again": HELPER + "\n\nsame = max\n",
    "set by a function": HELPER + "\n\ndef change():\n    global same\n    same = max\n\n\nchange()\n",
    "replaced by itself": "import sys\n" + HELPER + "\n\nsys.modules[__name__] = sys.modules[__name__]\n",
}


def signs_of(folder: Path, code: str, helper: str) -> list[str]:
    """Return the signs about a helper module, in a run of a test that uses code and that module."""
    test = "import calc\nfrom helpers import same\n\n\ndef test_it():\n    assert same(1, 1)\n"
    write_files(
        folder, {"calc.py": code, "conftest.py": "", "tests/helpers.py": helper, "tests/test_it.py": test}
    )
    subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=folder,
        check=True,
        capture_output=True,
        env={"PYTHONPATH": f"{folder}:{folder / 'tests'}", "PATH": os.environ["PATH"]},
    )
    lines = json.loads((folder / "lines.json").read_text())
    return [line[1] for line in lines if line[0] == "forged" and "helpers" in line[1]]


@pytest.mark.integration
@pytest.mark.parametrize("kind", others_later(REPLACED_HELPERS, {"object with its code", "module"}))
def test_a_replaced_helper_of_the_tests_is_tampering(tmp_path: Path, kind: str) -> None:
    signs = signs_of(tmp_path, REPLACED_HELPERS[kind], HELPER)
    assert set(signs) & {guard.REPLACED + "helpers.same", "a module took the place of tests/helpers.py"}


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("kind", HONEST_HELPERS)
def test_a_helper_may_define_its_functions_as_it_likes(tmp_path: Path, kind: str) -> None:
    assert signs_of(tmp_path, "", HONEST_HELPERS[kind]) == []


READS_FRAMES = {
    "by logging": "import logging\nlogging.currentframe()\n",
    "by inspect": "import inspect\ninspect.currentframe()\n",
    "by a function that calls another": (
        "import contextlib, sys\nwith contextlib.ExitStack() as stack:\n    stack.callback(sys._getframe)\n"
    ),
}
READS_NONE = {
    "logging": "import logging\nlogging.getLogger('calc').error('text')\n",
    "namedtuple": "import collections\nPair = collections.namedtuple('Pair', 'one other')\n",
    "enumeration": "import enum\nKind = enum.Enum('Kind', 'ONE OTHER')\n",
    "type variable": "import typing\nT = typing.TypeVar('T')\nRow = typing.NamedTuple('Row', [('one', int)])\n",
}


def lines_of(folder: Path, files: dict[str, str]) -> list[list[str]]:
    """Return the report of a run of the tests in these files."""
    write_files(folder, files)
    subprocess.run([sys.executable, "-c", CHILD], cwd=folder, check=True, capture_output=True)
    lines: list[list[str]] = json.loads((folder / "lines.json").read_text())
    return lines


@pytest.mark.integration
@pytest.mark.parametrize("kind", others_later([*READS_FRAMES, *READS_NONE], {"by logging", "logging"}))
def test_a_frame_that_the_standard_library_hands_out_is_noted(tmp_path: Path, kind: str) -> None:
    code = {**READS_FRAMES, **READS_NONE}[kind]
    test = "import calc\n\n\ndef test_it():\n    pass\n"
    lines = lines_of(tmp_path, {"calc.py": code, "test_it.py": test})
    assert any(line[:2] == ["reached", "calc.py"] for line in lines) == (kind in READS_FRAMES)


ITS_OWN = {
    "changed by a test": "SEEN = []\n\n\ndef test_it():\n    SEEN.append(1)\n",
    "handed to code": "import calc\n\nROWS = [1]\n\n\ndef test_it():\n    calc.fill(ROWS)\n",
    "returned by a fixture": (
        "import pytest\n\nROWS = [1]\n\n\n@pytest.fixture\ndef rows():\n    return ROWS\n\n\n"
        "def test_it(rows):\n    rows.append(2)\n"
    ),
    "of the code": "import calc\n\nROWS = calc.rows()\n\n\ndef test_it():\n    calc.fill(calc.ROWS)\n",
    "imported later": "def test_it():\n    global json\n    import json\n",
    "a list of a class": "class TestIt:\n    seen = []\n\n    def test_it(self):\n        self.seen.append(1)\n",
    "its own name of a built-in": "from calc import len\n\n\ndef test_it():\n    assert len([]) == 7\n",
}
"""Test modules whose values change, or have other names than usual, without any tampering."""


@pytest.mark.integration
@pytest.mark.parametrize("kind", others_later(ITS_OWN, {"changed by a test"}))
def test_a_test_module_may_change_its_own_values(tmp_path: Path, kind: str) -> None:
    code = "ROWS = [1]\n\n\ndef rows():\n    return ROWS\n\n\ndef fill(rows):\n    rows.append(2)\n\n\ndef len(value):\n    return 7\n"
    lines = lines_of(tmp_path, {"calc.py": code, "test_it.py": ITS_OWN[kind]})
    assert [line for line in lines if line[0] == "forged" and "test_it" in line[1]] == []
    assert [line[2] for line in lines if line[0] == "result"] == ["passed"]


READERS = """\
from pathlib import Path
def seek(): return next(Path().rglob("sum*")).read_text()
def load(path): return open(path).read()
class Loader:
    def __init__(self, folder): self.folder = folder
    def load(self): return load(self.folder / "sum.txt")
def helped(): return load("tests/sum.txt")
class Broken:
    @property
    def __class__(self): raise RuntimeError
    def __fspath__(self): raise RuntimeError
def survive(value): return open("tests/sum.txt").read()
"""
READING = """\
from pathlib import Path
import calc
HERE = Path(__file__).parent
def test_seek(): calc.seek()
def test_load(): calc.load(HERE / "sum.txt"), calc.load("tests/sum.txt"), calc.Loader(HERE).load()
def test_helped(): calc.helped()
def test_broken(): assert calc.survive(calc.Broken()) == "5"
def test_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert (HERE / "sum.txt").read_text() == "5"
    monkeypatch.chdir(HERE.parent)
def test_own(): (HERE / "sum.txt").read_text()
"""


@pytest.mark.integration
def test_code_that_finds_a_file_of_the_tests_is_noted(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "calc.py": READERS,
            "tests/sum.txt": "5",
            "tests/test_calc.py": READING,
            "conftest.py": "import sys\nsys.path.insert(0, '.')\n",
        },
    )
    subprocess.run([sys.executable, "-c", CHILD], cwd=tmp_path, check=True, capture_output=True)
    lines = json.loads((tmp_path / "lines.json").read_text())
    opened = {tuple(line[1:]) for line in lines if line[0] == "reached"}
    assert opened == {("calc.py", "2", "open"), ("calc.py", "3", "open"), ("calc.py", "7", "open")}
    assert sum(line[0] == "result" and line[2] == "passed" for line in lines) == 6
