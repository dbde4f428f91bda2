"""Which functions each test executes: real runs of the runner, in a real sandbox and with newer versions of Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from m3agent.tools.execution_map import ExecutionMap, Recording
from m3agent.tools.in_sandbox import bootstrap, runner
from m3agent.tools.report_reader import read_report
from m3agent.tools.run_tests import Selection, run_in_sandbox, standard_input
from m3agent.tools.test_report import TestReport
from m3agent.util.portable_source import portable_text
from tests.agent.repositories import write_files
from tests.tools.bench import Bench
from tests.tools.report_lines import KEY
from tests.tools.test_test_runner import EVERY_KIND

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOW = Recording()
"""From the first test on."""
LATER = Recording(after=1e-9, above=1e-9)
"""From the second test on."""

PROJECT = {
    "pkg/__init__.py": "",
    "pkg/lib.py": """\
def plain(): return helper()
def helper(): return 1
def one(): pass
def two(): pass
def for_class(): helper()
def for_session(): helper()
def asked_for(): pass
def at_setup(): pass
def in_thread(): pass
def in_process(): pass
def in_generator(): yield helper()
def shared(): pass
def unused(): pass
class Thing:
    def __init__(self): self.method()
    def method(self): pass
""",
    # code objects are equal even if their files differ
    "pkg/twin_a.py": "def twin(): pass\n",
    "pkg/twin_b.py": "def twin(): pass\n",
    ".venv/installed.py": "def installed(): pass\n",
    "conftest.py": """\
import sys
import pytest
from pkg import lib
sys.path.append(".venv")
@pytest.fixture(scope="session")
def whole(): lib.for_session()
@pytest.fixture(scope="session")
def dynamic(): lib.asked_for()
@pytest.fixture(scope="module")
def asks(request): request.getfixturevalue("dynamic")
@pytest.fixture(scope="module")
def late(): lib.shared()
@pytest.fixture(scope="module")
def spawns():
    import subprocess
    subprocess.run(["true"])
""",
    "test_a.py": """\
import os, subprocess, sys, threading, unittest
import pytest
import installed
from pkg import lib, twin_a, twin_b
def test_plain():
    installed.installed()
    lib.plain()
def test_again(): lib.plain()
@pytest.mark.parametrize("name", ["one", "two"])
def test_many(name): getattr(lib, name)()
@pytest.fixture(scope="class")
def of_class(): lib.for_class()
class TestGroup:
    def test_first(self, of_class): pass
    def test_second(self, of_class): pass
    def test_without(self): pass
def test_session_first(whole): pass
def test_session_last(whole): pass
def test_dynamic(dynamic): pass
def test_asks_first(asks): pass
def test_asks_last(asks): pass
def test_early_and_late(request):
    lib.shared()
    request.getfixturevalue("late")
def test_late(late): pass
def test_by_name(request): request.getfixturevalue("whole")
class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls): lib.at_setup()
    def test_one(self): pass
    def test_two(self): lib.Thing()
def test_thread():
    thread = threading.Thread(target=lib.in_thread)
    thread.start()
    thread.join()
def test_generator(): next(lib.in_generator())
def test_process(): subprocess.run([sys.executable, "-c", "from pkg import lib; lib.in_process()"])
def test_system(): os.system("true")
def test_spawn(): os.posix_spawn("/bin/true", ["true"], os.environ)
def test_fork():
    if not os.fork(): os._exit(0)
def test_spawns_first(spawns): pass
def test_spawns_last(spawns): pass
def test_traces():
    sys.settrace(None)
    lib.two()
def test_after(): lib.one()
def test_twin_a(): twin_a.twin()
def test_both_twins():
    twin_a.twin()
    twin_b.twin()
