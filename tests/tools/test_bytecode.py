"""The bytecode of one tree serves the test runs of similar trees, and never stands for a changed source."""

from __future__ import annotations

import base64
import compileall
import json
import marshal
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from m3agent.tools.in_sandbox.bytecode import collect, lay, source_of
from tests.agent.repositories import write_files
from tests.conftest import later

FILES = {
    "calc.py": "def add(a, b):\n    return a + b\n",
    "pkg/__init__.py": "",
    "pkg/inner.py": "NUMBER = 3\n",
    "test_calc.py": "from calc import add\nfrom pkg.inner import NUMBER\n\ndef test_add():\n    assert add(1, 2) == NUMBER\n",
}
CHILD = """\
import json, pathlib, sys
from m3agent.tools.in_sandbox import runner
lines = []
runner.main(lambda *line: lines.append(line), {"framework": "pytest", "limit": 60, "targets": ["."], **json.loads(sys.argv[1])})
pathlib.Path(sys.argv[2]).write_text(json.dumps([line for line in lines if line[0] == "result"]))
"""


def run(folder: Path, **request: str) -> dict[str, str]:
    """Run the tests of a folder in a process of their own; return the outcomes by id."""
    results = folder.with_suffix(".results")
    command = [sys.executable, "-c", CHILD, json.dumps(request), str(results)]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
    return {ident: outcome for _, ident, outcome, *_ in json.loads(results.read_text())}


def made(folder: Path, files: dict[str, str]) -> Path:
    write_files(folder, files)
    return folder


@pytest.fixture
def packed(tmp_path: Path) -> str:
    """The bytecode of a run in the folder `tree`, in base64. The folder is then renamed to `first`."""
    kept = tmp_path / "kept"
    assert run(made(tmp_path / "tree", FILES), keep=str(kept)) == {"test_calc.py::test_add": "passed"}
    (tmp_path / "tree").rename(tmp_path / "first")
    return base64.b64encode(kept.read_bytes()).decode()


def paths_of(packed: str) -> set[str]:
    return set(json.loads(zlib.decompress(base64.b64decode(packed)))[1])


def with_minus(packed: str, tmp_path: Path) -> str:
    """Return the bytecode with code that subtracts in the place of `add`, which shows whether it is what runs."""
    root, found = json.loads(zlib.decompress(base64.b64decode(packed)))
    (path,) = (path for path in found if "calc" in path and "test" not in path)
    other = made(tmp_path / "other", {"calc.py": FILES["calc.py"].replace("+", "-")}) / "calc.py"
    code = compile(other.read_text(), "calc.py", "exec")
    header = base64.b64decode(found[path][1])[:16]
    found[path][1] = base64.b64encode(header + marshal.dumps(code)).decode()
    return base64.b64encode(zlib.compress(json.dumps([root, found]).encode())).decode()


@pytest.mark.integration
def test_modules_and_rewritten_tests_are_kept(packed: str) -> None:
    assert {source_of(path) for path in paths_of(packed)} == {f"./{name}" for name in FILES}
    assert any("-pytest-" in path for path in paths_of(packed))


@pytest.mark.integration
@pytest.mark.parametrize(("folder", "outcome"), [("tree", "failed"), later("elsewhere", "passed")])
def test_kept_bytecode_runs_only_at_its_own_path(
    packed: str, tmp_path: Path, folder: str, outcome: str
) -> None:
    """Code from another path looks to the guard like a module that took the place of a test file."""
    changed = with_minus(packed, tmp_path)
    assert run(made(tmp_path / folder, FILES), bytecode=changed) == {"test_calc.py::test_add": outcome}


@pytest.mark.slow  # quick: the other tests of this module
@pytest.mark.parametrize("same_time", [True, False])
def test_a_changed_source_is_compiled_again(packed: str, tmp_path: Path, same_time: bool) -> None:
    """Also if its size and its time are the same."""
    files = {**FILES, "calc.py": FILES["calc.py"].replace("+", "-")}
    second = made(tmp_path / "tree", files)
    if same_time:
        when = (tmp_path / "first/calc.py").stat().st_mtime_ns
        os.utime(second / "calc.py", ns=(when, when))
    assert run(second, bytecode=packed) == {"test_calc.py::test_add": "failed"}
    assert not list(second.glob("__pycache__/calc.*"))


@pytest.mark.integration
def test_runs_leave_no_bytecode_unless_they_keep_it(tmp_path: Path) -> None:
    folder = made(tmp_path / "first", FILES)
    run(folder)
    assert not list(folder.rglob("*.pyc"))


def test_bytecode_whose_source_has_changed_since_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path / "first", FILES)
    assert compileall.compile_dir(folder, quiet=2)
    (folder / "calc.py").write_text("CHANGED = True\n")
    monkeypatch.chdir(folder)
    collect("kept")
    packed = base64.b64encode((folder / "kept").read_bytes()).decode()
    assert {source_of(path) for path in paths_of(packed)} == {f"./{name}" for name in FILES} - {"./calc.py"}
    for path in paths_of(packed):
        Path(path).unlink()
    Path("pkg/inner.py").unlink()
    lay(packed)
    assert sorted(path.name.partition(".")[0] for path in folder.rglob("*.pyc")) == [
        "__init__",
        "calc",
        "test_calc",
    ]


def test_damaged_bytecode_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made(tmp_path / "first", FILES))
    for damaged in (b"", b"x", zlib.compress(b"{"), zlib.compress(b"{}")[:-3], zlib.compress(b"3")):
        lay(base64.b64encode(damaged).decode())
    assert not list(Path().rglob("*.pyc"))


@pytest.mark.parametrize(
    "path", ["a.py", "a.pyc", "pkg/a.cpython-311.pyc", "__pycache__/a.pyc", "__pycache__/a.so"]
)
def test_other_files_are_no_bytecode(path: str) -> None:
    assert source_of(path) == ""
