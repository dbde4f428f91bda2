"""`m3agent eval create` from the command line, over real histories and in real sandboxes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from m3agent.evals.create.create import CreateRequest
from m3agent.evals.create.create import create as make_instances
from m3agent.evals.create.folder import CreatedFolder
from m3agent.evals.create.graded import GradedValidator, Validated, compared
from m3agent.evals.create.history import open_history
from m3agent.evals.data.instance import Instance
from m3agent.evals.grade.grader import Grader
from m3agent.evals.grade.strict import TestRun
from tests.command_line import Process, run
from tests.evals.bases import Bare, needs_base, needs_docker
from tests.evals.create.history_of import FIRST, FIX, FIXED, MORE_TEST, TEST, Repo

pytestmark = pytest.mark.integration

NO_CANDIDATE = (
    "no commit is a candidate, because none has a parent here and changes Python source and tests within the limits: "
    "change --since, --until or the limits, or take another repository"
)


def create(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run("eval", "create", *map(str, arguments))


def tried(folder: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads((folder / "create.json").read_text())["tried"]
    return found


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """Two fixes, of which the newer has only a title; before them, a change whose test passes without the change."""
    made = Repo(tmp_path / "calc")
    made.commit(FIRST, "Begin")
    made.commit(
        {"calc.py": "X = 1\n" + str(FIRST["calc.py"]), "tests/test_calc.py": TEST + "\nY = 1\n"},
        "Fix nothing",
    )
    made.commit(
        FIX, "Sums are differences\n\nAdding one and two gives minus one, and I would expect three of it.\n"
    )
    more = MORE_TEST + "\n\ndef test_text():\n    assert add('a', 1) == 'a1'\n"
    fixed = FIXED.replace("return a + b", "return a + b if isinstance(b, type(a)) else f'{a}{b}'")
    made.commit({"calc.py": fixed, "tests/test_calc.py": more}, "Fix crash for text and numbers")
    return made


async def make(repo: Repo, tmp_path: Path, out: Path, limit: int = 50) -> tuple[list[str], list[str]]:
    """Make instances. Return the ids of all instances in `out`, and the messages."""
    said: list[str] = []
    state = tmp_path / "state"
    with tempfile.TemporaryDirectory() as scratch:
        history = open_history(repo.folder, Path(scratch), None)
        with CreatedFolder.opened(out, history.name) as made:
            validator = GradedValidator(Bare(state, said.append), Grader(state, said.append))
            await make_instances(history, made, CreateRequest(limit), validator, said.append)
            return list(made.rows), said


@pytest.mark.slow
@pytest.mark.integration
@needs_docker
async def test_instances_are_made_validated_and_gone_on_with(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what several runs decide: test_only_tests_that_pass_in_every_run_with_the_fix_count
    monkeypatch.setattr("m3agent.evals.create.graded.RUNS", 1)
    out = tmp_path / "out"
    (first,), _ = await make(repo, tmp_path, out, 1)
    both, _ = await make(repo, tmp_path, out)
    assert len(both) == 2 and both[0] == first
    rows = [json.loads(line) for line in (out / "instances.jsonl").read_text().splitlines()]
    assert [json.loads(row["FAIL_TO_PASS"]) for row in rows] == [
        ["tests/test_calc.py::test_text"],
        ["tests/test_calc.py::test_sum"],
    ]
    assert json.loads(rows[0]["PASS_TO_PASS"]) == [
        "tests/test_calc.py::test_sum",
        "tests/test_calc.py::test_zero",
    ]
    assert [row["statement_source"] for row in rows] == ["message and tests", "message"]
    assert "Fix crash for text and numbers\n" in rows[0]["problem_statement"]
    assert (
        "- `test_text` fails:\n\n  ```\n  TypeError: can only concatenate str" in rows[0]["problem_statement"]
    )
    verdicts = {record["title"]: record["verdict"] for record in tried(out).values()}
    assert verdicts.pop("Fix nothing") == "invalid" and set(verdicts.values()) == {"valid"}
    kept = {path.name: path.read_bytes() for path in out.glob("*.jsonl")}
    _, said = await make(repo, tmp_path, out)
    assert not any("trying" in line for line in said)
    assert kept == {path.name: path.read_bytes() for path in out.glob("*.jsonl")}


async def test_a_row_that_no_command_could_read_is_not_written(repo: Repo, tmp_path: Path) -> None:
    async def validate(instance: Instance, folder: Path) -> Validated:
        raise AssertionError("an instance was made of it")

    (tmp_path / "scratch").mkdir()
    history = open_history(repo.folder, tmp_path / "scratch", "my calc")
    with CreatedFolder.opened(tmp_path / "out", history.name) as made:
        await make_instances(history, made, CreateRequest(), validate, lambda _: None)
        assert not made.rows
    reasons = {one["reason"].partition(", ")[2] for one in tried(tmp_path / "out").values()}
    assert reasons == {"field repo: 'my calc' is not a name such as owner/name"}


async def test_kinds_that_are_not_asked_for_are_left_out_and_can_be_made_later(
    repo: Repo, tmp_path: Path
) -> None:
    checked: list[str] = []

    async def validate(instance: Instance, folder: Path) -> Validated:
        """Find one test that fails with a wrong result in each candidate."""
        checked.append(instance.id)
        return Validated(
            ("tests/test_calc.py::test_sum",), (), {"tests/test_calc.py::test_sum": "E  assert 1 == 2"}
        )

    async def made_with(*kinds: str) -> list[str]:
        checked.clear()
        history = open_history(repo.folder, tmp_path / "scratch", None)
        with CreatedFolder.opened(tmp_path / "out", history.name) as made:
            await make_instances(history, made, CreateRequest(kinds=kinds), validate, lambda _: None)
            return [row["kind"] for row in made.rows.values()]

    (tmp_path / "scratch").mkdir()
    assert await made_with("bug") == ["bug", "bug"]
    assert len(checked) == 3
    left_out = [one for one in tried(tmp_path / "out").values() if one["verdict"] == "left out"]
    assert [(one["title"], one["reason"]) for one in left_out] == [
        ("Sums are differences", "its kind is unclear")
    ]
    assert await made_with("bug") == ["bug", "bug"]
    assert checked == []
    assert await made_with("bug", "unclear") == ["bug", "bug", "unclear"]
    assert len(checked) == 1


@pytest.mark.slow
@needs_base
@pytest.mark.usefixtures("images_alone")
@pytest.mark.timeout(900)
def test_interrupted_folder_can_be_continued(repo: Repo, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = [str(repo.folder), "-o", str(out), "--python", "3.11"]
    with Process("eval", "create", *arguments) as process:
        deadline = time.monotonic() + 600
        while not (out / "instances.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    assert len((out / "instances.jsonl").read_text().splitlines()) == 1
    assert not list(out.glob(".trial-*"))
    done = create(*arguments)
    assert done.returncode == 0 and len(done.stdout.split()) == 2
    assert len(tried(out)) == 3


@pytest.mark.slow
def test_candidates_are_listed_with_the_likeliest_fix_first(repo: Repo) -> None:
    done = create(repo.folder, "--dry-run")
    assert done.returncode == 0 and done.stdout.splitlines()[0].split() == [
        "COMMIT",
        "DATE",
        "SCORE",
        "TITLE",
    ]
    assert [line[33:] for line in done.stdout.splitlines()[1:]] == [
        "Fix crash for text and numbers",
        "Fix nothing",
        "Sums are differences",
    ]
    assert "4 commits examined, 3 candidates" in done.stderr
    assert f"next: m3agent eval create {repo.folder} -o FOLDER makes instances of them" in done.stderr
    done = create(repo.folder, "--dry-run", "--until", "2024-01-03", "--since", "2024-01-03")
    assert [line[33:] for line in done.stdout.splitlines()[1:]] == ["Sums are differences"]
    done = create(repo.folder, "--dry-run", "--since", "2030-01-01")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"m3agent: {NO_CANDIDATE}\n"


@pytest.mark.slow  # quick: tests/evals/create/test_create_mine.py
def test_a_history_without_python_has_no_candidate(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "site")
    repo.commit({"index.html": "a\n"})
    repo.commit({"index.html": "b\n"}, "Fix")
    done = create(repo.folder, "-o", tmp_path / "out")
    assert (done.returncode, done.stdout) == (1, "")
    assert "0 instances of site" in done.stderr and "1 changes no Python source" in done.stderr
    assert done.stderr.endswith(f"m3agent: {NO_CANDIDATE}\n")
    shown = create(repo.folder, "--dry-run")
    assert (shown.returncode, shown.stdout) == (1, "") and shown.stderr.endswith(f"m3agent: {NO_CANDIDATE}\n")


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{repo}"], "Give the folder for the instances with -o"),
        (["{repo}", "-o", "{repo}"], "is not empty and is not a folder of instances"),
        (["{repo}", "--dry-run", "--since", "yesterday"], "--since yesterday: write a date like 2024-05-31"),
        (["{repo}", "--dry-run", "--python", "2.7"], "--python 2.7: write a minor version"),
        (["{repo}", "--dry-run", "--name", "../x"], "--name ../x: write it as owner/name"),
        (["{repo}", "--dry-run", "--kinds", "bug,fix"], "--kinds 'fix': the kinds are bug, feature, unclear"),
        (["{repo}/none", "--dry-run"], "There is no folder"),
    ],
)
def test_wrong_use_gets_one_sentence(arguments: list[str], said: str, repo: Repo) -> None:
    done = create(*(argument.format(repo=repo.folder) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("m3agent: ") and said in done.stderr and done.stderr.count("\n") == 1


def report(passed: str = "", failed: str = "", skipped: str = "", *, complete: bool = True) -> TestRun:
    outcomes = dict.fromkeys(passed.split(), "passed") | dict.fromkeys(failed.split(), "failed")
    return TestRun(
        outcomes | dict.fromkeys(skipped.split(), "skipped"), complete=complete, output="no tests ran"
    )


def test_only_tests_that_pass_in_every_run_with_the_fix_count() -> None:
    found = compared(report("a b", "c d", "s"), [report("a c d s"), report("a b c s")])
    assert (found.fail_to_pass, found.pass_to_pass, found.reason) == (("c",), ("a",), "")
    assert compared(report("a"), [report("a"), report("a", complete=False)]).reason
    assert compared(report("a"), [report()]).reason == "the tests cannot be run with the fix: no tests ran"


def test_what_is_started_is_gone_with_it(repo: Repo, tmp_path: Path) -> None:
    """The state folder holds a store with the repository's objects only while a command runs."""
    create(repo.folder, "--dry-run")
    scratch = Path(os.environ["M3AGENT_STATE"]) / "scratch"
    assert not list(scratch.iterdir())
