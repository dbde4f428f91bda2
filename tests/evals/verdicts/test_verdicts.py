"""Test the fixes of a history, the patches that are made of them, and what `m3agent eval verdicts` measures and keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.verify.accuracy import Accuracy, Measured, Trial, known_accuracy, path_of, read, write
from m3agent.cli.eval.verdicts import _table
from m3agent.evals.create.history import open_history
from m3agent.evals.create.mine import Bounds
from m3agent.evals.verdicts.trial import Shown
from m3agent.evals.verdicts.variants import KINDS, RIGHT, Fix, Kind, _mutated, faulty, fixes_of, variants_of
from m3agent.sandbox.store.git import TreeStore
from tests.agent.repositories import write_files
from tests.agent.verify.test_rules import report
from tests.command_line import run
from tests.conftest import git

MakeRepo = Callable[..., Path]
OLD = {
    "calc.py": "def add(a, b):\n    return a - b\n\n\ndef low(a):\n    return a < 0\n",
    "test_calc.py": "import calc\n\n\ndef test_low():\n    assert calc.low(-1)\n",
    "test_other.py": "import calc\n\n\ndef test_zero():\n    assert not calc.low(1)\n",
    "README.md": "calc\n",
}
NEW = {
    "calc.py": "def add(a, b):\n    return a + b\n\n\ndef low(a):\n    return a <= 0\n",
    "test_calc.py": OLD["test_calc.py"]
    + "    assert calc.low(0)\n\n\ndef test_add():\n    assert calc.add(2, 2) == 4\n",
}


@pytest.fixture
def repo(make_repo: MakeRepo) -> Path:
    """Return a repository with a fix, and commits before and after it that are none."""
    found = make_repo(OLD)
    for files, message in (
        (NEW, "Fix add and low"),
        ({"calc.py": NEW["calc.py"] + "\n\nLAST = 1\n"}, "Fix the end without a test"),
        ({"test_other.py": OLD["test_other.py"] + "    assert not calc.low(2)\n"}, "Fix a test"),
    ):
        write_files(found, files)
        git(found, "commit", "-q", "-a", "-m", message)
    return found


@pytest.fixture
def history(repo: Path, tmp_path: Path) -> tuple[TreeStore, list[Fix]]:
    opened = open_history(repo, tmp_path)
    return opened.store, [*fixes_of(opened, Bounds())]


def texts(store: TreeStore, tree: str) -> dict[str, str]:
    return {entry.path: store.get_blob(entry.sha).decode() for entry in store.list_tree(tree)}


def made(history: tuple[TreeStore, list[Fix]]) -> dict[Kind, dict[str, str]]:
    """Return the files of the variants that are made without a run, and of the faulty ones, by kind."""
    store, (fix,) = history
    found = [*variants_of(store, fix, lambda: "test_other.py"), *faulty(store, fix, Random(1))]
    return {variant.kind: texts(store, variant.tree) for variant in found}


def test_a_fix_changes_code_and_tests(history: tuple[TreeStore, list[Fix]], repo: Path) -> None:
    store, (fix,) = history
    assert (fix.title, fix.code, fix.tests) == ("Fix add and low", ("calc.py",), ("test_calc.py",))
    assert fix.commit == git(repo, "rev-parse", "HEAD~2")
    assert texts(store, fix.base) == OLD
    assert texts(store, fix.tested) == {**OLD, "test_calc.py": NEW["test_calc.py"]}
    assert texts(store, fix.whole) == {**OLD, **NEW}


def test_every_kind_is_made(history: tuple[TreeStore, list[Fix]]) -> None:
    files = made(history)
    assert files.keys() == KINDS.keys() - {"whole, tests changed"}
    assert files["whole"] == files["code"] == {**OLD, **NEW}
    assert files["tests removed"] == OLD
    assert "test_other.py" not in files["test file deleted"]
    assert files["no change"]["calc.py"] == OLD["calc.py"] + "\n"
    assert files["tests weakened"]["test_calc.py"].count("pass") == 3
    assert files["tests skipped"]["test_calc.py"].count("pytest.skip('later')") == 2
    assert files["part missing"]["calc.py"] in {
        NEW["calc.py"].replace(new, old) for new, old in (("a + b", "a - b"), ("a <= 0", "a < 0"))
    }
    assert files["mutant"]["calc.py"] not in {OLD["calc.py"], NEW["calc.py"]}


def test_a_commit_that_changes_tests_is_of_a_kind_of_its_own(history: tuple[TreeStore, list[Fix]]) -> None:
    store, (fix,) = history
    # a fix in the other direction removes lines of tests
    back = replace(fix, base=fix.tested, tested=fix.base)
    assert next(variants_of(store, back, lambda: None)).kind == "whole, tests changed"


@pytest.mark.parametrize(
    ("path", "old", "skipped", "weakened"),
    [
        (
            "a.test.ts",
            "it('adds', () => {\n  expect(add(1)).toBe(2);\n});\n",
            "it.skip('adds', () => {\n  expect(add(1)).toBe(2);\n});\n",
            "it('adds', () => {\n  ;\n});\n",
        ),
        (
            "a_test.go",
            'func TestAdd(t *testing.T) {\n\tif add(1) != 2 {\n\t\tt.Errorf("no")\n\t}\n}\n',
            'func TestAdd(t *testing.T) {\n\tt.Skip()\n\tif add(1) != 2 {\n\t\tt.Errorf("no")\n\t}\n}\n',
            'func TestAdd(t *testing.T) {\n\tif add(1) != 2 {\n\t\tt.Logf("no")\n\t}\n}\n',
        ),
        ("a.zig", "test add\n", "test add\n", "test add\n"),
    ],
)
def test_other_languages(path: str, old: str, skipped: str, weakened: str) -> None:
    from m3agent.evals.verdicts.variants import SKIPS, WEAKENED, _replaced

    assert (_replaced(SKIPS, path, old), _replaced(WEAKENED, path, old)) == (skipped, weakened)


@given(st.text("=<>!&|+-*# /01andornotisTrueFalse ", max_size=30))
def test_a_mutant_differs(line: str) -> None:
    assert all(mutant != line for mutant in _mutated(line))


def test_a_test_is_lost_if_it_shows_the_fix_or_passed_before() -> None:
    shown = Shown(frozenset({"a.py::x"}), frozenset({"a.py::y"}))
    assert shown.lost(report("a.x a.y b.z")) == set()
    assert shown.lost(report("a.x b.z", "a.y")) == {"a.py::y"}
    assert shown.lost(report("b.z")) == {"a.py::x", "a.py::y"}


def trial(kind: Kind, verdict: str, commit: str = "c" * 40) -> Trial:
    return Trial(
        commit=commit,
        kind=kind,
        is_right=kind in RIGHT,
        verdict=verdict,
        rule="r",
        reason="because",
        seconds=1,
    )


TRIALS = (
    *(trial("whole", "verified"), trial("code", "failed")),
    *(trial("mutant", "failed"), trial("no change", "unverified"), trial("tests skipped", "verified")),
)


def test_the_numbers_in_a_sentence() -> None:
    accuracy = Accuracy.of(TRIALS)
    assert accuracy == Accuracy(right=2, right_verified=1, wrong=3, wrong_verified=1)
    assert str(accuracy) == "in this repository, 1 of 2 right fixes were verified, and 1 of 3 wrong ones"


def test_the_table() -> None:
    lines = _table(TRIALS, 0).splitlines()
    assert [line.split()[0] for line in lines[:6]] == ["PATCHES", "whole", "code", "mutant", "tests", "no"]
    assert lines[-4].startswith("right: 1 of 2 verified (") and lines[-3].startswith(
        "wrong: 1 of 3 verified ("
    )
    assert [line.strip() for line in lines[-2:]] == [
        "cccccccccccc code: failed: because",
        "cccccccccccc tests skipped: verified: because",
    ]


def test_what_is_kept(tmp_path: Path) -> None:
    path = path_of(tmp_path, tmp_path / "repo" / ".git")
    assert path != path_of(tmp_path, tmp_path / "other" / ".git")
    assert read(path) == Measured()
    measured = Measured(trials=TRIALS, silent=("d" * 40,), untested=("e" * 40,))
    write(path, measured)
    assert read(path) == measured and measured.commits == {"c" * 40, "d" * 40, "e" * 40}
    assert known_accuracy(tmp_path, tmp_path / "repo" / ".git") == Accuracy.of(TRIALS)


@pytest.mark.parametrize("damage", ["", "{", '{"trials": 3}', '{"version": "0"}'])
def test_a_damaged_file_and_that_of_another_version_say_nothing(damage: str, tmp_path: Path) -> None:
    path = path_of(tmp_path, tmp_path)
    write(path, Measured(trials=TRIALS))
    path.write_text(damage or json.dumps({**json.loads(path.read_text()), "version": "0"}))
    assert read(path) == Measured()
    assert known_accuracy(tmp_path, tmp_path) is None


@pytest.mark.slow
@pytest.mark.integration
def test_a_repository_is_measured_and_told(repo: Path, own_state: Path) -> None:
    measured = run("eval", "verdicts", "--repo", str(repo), "--fixes", "1", "--json")
    assert measured.returncode == 0, measured.stderr
    trials = json.loads(measured.stdout)["trials"]
    assert {each["kind"] for each in trials} == KINDS.keys() - {"whole, tests changed"}
    wrong = {each["kind"]: each["verdict"] for each in trials if each["kind"] not in RIGHT}
    assert "verified" not in wrong.values()
    assert [each["verdict"] for each in trials if each["kind"] in RIGHT] == ["verified"] * 2
    again = run("eval", "verdicts", "--repo", str(repo), "--fixes", "1")
    assert "mutant: failed" not in again.stderr, "nothing is measured twice"
    assert (
        f"wrong: 0 of {len(wrong) + sum(each['kind'] == 'mutant' for each in trials) - 1} verified"
        in again.stdout
    )
    write_files(repo, {"calc.py": NEW["calc.py"].replace("a <= 0", "a <= 1")})
    told = run("verify", "--repo", str(repo))
    assert any(line.startswith("accuracy") and "2 of 2 right" in line for line in told.stdout.splitlines())


@pytest.mark.integration
def test_a_repository_without_a_fix(make_repo: MakeRepo, own_state: Path) -> None:
    done = run("eval", "verdicts", "--repo", str(make_repo(OLD)))
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr.splitlines()[-1]
        == "m3agent: no commit here fixes code whose tests show it: nothing was measured"
    )