""",
}

EXECUTED = {
    "plain": {"test_plain", "test_again"},
    "helper": {
        "test_plain",
        "test_again",
        "TestGroup::test_first",
        "TestGroup::test_second",
        "test_session_first",
        "test_session_last",
        "test_by_name",
        "test_generator",
    },
    "one": {"test_many[one]", "test_after"},
    "for_class": {"TestGroup::test_first", "TestGroup::test_second"},
    "for_session": {"test_session_first", "test_session_last", "test_by_name"},
    "asked_for": {"test_dynamic", "test_asks_first", "test_asks_last"},
    "at_setup": {"Case::test_one", "Case::test_two"},
    "Thing.__init__": {"Case::test_two"},
    "Thing.method": {"Case::test_two"},
    "in_thread": {"test_thread"},
    "in_generator": {"test_generator"},
    "shared": {"test_early_and_late", "test_late"},
    "unused": set(),
    "installed": set(),
    "Thing": set(),
    "<module>": set(),
}

ELSEWHERE = {
    "test_process",
    "test_system",
    "test_spawn",
    "test_fork",
    "test_spawns_first",
    "test_spawns_last",
}
"""Tests with other processes."""


def mapped(report: TestReport | ExecutionMap | None) -> ExecutionMap:
    found = report.executed if isinstance(report, TestReport) else report
    assert found is not None
    return found


def executing(found: ExecutionMap, name: str, file: str = "") -> set[str]:
    """Return which tests execute the functions with this name."""
    ids = found.tests_that_execute(lambda path, line, known: known == name and path.endswith(file))
    return {ident.removeprefix("test_a.py::") for ident in ids}


def elsewhere(found: ExecutionMap) -> set[str]:
    return {ident.removeprefix("test_a.py::") for ident in found.elsewhere}


def check(found: ExecutionMap) -> None:
    assert {name: executing(found, name) for name in EXECUTED} == EXECUTED
    assert executing(found, "twin", "twin_a.py") == {"test_twin_a", "test_both_twins"}
    assert executing(found, "twin", "twin_b.py") == {"test_both_twins"}
    assert ("pkg/lib.py", 2, "helper") in found.functions
    assert len(found.executed) == PROJECT["test_a.py"].count("def test_") + 1


async def test_what_each_test_executes(bench: Bench) -> None:
    await bench.put(PROJECT)
    report = await run_in_sandbox(bench.sandbox, record=NOW)
    assert (report.red, report.complete) == (set(), True)
    found = mapped(report)
    check(found)
    monitors = await bench.sandbox.exec(
        ["python3", "-c", "import sys; sys.exit(not hasattr(sys, 'monitoring'))"]
    )
    if monitors.exit == 0:
        assert elsewhere(found) == ELSEWHERE
        assert executing(found, "two") == {"test_many[two]", "test_traces"}
    else:  # what runs after `settrace(None)` is not seen, so the test is marked; the next one is recorded again
        assert elsewhere(found) == ELSEWHERE | {"test_traces"}
        assert executing(found, "two") == {"test_many[two]"}


@pytest.mark.slow
async def test_recording_begins_late(bench: Bench) -> None:
    """Fixtures that were set up before count for later tests, and threads that started before are not seen."""
    await bench.put(
        {
            **PROJECT,
            "test_a.py": "from pkg import lib\n"
            "def test_first(whole, asks): lib.one()\n"
            "def test_second(whole, asks): lib.two()\n"
            "def test_third(): lib.one()\n",
        }
    )
    found = mapped(await run_in_sandbox(bench.sandbox, record=LATER))
    assert set(found.executed) == {"test_a.py::test_second", "test_a.py::test_third"}
    assert executing(found, "for_session") == executing(found, "asked_for") == {"test_second"}
    assert found.elsewhere == ()
    assert executing(found, "one") == {"test_third"}
    never = await run_in_sandbox(bench.sandbox, record=Recording(after=0, above=1e6))
    assert (never.executed, len(never.passed)) == (None, 3)
    unasked = await run_in_sandbox(bench.sandbox)
    assert (unasked.executed, len(unasked.passed)) == (None, 3)


WAITING = """\
import threading
from pkg import lib
go, done, end = threading.Event(), threading.Event(), threading.Event()
def work():
    go.wait()
    lib.in_thread()
    done.set()
    end.wait()
thread = threading.Thread(target=work)
def test_starts(): thread.start()
def test_uses():
    go.set()
    assert done.wait(20)
def test_ends():
    end.set()
    thread.join()
def test_alone(): pass
"""


@pytest.mark.slow
async def test_threads_that_started_before_the_recording(bench: Bench) -> None:
    await bench.put({**PROJECT, "test_a.py": WAITING})
    found = mapped(await run_in_sandbox(bench.sandbox, record=LATER))
    # either the tracer sees all threads, or the test's record is marked as incomplete
    assert executing(found, "in_thread") | elsewhere(found) == {"test_uses"}
    found = mapped(await run_in_sandbox(bench.sandbox, record=NOW))
    assert (executing(found, "in_thread"), elsewhere(found)) == ({"test_uses"}, set())


@pytest.mark.slow
async def test_recording_changes_no_outcome(bench: Bench) -> None:
    recursion = """\
import sys
import pytest
def deep(n): return n and 1 + deep(n - 1)
def test_deep(): assert deep(500) == 500
def test_too_deep():
    with pytest.raises(RecursionError): deep(10 ** 6)
