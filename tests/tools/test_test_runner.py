"""`test_runner` in a real sandbox: results of real pytest and unittest for each kind of test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from m3agent.sandbox.backends.factory import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.base import MOST_CHARACTERS, ToolResult
from m3agent.tools.in_sandbox.runner import PytestPlugin
from m3agent.tools.registry import Toolset
from m3agent.tools.run_tests import Framework, Selection, run_in_sandbox
from m3agent.tools.test_report import TestReport
from m3agent.tools.test_runner import KNOWN, LEFT_OUT, OTHER_ERROR, SAME_ERROR
from tests.conftest import TIME_LIMITS, later
from tests.tools.bench import Bench

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERY_KIND = """\
import unittest
import pytest

def test_passes(): pass
def test_fails(): assert [1, 2] == [1, 3]
def test_raises(): {}['missing']
@pytest.fixture
def broken(): raise OSError('no such device')
def test_setup_fails(broken): pass
@pytest.fixture
def late():
    yield
    raise OSError('cannot clean up')
def test_teardown_fails(late): pass
@pytest.mark.skip(reason='not here')
def test_skipped(): assert 0
def test_skips_itself(): pytest.skip('not now')
@pytest.mark.xfail
def test_expected_to_fail(): assert 0
@pytest.mark.xfail
def test_passes_unexpectedly(): pass
@pytest.mark.xfail(strict=True)
def test_must_fail(): pass
@pytest.mark.parametrize('n', [1, 2, 'a b', 'x::y'])
def test_many(n): assert n != 2
class TestGroup:
    def test_inside(self): assert 0, 'inside'
class Case(unittest.TestCase):
    def test_sub(self):
        for n in range(4):
            with self.subTest(n=n):
                self.assertNotIn(n, (1, 2))
    def test_fine(self): self.assertTrue(True)
    @unittest.skip('no')
    def test_left_out(self): pass
    @unittest.expectedFailure
    def test_known(self): self.fail()
