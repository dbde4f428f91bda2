"""The guard's canaries: tests that cannot pass, and that fail for the reason that real tests fail for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from m3agent.tools.in_sandbox import guard
from tests.conftest import write_files

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


@pytest.mark.integration
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