def test_clean(): assert sys.getprofile() is None
"""
    await bench.put({"test_a.py": EVERY_KIND, "test_b.py": recursion})
    plain = await run_in_sandbox(bench.sandbox)
    recorded = await run_in_sandbox(bench.sandbox, record=NOW)
    assert recorded.sets == plain.sets
    assert recorded.complete
    assert set(mapped(recorded).executed) == recorded.ids
    assert "test_b.py::test_too_deep" in recorded.passed
    assert "test_b.py::test_deep" in mapped(recorded).tests_that_execute(
        lambda path, line, name: name == "deep"
    )


async def test_time_limits_of_recorded_tests(bench: Bench) -> None:
    """Recording slows tests, so they may take longer, but an endless one still ends."""
    source = """\
import signal
from pkg import lib
def test_left(): raise OSError("left=%g" % signal.getitimer(signal.ITIMER_REAL)[0])
def test_endless():
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    while True: lib.one()
def test_next(): lib.one()
"""
    await bench.put({**PROJECT, "test_a.py": source})

    async def left(record: Recording | None) -> float:
        report = await run_in_sandbox(bench.sandbox, record=record)
        assert report.passed == ("test_a.py::test_next",)
        assert "timed out" in report.errors["test_a.py::test_endless"]
        if record:
            assert "test_next" in executing(mapped(report), "one")
        found = re.search(r"left=([\d.]+)", report.errors["test_a.py::test_left"])
        assert found is not None
        return float(found[1])

    assert 0 < await left(None) <= 10
    assert 20 < await left(NOW) <= 40


AT_IMPORT = {
    "pkg/__init__.py": "",
    "pkg/lib.py": """\
def shared(): helper()
def helper(): pass
def of_module(): pass
def of_first(): helper()
def of_both(): pass
def of_test_helper(): pass
def of_case(): pass
def of_parameters(): return [1]
def of_name(value): return str(value)
def unused(): pass
""",
    "pkg/late.py": "from pkg import lib\nlib.of_module()\nlib.of_both()\n",
    "conftest.py": "from pkg import lib\nlib.shared()\n",
    "helpers.py": "from pkg import lib\nlib.of_test_helper()\n",
    "test_a.py": """\
import pytest
from pkg import lib
VALUE = lib.of_both()
from pkg import late
lib.of_first()
class Test:
    lib.of_case()
    @pytest.mark.parametrize("value", lib.of_parameters(), ids=lib.of_name)
    def test_one(self, value): lib.unused()
""",
    "test_b.py": "import helpers\nfrom pkg import lib\nlib.of_both()\ndef test_two(): pass\n",
    "test_c.py": "from test_b import lib\nlib.of_first()\ndef test_three(): pass\n",
}


def check_imports(found: ExecutionMap) -> None:
    names = {
        ident: {name for path, _, name in found.functions_of(ident) if path == "pkg/lib.py"}
        for ident in found.executed
    }
    assert names == {
        ".": {"of_module", "of_both", "of_test_helper"},
        "conftest.py": {"shared", "helper"},
        "test_a.py": {"of_both", "of_first", "helper", "of_case", "of_parameters", "of_name"},
        "test_b.py": {"of_both"},
        "test_c.py": {"of_first", "helper"},
    }


async def test_what_runs_while_the_tests_are_imported(bench: Bench) -> None:
    """Only the collection shows it. What the body of a test file calls belongs to this file's tests."""
    await bench.put(AT_IMPORT)
    check_imports(mapped(await run_in_sandbox(bench.sandbox, framework="collect", record=NOW)))


JUMP = """\
import gc
from pkg import lib
def test_one(): pass
def test_jumps():
    [runner] = {type(found) for found in gc.get_objects() if hasattr(type(found), "resume_clock")}
    now = runner.now
    runner.now = staticmethod(lambda: now() + 1800)
def test_three(): pass
"""
"""The second test puts the runner's clock forward."""