class Unready(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError('no database')
    def test_one(self): pass
    def test_two(self): pass
"""


def sets(result: ToolResult) -> dict[str, set[str]]:
    return {
        name: {ident.rpartition("/")[2] for ident in result.data[name]}
        for name in ("passed", "failed", "errored", "skipped")
        if result.data[name]
    }


async def test_tests_of_a_submodule_run_only_if_they_are_named(bench: Bench) -> None:
    await bench.put(
        {"libs/sub/test_sub.py": "def test_sub(): pass\n", "test_root.py": "def test_root(): pass\n"}
    )
    with bench.submodule("libs/sub"):
        for target, passed in ((".", "test_root.py::test_root"), ("libs/sub", "test_sub.py::test_sub")):
            assert sets(await bench.call("test_runner", target=target)) == {"passed": {passed}}


async def test_pytest_every_kind(bench: Bench) -> None:
    await bench.put(
        {
            "tests/test_all.py": EVERY_KIND,
            "tests/test_syntax.py": "def broken(:\n",
            "tests/test_import.py": "import no_such_module\ndef test_a(): pass\n",
            "tests/test_later.py": "import pytest\npytest.skip('elsewhere', allow_module_level=True)\n",
        }
    )
    result = await bench.call("test_runner", test_file=".")
    file = "test_all.py::"
    assert sets(result) == {
        "passed": {
            f"{file}test_passes",
            f"{file}test_passes_unexpectedly",
            f"{file}test_many[1]",
            f"{file}test_many[a b]",
            f"{file}test_many[x::y]",
            f"{file}Case::test_fine",
        },
        "failed": {
            f"{file}test_fails",
            f"{file}test_raises",
            f"{file}test_must_fail",
            f"{file}test_many[2]",
            f"{file}TestGroup::test_inside",
            f"{file}Case::test_sub",
        },
        "errored": {
            f"{file}test_setup_fails",
            f"{file}test_teardown_fails",
            f"{file}Unready::test_one",
            f"{file}Unready::test_two",
            "test_syntax.py",
            "test_import.py",
        },
        "skipped": {
            f"{file}test_skipped",
            f"{file}test_skips_itself",
            f"{file}test_expected_to_fail",
            f"{file}Case::test_left_out",
            f"{file}Case::test_known",
        },
    }
    lines = result.content.splitlines()
    assert lines[0] == "6 passed, 6 failed, 6 errors, 5 skipped"
    assert result.is_error
    assert result.data["complete"]
    for ident, said in (
        ("FAILED tests/test_all.py::test_fails", "    E   assert [1, 2] == [1, 3]"),
        ("FAILED tests/test_all.py::test_raises", "    E   KeyError: 'missing'"),
        (
            "FAILED tests/test_all.py::Case::test_sub",
            "    E   AssertionError: 1 unexpectedly found in (1, 2)",
        ),
        ("ERROR tests/test_all.py::test_setup_fails", "    E   OSError: no such device"),
        ("ERROR tests/test_all.py::test_teardown_fails", "    E   OSError: cannot clean up"),
        ("ERROR tests/test_all.py::Unready::test_one", "    E   RuntimeError: no database"),
        ("ERROR tests/test_import.py", "    E   ModuleNotFoundError: No module named 'no_such_module'"),
        ("ERROR tests/test_syntax.py", "    E   SyntaxError: invalid syntax"),
    ):
        at = lines.index(ident)
        block = lines[at + 1 :]
        end = next((n for n, line in enumerate(block) if not line.startswith("    ")), len(block))
        assert said in block[:end]


async def test_named_tests_are_run(bench: Bench) -> None:
    await bench.put(
        {
            "tests/test_a.py": "class TestA:\n def test_one(self): pass\n def test_two(self): pass\ndef test_three(): pass\n",
            "tests/deep/test_b.py": "def test_four(): pass\n",
            "test_c.py": "def test_five(): pass\n",
        }
    )
    for target, passed in (
        ("tests/test_a.py::TestA::test_two", ["tests/test_a.py::TestA::test_two"]),
        ("/ws/tests/deep", ["tests/deep/test_b.py::test_four"]),
        ("./test_c.py", ["test_c.py::test_five"]),
    ):
        result = await bench.call("test_runner", test_file=target)
        assert result.content == "1 passed, 0 failed, 0 errors, 0 skipped"
        assert result.data["passed"] == passed
        assert (result.is_error, result.exit_code) == (False, 0)


async def test_nothing_to_run(bench: Bench) -> None:
    await bench.put({"test_a.py": "def test_one(): pass\n", "empty/readme.txt": "nothing here\n"})
    for target, said in (
        ("no/such_file.py", "file or directory not found: no/such_file.py"),
        ("test_a.py::test_other", "not found: /ws/test_a.py::test_other"),
        ("empty", "no tests ran"),
        ("test_a.py -k x", "1 deselected"),
    ):
        result = await bench.call("test_runner", test_file=target)
        assert result.content.startswith("0 passed, 0 failed, 0 errors, 0 skipped\nno tests ran")
        assert ".\nThe runner said:\n" in result.content
        assert said in result.content
        assert "once more" not in result.content
        assert result.is_error


@pytest.mark.slow
async def test_a_wrong_path_or_id_gets_near_ones(bench: Bench) -> None:
    case = "import unittest\nclass MoreTests(unittest.TestCase):\n    def test_one(self): pass\n"
    await bench.put({"pytest.ini": "[pytest]\naddopts = -v\n", "tests/test_more.py": case, "more.py": ""})
    for target, near in (
        ("tests/test_more.py::More", "Near ids:\n- tests/test_more.py::MoreTests\n"),
        ("tests/test_more.py::MoreTests::test_on", "Near ids:\n- tests/test_more.py::MoreTests::test_one\n"),
        ("tests/test_more.py::zzz", "tests/test_more.py defines 2 classes and tests, such as:\n"),
        ("test/test_mor.py::MoreTests", "Near files:\n- tests/test_more.py\n"),
        ("more.py", "more.py defines no tests. Near files:\n- tests/test_more.py\n"),
    ):
        result = await bench.call("test_runner", test_file=target)
        assert near in f"{result.content}\n"
        assert "once more" not in result.content
        assert result.is_error
    result = await bench.call("test_runner", test_file="tests/test_more.py::More", framework="unittest")
    assert result.content.endswith("Near ids:\n- tests/test_more.py::MoreTests")
    await bench.put({"conftest.py": "import no_such_module\n"})
    for target in ("tests/test_more.py::MoreTests", "tests/test_more.py", "tests"):
        result = await bench.call("test_runner", test_file=target)
        assert "No module named 'no_such_module'" in result.content
        assert "such as" not in result.content
        assert "Near" not in result.content


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"test_file": "--help"}, "test_file takes a path or node id, not options: --help"),
        ({"test_file": "./-p"}, "test_file takes a path or node id, not options: -p"),
        ({"test_file": ".git/x"}, ".git/x: git's own folder cannot be touched"),
        (
            {},
            "test_runner: test_file: field required. Its arguments: test_file: string, framework: string = '', timeout: ",
        ),
        (
            {"test_file": ".", "framework": "nose"},
            "test_runner: this repository has no tests of 'nose': leave framework out, or give one of pytest",
        ),
        (
            {"test_file": ".", "timeout": 1801},
            "test_runner: timeout: input should be less than or equal to 1800",
        ),
        ({"test_file": ["a", 1]}, "test_runner: test_file: input should be a valid string"),
    ],
)
async def test_wrong_arguments(bench: Bench, arguments: dict[str, object], said: str) -> None:
    result = await bench.call("test_runner", **arguments)
    assert result.is_error
    assert result.content.startswith(f"error: {said}")


HANGING = {
    "loop": "def test_a_loop():\n    while True: pass\n",
    "swallows": (
        "def test_b_swallows():\n    while True:\n        try: time.sleep(100)\n        except Exception: pass\n"
    ),
    "teardown": (
        "@pytest.fixture\ndef slow_end():\n    yield\n    time.sleep(100)\n"
        "def test_c_teardown(slow_end): pass\n"
    ),
    "subtests": (
        "def test_d_subtests(subtests):\n"
        "    for n in range(2):\n        with subtests.test(n=n): time.sleep(100 * n)\n"
    ),
}


@pytest.mark.parametrize("hanging", [("swallows", "teardown"), later(("loop", "subtests"))])
async def test_hanging_test_takes_only_its_own_limit(bench: Bench, hanging: tuple[str, str]) -> None:
    files = "import time, pytest\n" + "".join(HANGING[name] for name in hanging)
    await bench.put({"test_h.py": files + "def test_e_fine(): pass\n"})
    result = await bench.call("test_runner", test_file=".", timeout=30)
    assert result.data["passed"] == ["test_h.py::test_e_fine"]
    assert len(result.data["failed"]) == 2
    assert result.data["complete"]
    assert result.content.count("timed out after 1 s") >= 2


async def test_hanging_unittest_takes_only_its_own_limit(bench: Bench) -> None:
    unittest = (
        "import time, unittest\nclass T(unittest.TestCase):\n"
        "    def test_a(self):\n        while True: pass\n    def test_b(self): pass\n"
    )
    await bench.put({"test_u.py": unittest})
    result = await bench.call("test_runner", test_file="test_u.py", framework="unittest", timeout=30)
    assert result.data["passed"] == ["test_u.T.test_b"]
    assert result.data["failed"] == ["test_u.T.test_a"]


@pytest.mark.slow
async def test_the_whole_run_over_its_time(bench: Bench) -> None:
    await bench.put(
        {
            "test_a.py": "def test_one(): pass\n",
            "test_b.py": "import signal, time\n"
            "def test_deaf():\n    signal.signal(signal.SIGALRM, signal.SIG_IGN)\n    time.sleep(100)\n"
            "def test_after(): pass\n",
        }
    )
    for limit in TIME_LIMITS[1:]:
        result = await bench.call("test_runner", test_file=".", timeout=limit)
        if result.data["failed"]:
            break
    else:
        pytest.fail("it did not begin")
    assert result.content.startswith(f"1 passed, 1 failed, 0 errors, 0 skipped (timed out after {limit} s")
    assert result.data["failed"] == ["test_b.py::test_deaf"]
    assert f"    timed out after {limit} s" in result.content
    assert (result.data["timed_out"], result.data["complete"]) == (True, False)


async def test_tests_that_end_the_runner(bench: Bench) -> None:
    await bench.put(
        {
            "test_a.py": "import os\ndef test_one(): pass\ndef test_two(): os._exit(3)\ndef test_three(): pass\n",
            "test_b.py": "def test_one(): pass\ndef test_two(): raise KeyboardInterrupt\ndef test_three(): pass\n",
        }
    )
    ended = await bench.call("test_runner", test_file="test_a.py")
    assert ended.content == (
        "1 passed, 1 failed, 0 errors, 0 skipped (the test process ended early with exit code 3)\n"
        "FAILED test_a.py::test_two\n    the test process ended during this test (exit 3)"
    )
    interrupted = await bench.call("test_runner", test_file="test_b.py")
    for result in (ended, interrupted):
        assert len(result.data["passed"]) == 1
        assert [ident.partition("::")[2] for ident in result.data["failed"]] == ["test_two"]
        assert not result.data["complete"], "tests after it did not run"


@pytest.mark.slow
async def test_settings_of_the_repository_that_are_in_the_way(bench: Bench) -> None:
    await bench.put(
        {
            "test_a.py": "def test_one(): assert 0\ndef test_two(): assert 0\ndef test_three(): pass\n",
            "pytest.ini": "[pytest]\naddopts = -x\n",
        }
    )
    first = await bench.call("test_runner", test_file=".")
    assert first.content.startswith("1 passed, 2 failed"), "-x would have ended it at the first"
    await bench.put(
        {
            "pytest.ini": "[pytest]\naddopts = --cov=here -p no_such_plugin\nrequired_plugins = pytest-no-such\n"
        }
    )
    second = await bench.call("test_runner", test_file="test_a.py")
    assert second.content.startswith("1 passed, 2 failed")


# These options have the names and the defaults of pytest-randomly.
SHUFFLES = """\
import random
def pytest_addoption(parser):
    parser.addoption("--randomly-seed", dest="randomly_seed", default="default")
    parser.addoption("--randomly-dont-reorganize", dest="randomly_reorganize", action="store_false", default=True)
def pytest_collection_modifyitems(config, items):
    if config.option.randomly_reorganize:
        items.reverse()
"""
ORDER = "seen = []\ndef test_one(): seen.append(1)\ndef test_two(request): assert not seen, request.config.option.randomly_seed\n"


@pytest.mark.parametrize(
    ("addopts", "seed"), [("", 0), ("--randomly-seed=last", 0), ("--randomly-seed=12", 12)]
)
async def test_a_plugin_that_shuffles_makes_no_two_runs_different(
    bench: Bench, addopts: str, seed: int
) -> None:
    await bench.put(
        {"conftest.py": SHUFFLES, "pytest.ini": f"[pytest]\naddopts = {addopts}\n", "test_a.py": ORDER}
    )
    result = await bench.call("test_runner", test_file="test_a.py")
    assert sets(result) == {"passed": {"test_a.py::test_one"}, "failed": {"test_a.py::test_two"}}
    assert f"AssertionError: {seed}\n" in result.content


async def test_a_collection_reports_what_skips_itself(bench: Bench) -> None:
    await bench.put(
        {"test_a.py": "import pytest\npytest.importorskip('no_such_module')\ndef test_a(): pass\n"}
    )
    report = await run_in_sandbox(bench.sandbox, framework="collect")
    assert report.skipped == ("test_a.py",)
    assert "No module named 'no_such_module'" in report.errors["test_a.py"]


async def test_a_conftest_that_cannot_be_imported(bench: Bench) -> None:
    await bench.put({"conftest.py": "import no_such_module\n", "test_a.py": "def test_one(): pass\n"})
    result = await bench.call("test_runner", test_file=".")
    assert result.is_error
    assert "No module named 'no_such_module'" in result.content


INDESCRIBABLE = """\
import pytest

class Text:
    def toterminal(self, out):
        raise AssertionError("unexpected failure lines")
    __str__ = toterminal

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    done = yield
    if call.excinfo is not None:
        done.get_result().longrepr = Text()
"""


async def test_a_failure_that_pytest_cannot_describe_does_not_end_the_run(bench: Bench) -> None:
    """As some do in pytest 5, which is tested by itself in rows of SWE-bench."""
    tests = "def test_one(): assert 0\ndef test_two(): pass\n"
    await bench.put({"conftest.py": INDESCRIBABLE, "test_a.py": tests})
    report = await run_in_sandbox(bench.sandbox, guarded=())
    assert (report.failed, report.passed) == (("test_a.py::test_one",), ("test_a.py::test_two",))


async def test_an_error_of_pytest_is_named_in_the_text_of_a_failure() -> None:
    class Text:
        reprcrash = SimpleNamespace(message="assert 1 == 2")

        def __str__(self) -> str:
            raise AssertionError

    text = PytestPlugin.text_of(SimpleNamespace(longrepr=Text()))
    assert text.splitlines() == ["pytest cannot describe this failure: AssertionError", "E   assert 1 == 2"]


@pytest.mark.slow  # quick: test_pytest_every_kind
async def test_many_failures_are_listed_and_all_counted(bench: Bench) -> None:
    text = (
        "import pytest\n@pytest.mark.parametrize('n', range(150))\ndef test_a(n): assert n < 0, 'x' * 3000\n"
    )
    await bench.put({"test_m.py": text})
    result = await bench.call("test_runner", test_file=".")
    assert len(result.data["failed"]) == 150
    lines = result.content.splitlines()
    assert len([line for line in lines if line.startswith("FAILED ")]) == 100
    assert "[50 more FAILED not listed]" in lines
    assert len(result.content) <= MOST_CHARACTERS + 100


async def test_the_digest_is_of_what_the_tests_did(bench: Bench) -> None:
    text = (
        "import pytest\nclass Thing: pass\nTHING = Thing()\n"
        "@pytest.mark.parametrize('n', [THING], ids=[repr(THING)])\n"
        "def test_a(n, tmp_path): assert n is None\n"
    )
    await bench.put({"test_d.py": text})
    first = await bench.call("test_runner", test_file=".")
    second = await bench.call("test_runner", test_file=".")
    assert first.digest == second.digest, "addresses and durations differ, what happened does not"
    assert first.data["failed"] == second.data["failed"] == ["test_d.py::test_a[<test_d.Thing object at 0x>]"]
    await bench.put({"test_d.py": text.replace("is None", "is not None")})
    assert (await bench.call("test_runner", test_file=".")).digest != first.digest


async def test_file_name_that_is_not_utf_8(bench: Bench) -> None:
    await bench.put({"test_caf\udce9.py": "def test_a(): assert 0\n"})
    result = await bench.call("test_runner", test_file=".")
    result.content.encode()
    assert result.data["failed"] == ["test_caf\\udce9.py::test_a"]


UNITTEST = """\
import unittest
class Case(unittest.TestCase):
    def test_passes(self): pass
    def test_fails(self): self.assertEqual(1, 2)
    def test_raises(self): {}['missing']
    @unittest.skip('no')
    def test_skipped(self): pass
    @unittest.expectedFailure
    def test_known(self): self.fail()
    @unittest.expectedFailure
    def test_not_known(self): pass
    def test_sub(self):
        for n in range(3):
            with self.subTest(n=n): self.assertNotEqual(n, 1)
class Cleanup(unittest.TestCase):
    def tearDown(self): raise OSError('cannot clean up')
    def test_one(self): pass
class Unready(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError('no database')
    def test_one(self): pass
"""


async def test_unittest_every_kind(bench: Bench) -> None:
    await bench.put(
        {
            "tests/__init__.py": "",
            "tests/help.py": "VALUE = 1\n",
            "tests/test_all.py": "from . import help\n" + UNITTEST,
            "tests/test_import.py": "import no_such_module\n",
        }
    )
    wanted = {
        "passed": {"Case.test_known", "Case.test_passes"},
        "failed": {"Case.test_fails", "Case.test_not_known", "Case.test_sub"},
        "errored": {"Case.test_raises", "Cleanup.test_one", "setUpClass (tests.test_all.Unready)"},
        "skipped": {"Case.test_skipped"},
    }

    def short(result: ToolResult) -> dict[str, set[str]]:
        return {
            name: {ident.removeprefix("tests.test_all.") for ident in result.data[name]} for name in wanted
        }

    # relative imports work however the tests are named
    file = await bench.call("test_runner", test_file="tests/test_all.py", framework="unittest")
    assert short(file) == wanted
    assert "FAILED tests.test_all.Case.test_fails\n" in file.content
    assert "    AssertionError: 1 != 2" in file.content
    assert "    no database" in file.content
    broken = "unittest.loader._FailedTest.tests.test_import"
    for folder in (".", "tests"):
        found = await bench.call("test_runner", test_file=folder, framework="unittest")
        assert short(found) == wanted | {"errored": wanted["errored"] | {broken}}
        assert "No module named 'no_such_module'" in found.content
    one = await bench.call(
        "test_runner", test_file="tests/test_all.py::Case::test_passes", framework="unittest"
    )
    assert one.content == "1 passed, 0 failed, 0 errors, 0 skipped"


async def test_unittest_with_nothing_to_run(bench: Bench) -> None:
    missing = await bench.call("test_runner", test_file="no_such.py", framework="unittest")
    assert missing.is_error
    assert "no_such" in missing.content
    nothing = await bench.call("test_runner", test_file=".", framework="unittest")
    assert nothing.content.startswith("0 passed, 0 failed, 0 errors, 0 skipped\nno tests ran.")


@pytest.mark.parametrize("framework", ["pytest", "unittest"])
async def test_several_targets(bench: Bench, framework: Framework) -> None:
    """Missing targets are skipped. With pytest, ids are those of a run of all tests, even with a pytest.ini below."""
    case = "import unittest\nclass Case(unittest.TestCase):\n    def test_one(self): pass\n"
    names = ["test_a.py", "t/test_b.py", "t/u/test_c.py"]
    await bench.put({**dict.fromkeys(names, case), "t/pytest.ini": "[pytest]\n"})
    two = await run_in_sandbox(
        bench.sandbox, Selection(["./t/test_b.py", "gone.py", "./t/u"]), framework=framework
    )
    ids = {
        "pytest": ("t/test_b.py::Case::test_one", "t/u/test_c.py::Case::test_one"),
        "unittest": ("test_b.Case.test_one", "test_c.Case.test_one"),
    }
    assert (two.passed, two.red, two.complete) == (ids[framework], set(), True)
    none = await run_in_sandbox(bench.sandbox, Selection(["gone.py", "neither.py"]), framework=framework)
    assert none.passed == ()
    assert "gone" in none.output + str(none.errors)


async def test_reports_outside_of_a_call(bench: Bench) -> None:
    await bench.put({"test_a.py": "def test_one(): print('said'); assert 0\n"})
    report = await run_in_sandbox(bench.sandbox)
    assert report.red == {"test_a.py::test_one"}
    assert (report.ran, report.complete, report.exit) == (1, True, 1)
    assert "said" in report.output
    left = await bench.sandbox.exec(["sh", "-c", "ls /tmp/report-*"])
    assert left.exit != 0, "the report is removed"


SOME = """\
import pytest
def test_one(): pass
@pytest.mark.parametrize('n', [1, 'x::y', 'a/b', object()])
def test_many(n): pass
class TestGroup:
    def test_inside(self): pass
    def test_beside(self): pass
"""


@pytest.mark.parametrize(
    ("only", "ran"),
    [
        (["tests/test_a.py::test_one"], {"tests/test_a.py::test_one"}),
        (["tests/test_a.py::test_many[x::y]"], {"tests/test_a.py::test_many[x::y]"}),
        (["tests/test_a.py::TestGroup::test_inside"], {"tests/test_a.py::TestGroup::test_inside"}),
        (
            ["tests/test_a.py::TestGroup", "tests/test_b.py::test_one"],
            {
                "tests/test_a.py::TestGroup::test_inside",
                "tests/test_a.py::TestGroup::test_beside",
                "tests/test_b.py::test_one",
            },
        ),
        (["tests/test_none.py::test_one", "test_one"], set()),
    ],
    ids=["function", "parameter", "method", "class and another file", "unknown"],
)
async def test_some_ids_only(bench: Bench, only: list[str], ran: set[str]) -> None:
    await bench.put({"tests/test_a.py": SOME, "tests/test_b.py": SOME})
    report = await run_in_sandbox(bench.sandbox, Selection(["tests"], only=only))
    assert set(report.passed) == ran
    assert report.complete


@pytest.mark.slow  # quick: test_some_ids_only, test_several_targets
async def test_all_tests_of_a_function_a_file_and_a_folder(bench: Bench) -> None:
    await bench.put({"tests/test_a.py": SOME, "tests/deep/test_b.py": SOME})
    whole = await run_in_sandbox(bench.sandbox)

    async def ran(only: str) -> set[str]:
        return set((await run_in_sandbox(bench.sandbox, Selection(only=[only]))).passed)

    many = {ident for ident in whole.passed if ident.startswith("tests/test_a.py::test_many")}
    assert len(many) == 4
    assert await ran("tests/test_a.py::test_many") == many
    in_file = {ident for ident in whole.passed if ident.startswith("tests/test_a.py")}
    assert await ran("tests/test_a.py") == in_file
    assert await ran("tests/deep") == set(whole.passed) - in_file
    assert await ran(".") == set(whole.passed)
    [unstable] = [ident for ident in many if "0x" in ident or "n3" in ident]
    assert await ran(unstable) == {unstable}


async def test_all_tests_are_those_of_testpaths(bench: Bench) -> None:
    settings = "[pytest]\ntestpaths = tests\n"
    await bench.put({"pytest.ini": settings, "tests/test_a.py": SOME, "bin/test_b.py": "assert 0\n"})
    whole = await run_in_sandbox(bench.sandbox)
    assert whole.complete
    assert {ident.partition("::")[0] for ident in whole.ids} == {"tests/test_a.py"}
    assert "bin/test_b.py" in (await run_in_sandbox(bench.sandbox, Selection(["bin"]))).ids


async def test_the_known_result_of_all_tests_on_an_unchanged_tree(
    workspace_of: Callable[..., Workspace], one_backend: Backend, tmp_path: Path
) -> None:
    asked: list[str] = []
    workspace = workspace_of({"test_a.py": "def test_a(): assert 0, 'why'\n"})

    async with new_sandbox(one_backend, SandboxSpec(one_backend), workspace, print) as sandbox:
        known = await run_in_sandbox(sandbox)

        async def baseline() -> TestReport | None:
            asked.append("baseline")
            return known if len(asked) > 1 else None

        tools = Toolset(sandbox, tmp_path, baseline=baseline)

        async def call(**arguments: object) -> ToolResult:
            return await tools.call("test_runner", {"test_file": ".", **arguments}, 1)

        unknown = await call()
        again = await call()
        assert KNOWN in again.content
        assert KNOWN not in unknown.content
        assert "FAILED test_a.py::test_a" in again.content
        assert "why" in again.content
        assert (again.data, again.is_error, again.digest) == (unknown.data, True, unknown.digest)
        assert again.full_path is None
        asked.append("-")
        for other in ({"test_file": "test_a.py"}, {"framework": "unittest"}):
            assert KNOWN not in (await call(**other)).content
        await sandbox.write("test_a.py", b"def test_a(): pass\n")
        changed = await call()
        assert KNOWN not in changed.content
        assert changed.data["passed"] == ["test_a.py::test_a"]
        assert asked == ["baseline", "baseline", "-"]


async def test_tests_that_were_red_before_the_change_are_marked(
    workspace_of: Callable[..., Workspace], one_backend: Backend, tmp_path: Path
) -> None:
    """Their errors are left out as long as they are the same, unless the call names the test."""
    tests = "import code_a\ndef test_old(): assert 0, 'known'\ndef test_same(): assert code_a.x == 2\n"
    workspace = workspace_of(
        {"test_a.py": f"{tests}def test_new(): assert code_a.x == 1\n", "code_a.py": "x = 1\n"}
    )

    async with new_sandbox(one_backend, SandboxSpec(one_backend), workspace, print) as sandbox:
        before = await run_in_sandbox(sandbox)

        async def baseline() -> TestReport | None:
            return before

        tools = Toolset(sandbox, tmp_path, baseline=baseline)
        await sandbox.write("code_a.py", b"x = 3\n")
        told = await tools.call("test_runner", {"test_file": "test_a.py"}, 1)
        lines = told.content.splitlines()
        assert f"FAILED test_a.py::test_old ({SAME_ERROR})" in lines
        assert f"FAILED test_a.py::test_same ({OTHER_ERROR})" in lines
        assert "FAILED test_a.py::test_new" in lines
        assert "known" not in told.content
        assert "assert 3 == 2" in told.content and "assert 3 == 1" in told.content
        assert told.data["failed"] == [f"test_a.py::test_{name}" for name in ("new", "old", "same")]
        assert lines[-1] == LEFT_OUT
        alone = await tools.call("test_runner", {"test_file": "test_a.py::test_old"}, 2)
        assert SAME_ERROR in alone.content and "known" in alone.content
        assert LEFT_OUT not in alone.content
        await sandbox.write("code_a.py", b"x = 1\n")
        unchanged = await tools.call("test_runner", {"test_file": "test_a.py"}, 3)
        assert "known" in unchanged.content and SAME_ERROR not in unchanged.content


async def test_marks_do_not_wait_long_for_the_known_result(
    workspace_of: Callable[..., Workspace],
    one_backend: Backend,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("m3agent.tools.test_runner.WAIT_FOR_MARKS", 0.01)

    async def never() -> TestReport | None:
        await asyncio.Event().wait()
        return None

    async with new_sandbox(
        one_backend, SandboxSpec(one_backend), workspace_of({"a.py": "x = 1\n"}), print
    ) as sandbox:
        await sandbox.write("test_a.py", b"def test_a(): assert 0, 'why'\n")
        told = await Toolset(sandbox, tmp_path, baseline=never).call("test_runner", {"test_file": "."}, 1)
        assert "why" in told.content and SAME_ERROR not in told.content


async def test_several_paths_an_expression_and_an_id_without_its_class(bench: Bench) -> None:
    tests = "class TestA:\n    def test_x(self): pass\n    def test_y(self): pass\n"
    await bench.put(
        {"t/test_a.py": tests, "t/test_b.py": "def test_z(): pass\n", "t/test_c.py": "def test_z(): pass\n"}
    )
    both = await bench.call("test_runner", test_file="t/test_a.py t/test_b.py")
    assert sorted(both.data["passed"]) == [
        "t/test_a.py::TestA::test_x",
        "t/test_a.py::TestA::test_y",
        "t/test_b.py::test_z",
    ]
    some = await bench.call("test_runner", test_file="t -k 'test_x or test_z'")
    assert sorted(some.data["passed"]) == [
        "t/test_a.py::TestA::test_x",
        "t/test_b.py::test_z",
        "t/test_c.py::test_z",
    ]
    alone = await bench.call("test_runner", test_file="/testbed/t/test_a.py::test_y")
    assert alone.data["passed"] == ["t/test_a.py::TestA::test_y"]
    assert alone.content.splitlines()[-1] == "note: 'test_y' was read as t/test_a.py::TestA::test_y"


TWO_FILES = {"tests/test_a.py": "def test_one(): pass\n", "tests/test_b.py": "def test_two(): pass\n"}


@pytest.mark.parametrize(
    ("target", "passed", "said"),
    [
        ("tests/test_a.py tests/test_c.py", ["tests/test_a.py::test_one"], "tests/test_c.py: no such file"),
        ("tests/test_a.py::test_one tests/no.py", ["tests/test_a.py::test_one"], "tests/no.py: no such file"),
        (
            "tests/test_a.py ./tests/test_b.py::test_tw",
            ["tests/test_a.py::test_one"],
            "NOT RUN tests/test_b.py::test_tw: no test has this id\nNear ids:\n- tests/test_b.py::test_two",
        ),
        ("tests/test_b.py::zzz tests/test_a.py::x", [], "tests/test_a.py::x: no test has this id"),
        (
            ["tests/test_a.py", "tests/test_b.py"],
            ["tests/test_a.py::test_one", "tests/test_b.py::test_two"],
            "",
        ),
        ("tests.test_a.test_one tests.no.T", ["tests/test_a.py::test_one"], "tests.no.T: no such file"),
    ],
)
async def test_a_target_that_names_nothing_is_named_once(
    bench: Bench, target: str | list[str], passed: list[str], said: str
) -> None:
    await bench.put(TWO_FILES)
    result = await bench.call("test_runner", test_file=target)
    assert result.data["passed"] == passed
    assert result.content.count("NOT RUN") == bool(said) + ("zzz tests/test_a" in target)
    assert said in result.content
    assert "not found" not in result.content
