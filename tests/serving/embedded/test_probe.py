"""The probe as a real process on real trees: hostile tests, hostile candidates, and an unchanged work tree."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from m3agent.serving.embedded.probe.tree import is_test, listing
from tests.conftest import later
from tests.serving.embedded.workbench import Workbench

pytestmark = [pytest.mark.integration, pytest.mark.linux]  # the probe runs in a sandbox

MODULE = """
def half(n):
    return n // 3


def other(n):
    return n
"""
TESTS = """
from m import half, other


def test_half():
    assert half(4) == 2


def test_half_of_big():
    assert half(100) == 50


def test_other():
    assert other(1) == 1
"""


def tree(folder: Path, module: str = MODULE, tests: str = TESTS, **more: str) -> Workbench:
    return Workbench.of(folder, {"m.py": dedent(module), "test_m.py": dedent(tests), **more})


def snapshot(bench: Workbench) -> dict[str, bytes]:
    return {path: (bench.root / path).read_bytes() for path in listing(str(bench.root))}


def test_spectrum_tells_lines_tests_and_tracebacks(tmp_path: Path) -> None:
    found = tree(tmp_path).spectrum()
    assert sorted(found["failed_ids"]) == ["test_m.py::test_half", "test_m.py::test_half_of_big"]
    assert found["passed"] == 1
    assert found["whole"] and found["private"]
    assert found["traced"] == [2, 1]
    assert [2 + 1, 2, 0, []] in found["lines"]["m.py"]
    assert found["watching"] == ["test_m.py::test_other"]
    assert found["kinds"]["m.py:2"] == {"n": ["int"]}
    assert found["failed"][0][4][-1][0] == "test_m.py"
    assert len(found["groups"]) <= 2


def test_judge_tells_candidates_apart(tmp_path: Path) -> None:
    bench = tree(tmp_path)
    before = snapshot(bench)
    found = bench.spectrum()
    right = MODULE.replace("// 3", "// 2")
    candidates = [
        MODULE.replace("// 3", "// 4"),
        right,
        right.replace("return n\n", "return 0\n"),
        MODULE.replace("return n // 3", "return 2"),
        MODULE.replace("return n // 3", "return ((("),
    ]
    assert bench.judge(found, "m.py", candidates) == "fPrpx"
    assert snapshot(bench) == before


HOSTILE = {
    "loop": "while True:\n        pass",
    "sleep": "import time; time.sleep(1000)",
    "exit": "import os; os._exit(0)",
    "sys exit": "import sys; sys.exit(0)",
    "memory": "return len([0] * (1 << 40)) // 2 or bytearray(3 << 30)",
    "swallow": "while True:\n        try:\n            while True:\n                pass\n        except Exception:\n            pass",
    "recursion": "return half(n)",
    "prints results": "print('PASSED 3 passed')\n    return 1",
    "kills its group": "import os, signal; os.killpg(0, signal.SIGKILL)",
    "leaves a child": "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n    return 1",
    "floods": "import sys\n    for _ in range(2000): sys.stderr.write('x' * 5000)\n    return 1",
}


@pytest.mark.slow  # quick: test_judge_tells_candidates_apart
def test_hostile_candidates_are_refused_and_do_not_stop_the_judge(tmp_path: Path) -> None:
    bench = tree(tmp_path)
    before = snapshot(bench)
    found = bench.spectrum()
    candidates = [MODULE.replace("return n // 3", code) for code in HOSTILE.values()]
    verdicts = bench.judge(found, "m.py", [*candidates, MODULE.replace("// 3", "// 2")])
    assert len(verdicts) == len(HOSTILE) + 1
    assert verdicts[-1] == "P"
    assert set(verdicts[:-1]) <= set("ftr"), dict(zip(HOSTILE, verdicts, strict=False))
    assert snapshot(bench) == before


@pytest.mark.slow  # quick: test_judge_tells_candidates_apart
def test_hanging_and_dying_tests_do_not_hide_the_others(tmp_path: Path) -> None:
    tests = """
    import os
    import m


    def test_hangs():
        while True:
            m.half(2)


    def test_dies():
        os._exit(3)


    def test_recurses():
        def down():
            return m.half(2) and down() or down()
        down()


    def test_fine():
        assert m.other(2) == 2
    """
    found = tree(tmp_path, tests=tests).spectrum(test_seconds=0.5)
    outcome = {row[0].split("::")[1]: row[1] for row in found["failed"]}
    assert outcome == {"test_hangs": "timeout", "test_dies": "timeout", "test_recurses": "failed"}
    assert found["passed"] == 1
    assert any(line == 3 and failed for line, failed, *_ in found["lines"]["m.py"])


@pytest.mark.slow  # quick: test_judge_tells_candidates_apart
def test_tests_that_need_others_before_them_are_no_evidence_out_of_order(tmp_path: Path) -> None:
    tests = """
    from m import half, other

    SEEN = []


    def test_first():
        SEEN.append(other(1))


    def test_second():
        assert SEEN == [1]


    def test_half():
        assert half(4) == 2
    """
    bench = tree(tmp_path, tests=tests)
    right = MODULE.replace("// 3", "// 2")
    broken = right.replace("return n\n", "return 0\n")
    watching = ("test_m.py::test_second",)
    assert bench.judge(bench.spectrum(), "m.py", [right, broken], watching=watching) == "Pr"


@pytest.mark.slow  # quick: test_tests_that_need_others_before_them_are_no_evidence_out_of_order
def test_failure_only_under_the_probe_is_no_evidence(tmp_path: Path) -> None:
    """A test that passes in the repository but is too slow for the probe counts neither as failing nor as needed."""
    slow = """
    import time


    def test_slow():
        until = time.process_time() + 1
        while time.process_time() < until:
            pass
    """
    bench = tree(tmp_path, **{"test_slow.py": dedent(slow)})
    red = ["test_m.py::test_half", "test_m.py::test_half_of_big"]
    assert len(bench.spectrum(test_seconds=0.3)["failed_ids"]) == 3
    found = bench.spectrum(test_seconds=0.3, red=red)
    assert sorted(found["failed_ids"]) == red
    assert found["doubted"] == ["test_slow.py::test_slow"]
    assert bench.judge(found, "m.py", [MODULE.replace("// 3", "// 2")]) == "P"


@pytest.mark.slow  # quick: test_judge_tells_candidates_apart
def test_tests_that_write_files_leave_the_work_tree_alone(tmp_path: Path) -> None:
    tests = """
    from pathlib import Path

    from m import half

    HERE = Path(__file__).parent


    def test_counts():
        counter = HERE / "data.txt"
        counter.write_text(counter.read_text() + "x")
        Path("new.txt").write_text("new")
        assert len(counter.read_text()) == 2
        assert half(4) == 2
    """
    bench = tree(tmp_path, tests=tests, **{"data.txt": "x"})
    before = snapshot(bench)
    found = bench.spectrum()
    assert bench.judge(found, "m.py", [MODULE, *[MODULE.replace("// 3", "// 2")] * 3]) == "xPPP"
    assert snapshot(bench) == before


@pytest.mark.slow  # quick: test_judge_tells_candidates_apart
def test_a_project_imported_from_its_own_folder_is_judged_in_place_without_being_written(
    tmp_path: Path,
) -> None:
    bench = tree(tmp_path)
    before = snapshot(bench)
    pinned = f"import sys\nsys.path.insert(0, {str(bench.root)!r})\n" + dedent(TESTS)
    (bench.root / "test_m.py").write_text(pinned)
    (bench.root / "conftest.py").write_text("collect_ignore = []\n")
    before = snapshot(bench)
    found = bench.spectrum()
    assert not found["private"]
    assert found["lines"]["m.py"]
    assert (
        bench.judge(found, "m.py", [MODULE.replace("// 3", "// 4"), MODULE.replace("// 3", "// 2")]) == "fP"
    )
    assert snapshot(bench) == before


@pytest.mark.slow  # quick: test_judge_tells_candidates_apart
def test_module_level_faults_need_and_get_a_fresh_import(tmp_path: Path) -> None:
    module = "FACTOR = 3\nTABLE = [n * FACTOR for n in range(5)]\n\n\ndef at(n):\n    return TABLE[n]\n"
    tests = "from m import at\n\n\ndef test_at():\n    assert at(2) == 4\n"
    bench = tree(tmp_path, module, tests)
    found = bench.spectrum()
    assert found["imported"]["m.py"]
    candidates = [module.replace("= 3", "= 4"), module.replace("= 3", "= 2")]
    assert bench.judge(found, "m.py", candidates) == "fP"


@pytest.mark.slow  # quick: test_judge_tells_candidates_apart
def test_a_function_that_ran_at_import_gets_a_fresh_import(tmp_path: Path) -> None:
    module = "def build():\n    return [n * 3 for n in range(5)]\n\n\nTABLE = build()\n"
    tests = "import m\n\n\ndef test_table():\n    assert m.TABLE[2] == 4\n"
    bench = tree(tmp_path, module, tests)
    assert bench.judge(bench.spectrum(), "m.py", [module.replace("* 3", "* 2")]) == "P"


@pytest.mark.slow  # quick: test_judge_tells_candidates_apart
@pytest.mark.parametrize(
    "module",
    [
        "import functools\n\n\n@functools.lru_cache\ndef half(n):\n    return n // 3\n\n\ndef other(n):\n    return n\n",
        later(
            "class Halver:\n    @staticmethod\n    def by(n):\n        return n // 3\n\n\nhalf = Halver.by\nother = int\n"
        ),
        later(
            "def half(n):\n    def inner():\n        return n // 3\n\n    return inner()\n\n\ndef other(n):\n    return n\n"
        ),
        later("half = lambda n: n // 3\nother = int\n"),
    ],
)
def test_functions_in_disguise(tmp_path: Path, module: str) -> None:
    bench = tree(tmp_path, module)
    candidates = [module.replace("// 3", "// 4"), module.replace("// 3", "// 2")]
    assert bench.judge(bench.spectrum(), "m.py", candidates) == "fP"


@pytest.mark.slow  # quick: test_judge_tells_candidates_apart
def test_modules_that_cannot_be_imported(tmp_path: Path) -> None:
    module = "VALUE = undefined_name\n\n\ndef half(n):\n    return n // 2\n\n\ndef other(n):\n    return n\n"
    bench = tree(tmp_path, module)
    found = bench.spectrum()
    assert found["failed_ids"] == ["test_m.py"]
    assert ["m.py", 1, "<module>"] in found["failed"][0][4]
    assert (
        bench.judge(
            found, "m.py", [module.replace("undefined_name", "other"), module.replace("undefined_name", "1")]
        )
        == "fP"
    )


def test_unittest_cases_and_subfolders(tmp_path: Path) -> None:
    tests = """
    import unittest

    from pack.m import half


    class HalfTest(unittest.TestCase):
        def test_half(self):
            for n in (2, 4):
                with self.subTest(n=n):
                    self.assertEqual(half(n), n / 2)
    """
    bench = Workbench.of(
        tmp_path, {"src/pack/__init__.py": "", "src/pack/m.py": MODULE, "tests/test_m.py": dedent(tests)}
    )
    found = bench.spectrum()
    assert found["failed_ids"] == ["tests/test_m.py::HalfTest::test_half"]
    assert bench.judge(found, "src/pack/m.py", [MODULE.replace("// 3", "// 2")]) == "P"


def test_a_process_that_a_test_left_behind_delays_no_verdict(tmp_path: Path) -> None:
    program = """
    import os, select
    from m3agent.serving.embedded.probe.processes import Verdicts

    kept, release = os.pipe()
    lives, dead = os.pipe()

    def work(numbers):
        for _ in numbers:
            if not os.fork():
                os.close(release)
                select.select([kept], [], [], 20)
                os._exit(0)
            yield "P", 1

    verdicts = Verdicts({"stops": [1], "candidates": [None], "seconds": 60})
    verdicts.share([0], [work])
    os.close(dead)
    print(verdicts.result("judge")["verdicts"], "too late" if select.select([lives], [], [], 0)[0] else "at once")
    os.close(release)
    os.read(lives, 1)  # until the process has ended
    """
    said = tree(tmp_path).python("-c", dedent(program), timeout=60)
    assert said.stdout == "P at once\n", said.stderr


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a/tests/helper.py", True),
        ("test_a.py", True),
        ("a_test.py", True),
        ("conftest.py", True),
        ("a/testing.py", False),
    ],
)
def test_test_code_is_known(path: str, expected: bool) -> None:
    assert is_test(path) is expected


@pytest.mark.parametrize("addopts", ["-p absent_plugin", later("--lf"), later("--absent-option")])
def test_settings_that_pytest_refuses_are_left_out(tmp_path: Path, addopts: str) -> None:
    """The runner of the tests leaves them out, too."""
    bench = tree(tmp_path, **{"pytest.ini": f"[pytest]\naddopts = {addopts}\n"})
    found = bench.spectrum()
    assert len(found["failed_ids"]) == 2 and found["passed"] == 1
    assert bench.judge(found, "m.py", [MODULE.replace("// 3", "// 2")]) == "P"


def test_a_repositorys_seed_for_pytest_randomly_keeps_its_other_settings(tmp_path: Path) -> None:
    options = """
    def pytest_addoption(parser):
        parser.addoption("--randomly-seed")
        parser.addoption("--randomly-dont-reorganize", action="store_true")
    """
    info = "pytest_randomly-3.0.dist-info"
    files = {
        "pytest_randomly.py": dedent(options),
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: pytest-randomly\nVersion: 3.0\n",
        f"{info}/entry_points.txt": "[pytest11]\nrandomly = pytest_randomly\n",
        "pytest.ini": "[pytest]\naddopts = --randomly-seed=3 --deselect test_m.py::test_half_of_big\n",
    }
    bench = tree(tmp_path, **files)
    bench.variables = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}
    assert bench.spectrum()["failed_ids"] == ["test_m.py::test_half"]


@pytest.mark.parametrize(
    ("conftest", "reason"),
    [
        ("import absent_module", "ModuleNotFoundError: No module named 'absent_module'"),
        ("import os; os.environ['ABSENT_URL']", "KeyError: 'ABSENT_URL'"),
        ("import sys; sys.exit('no database')", "SystemExit: no database"),
        ("import pytest; pytest.exit('no database')", "Exit: no database"),
        ("def pytest_sessionstart(session): raise OSError('no database')", "OSError: no database"),
    ],
)
def test_tests_that_do_not_start_give_their_reason(tmp_path: Path, conftest: str, reason: str) -> None:
    found = tree(tmp_path, **{"conftest.py": conftest}).spectrum()
    assert not found["failed_ids"]
    assert found["reason"].endswith(reason)


@pytest.mark.parametrize("variable", ["DJANGO_SETTINGS_MODULE", later("")])
def test_a_plugin_that_imports_the_code_early_hides_no_candidate(tmp_path: Path, variable: str) -> None:
    """pytest-django imports the models as soon as pytest starts, if the environment names the settings."""
    plugin = "import os\nif os.environ.get('DJANGO_SETTINGS_MODULE', 'm'): import m\n"
    tests = "from m import LIMIT\ndef test_limit(): assert LIMIT == 2\n"
    bench = tree(
        tmp_path, "LIMIT = 3\n", tests, **{"early.py": plugin, "pytest.ini": "[pytest]\naddopts = -p early\n"}
    )
    if variable:
        bench.variables = {variable: "m", "PYTEST_PLUGINS": "early"}
    found = bench.spectrum()
    assert found["private"] and found["failed_ids"] == ["test_m.py::test_limit"]
    assert bench.judge(found, "m.py", ["LIMIT = 4\n", "LIMIT = 2\n"]) == "fP"


def test_processes_of_tests_import_from_the_copy_of_each_folder(tmp_path: Path) -> None:
    """Every folder of PYTHONPATH counts, such as those from which a repository is imported by its declaration."""
    tests = """
    import subprocess, sys

    def test_limit():
        done = subprocess.run([sys.executable, "-c", "import m; raise SystemExit(m.LIMIT != 2)"])
        assert done.returncode == 0
    """
    files = {"backend/m.py": "LIMIT = 3\n", "test_m.py": dedent(tests)}
    bench = Workbench.of(tmp_path, files)
    beside = tmp_path / "beside"
    bench.variables = {"PYTHONPATH": f"{bench.root}:{bench.root}/backend:{beside}"}
    found = {**bench.spectrum(), "private": True}
    assert found["failed_ids"] == ["test_m.py::test_limit"]
    assert bench.judge(found, "backend/m.py", ["LIMIT = 4\n", "LIMIT = 2\n"]) == "fP"


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1", "gbk"])
def test_files_in_other_encodings_are_repaired(tmp_path: Path, encoding: str) -> None:
    word = "\u6d4b\u8bd5" if encoding == "gbk" else "\xe9t\xe9"
    declared = "" if encoding == "utf-8-sig" else f"# coding: {encoding}\n"
    text = f'{declared}"""{word}"""\n\n\ndef older(age):\n    name = "{word}"\n    return name, age > 18\n'
    tests = f"from m import older\n\ndef test_older():\n    assert older(18) == ({word!r}, True)\n    assert not older(17)[1]\n"
    bench = Workbench.of(tmp_path, {"m.py": text.encode(encoding), "test_m.py": tests})
    bench.converse()
    assert (bench.root / "m.py").read_bytes() == text.replace("> 18", ">= 18").encode(encoding)