@pytest.mark.slow
async def test_no_test_starts_after_the_time(bench: Bench) -> None:
    await bench.put({**PROJECT, "test_a.py": JUMP})
    names = [f"test_a.py::test_{name}" for name in ("jumps", "one", "three")]
    report = await run_in_sandbox(bench.sandbox, Selection(seconds=1000))
    assert (list(report.passed), report.stopped, report.complete) == (names[:2], True, False)
    assert (report.red, report.timed_out) == (set(), False)
    none = await run_in_sandbox(bench.sandbox, Selection(seconds=0))
    assert (none.ran, none.stopped, none.complete) == (0, True, False)
    in_time = await run_in_sandbox(bench.sandbox, Selection(seconds=3600))
    assert (list(in_time.passed), in_time.stopped, in_time.complete) == (names, False, True)
    last = await run_in_sandbox(bench.sandbox, Selection(seconds=1000, skip=[names[2]]))
    assert (list(last.passed), last.stopped, last.complete) == (names[:2], False, True), "no test was left"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skip", "only", "ran"),
    [
        (["test_a.py::test_many"], [], {"test_one", "Group::test_x", "Group::test_y"}),
        (["test_a.py::test_many[2]", "test_a.py::TestGroup"], [], {"test_one", "test_many[1]"}),
        (["test_a.py"], [], set()),
        (["test_a.py::TestGroup::test_x"], ["test_a.py::TestGroup"], {"Group::test_y"}),
        (["test_b.py", "test_one"], ["test_a.py::test_one"], {"test_one"}),
    ],
    ids=["function", "parameter and class", "file", "of some only", "unknown"],
)
async def test_skipped_ids(bench: Bench, skip: list[str], only: list[str], ran: set[str]) -> None:
    await bench.put(
        {
            "test_a.py": "import pytest\n"
            "def test_one(): pass\n"
            "@pytest.mark.parametrize('n', [1, 2])\n"
            "def test_many(n): pass\n"
            "class TestGroup:\n    def test_x(self): pass\n    def test_y(self): pass\n"
        }
    )
    report = await run_in_sandbox(bench.sandbox, Selection(skip=skip, only=only))
    assert {ident.removeprefix("test_a.py::").removeprefix("Test") for ident in report.passed} == ran


@cache
def newer_python() -> str | None:
    """Return a Python of this machine that has `sys.monitoring`."""
    names = [f"python3.{minor}" for minor in range(12, 16)]
    installed = sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python"))
    root = (
        sorted(Path("/root/.pyenv/versions").glob("3.1[2-9]*/bin/python"))
        if os.access("/root", os.X_OK)
        else []
    )
    for path in (sys.executable, *map(shutil.which, names), *map(str, [*installed, *root])):
        if path is not None:
            test = [path, "-c", "import sys; sys.exit(not hasattr(sys, 'monitoring'))"]
            if subprocess.run(test, check=False, capture_output=True).returncode == 0:
                return path
    return None


@pytest.fixture
def newer(tmp_path: Path) -> tuple[str, dict[str, str]]:
    """Return a newer Python, and variables with which it has this environment's pytest."""
    python = newer_python()
    if python is None:
        pytest.skip("no Python 3.12 or later on this machine: only it has sys.monitoring")
    packages = tmp_path / "packages"
    packages.mkdir()
    here = Path(pytest.__file__).parents[1]
    for name in ("pytest", "_pytest", "py.py", "pluggy", "iniconfig", "packaging", "pygments"):
        (packages / name).symlink_to(here / name)  # none has compiled parts
    return python, {**os.environ, "PYTHONPATH": str(packages)}


def run_with(newer: tuple[str, dict[str, str]], folder: Path, **given: object) -> ExecutionMap:
    report = folder / "report"
    python, environment = newer
    request = {"framework": "pytest", "limit": 20, "targets": ["."], **given}
    done = subprocess.run(
        [python, "-c", portable_text(bootstrap)],
        cwd=folder / "tree",
        env=environment,
        input=standard_input(runner, request, str(report), KEY),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return mapped(read_report(report.read_bytes(), KEY).executed)


@pytest.mark.slow
@pytest.mark.integration
async def test_what_each_test_executes_with_a_newer_python(
    newer: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    write_files(tmp_path / "tree", PROJECT)
    found = run_with(newer, tmp_path, record={"after": 0, "above": 0})
    check(found)
    assert elsewhere(found) == ELSEWHERE
    assert executing(found, "two") == {"test_many[two]", "test_traces"}


@pytest.mark.integration
async def test_what_runs_while_the_tests_are_imported_by_a_newer_python(
    newer: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    write_files(tmp_path / "tree", AT_IMPORT)
    check_imports(run_with(newer, tmp_path, framework="collect", record={"after": 0, "above": 0}))


@pytest.mark.integration
async def test_lost_tool_of_a_newer_python(newer: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    """A test that takes the tool away is marked. Without a free tool, nothing is recorded."""
    source = """\
import sys
from pkg import lib
def test_first(): lib.one()
def test_loses():
    for tool in (3, 4):
        if sys.monitoring.get_tool(tool): sys.monitoring.free_tool_id(tool)
def test_next(): lib.one()
def test_takes():
    for tool in (3, 4):
        if sys.monitoring.get_tool(tool): sys.monitoring.free_tool_id(tool)
        sys.monitoring.use_tool_id(tool, "mine")
def test_last(): lib.one()
"""
    write_files(tmp_path / "tree", {**PROJECT, "test_a.py": source})
    found = run_with(newer, tmp_path, record={"after": 0, "above": 0})
    assert executing(found, "one") == {"test_first", "test_next"}
    assert elsewhere(found) == {"test_loses", "test_takes"}
    assert "test_a.py::test_last" not in found.executed
