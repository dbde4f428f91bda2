"""Exported instances: the tasks' own grading script, what is exported and what is refused."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import io
import json
import subprocess
import tarfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from m3agent.cli.app import app
from m3agent.evals.data.instance import Instance, Task
from m3agent.evals.data.load import load
from m3agent.evals.environments.environments import Environments
from m3agent.evals.export.export import Exported, Exporter, row_of, write_task
from m3agent.evals.grade.trees import grading_trees
from m3agent.sandbox.errors import DiskFull, EngineUnavailable
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.util.errors import UsageError
from tests.agent.repositories import write_files
from tests.conftest import git, others_later
from tests.evals.calc_instance import CODE, FILES, FIXED, NEW_TESTS, TO_FIX, TO_KEEP, small_instance
from tests.evals.data_rows import a_row, write_rows
from tests.evals.grade.test_validate import GivenOutcomes, outcomes

IMAGE = "m3agent-env:1"
EVERY = (*TO_FIX, *TO_KEEP)


class OneImage(Environments):
    """Every task has the same image."""

    async def whole_image(self, task: Task) -> str:
        return IMAGE


def exporter(folder: Path, after: str = " ".join(EVERY), failed: str = "") -> Exporter:
    grader = GivenOutcomes(folder, {}, [outcomes(after, failed)])
    return Exporter(folder / "out", folder / "state", OneImage(folder / "state", print), grader)


def task_of(instance: Instance, folder: Path) -> Path:
    """Write an instance as a task, as `Exporter` does."""
    store = TreeStore(folder / "trees.git")
    code = Path(instance.task.source.location)
    base = Workspace.from_folder(store, code, sorted(FILES)).base
    trees = grading_trees(store, base, instance.answer, b"")
    write_task(instance, IMAGE, EVERY, trees, (instance.answer.patch.encode(), []), folder / "task")
    return folder / "task"


# -- the script that grades a task -------------------------------------------------------------------------------------


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return task_of(small_instance(tmp_path / "instance"), tmp_path)


def left_archive(path: Path, files: Mapping[str, str]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


@pytest.fixture
def verifier(task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The task's grade.py; its paths in the container are folders here, and the work tree holds the base."""
    spec = importlib.util.spec_from_file_location("grade", task / "tests" / "grade.py")
    assert spec is not None and spec.loader is not None
    grade = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(grade)
    work = tmp_path / "testbed"
    write_files(work, FILES)
    git(work, "init", "-q")
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "base")
    monkeypatch.setattr(grade, "WORK", str(work))
    monkeypatch.setattr(grade, "LEFT", str(tmp_path / "left.tar.gz"))
    monkeypatch.setattr(grade, "REWARD", str(tmp_path / "logs" / "reward.txt"))
    return grade


def reward(grade: ModuleType) -> str:
    assert grade.main() == 0
    return Path(grade.REWARD).read_text().strip()


RIGHT = {**FILES, "calc.py": FIXED}
LEFT: dict[str, tuple[Mapping[str, str], str]] = {
    "the right fix": (RIGHT, "1"),
    "nothing": (FILES, "0"),
    "another fault": ({**FILES, "calc.py": FIXED.replace("a * 2", "a + 2")}, "0"),
    "the code is gone": ({name: text for name, text in FILES.items() if name != "calc.py"}, "0"),
    "the tests are gone": ({"calc.py": FIXED}, "1"),
    "tests rewritten": ({**FILES, "tests/test_calc.py": "def test_add():\n    pass\n"}, "0"),
    "a new conftest.py": (
        {**FILES, "conftest.py": "def pytest_collection_modifyitems(items):\n    del items[:]\n"},
        "0",
    ),
    "a new pytest.ini beside a fix": ({**RIGHT, "pytest.ini": "[pytest]\naddopts = --collect-only\n"}, "1"),
    "a file in the way of the tests": ({"calc.py": FIXED, "setup.cfg": "", "tests": "no folder\n"}, "1"),
    "a module in the way of json": ({**RIGHT, "json.py": "raise SystemExit('shadowed')\n"}, "1"),
}


QUICK = {"the right fix", "tests rewritten"}


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("name", others_later(LEFT, QUICK))
def test_what_the_agent_left_decides(verifier: ModuleType, name: str) -> None:
    files, expected = LEFT[name]
    left_archive(Path(verifier.LEFT), files)
    assert reward(verifier) == expected


@pytest.mark.parametrize(
    "content", [b"", b"no archive", b"\x1f\x8b\x08", None], ids=["empty", "text", "cut off", "missing"]
)
def test_an_archive_that_cannot_be_read_is_the_agents_failure(
    verifier: ModuleType, content: bytes | None
) -> None:
    if content is not None:
        Path(verifier.LEFT).write_bytes(content)
    assert reward(verifier) == "0"


def test_a_full_disk_gives_no_reward(verifier: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    left_archive(Path(verifier.LEFT), RIGHT)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(verifier, "take_over", full)
    with pytest.raises(OSError, match="no space"):
        verifier.main()
    assert not Path(verifier.REWARD).exists()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


HOSTILE: dict[str, list[tarfile.TarInfo]] = {
    "a file below a link": [link("a", ".."), tarfile.TarInfo("a/outside")],
    "a link below a link": [link("a", ".."), link("a/outside", "/none")],
    "a link below a link below a folder": [link("x/a", "../.."), link("x/a/b/outside", "/none")],
    "a hard link to a missing file": [link("a", "none", tarfile.LNKTYPE)],
    "a hard link to itself": [link("a", "b", tarfile.LNKTYPE), link("b", "a", tarfile.LNKTYPE)],
    "a hard link to a link": [link("a", "/etc/passwd"), link("b", "a", tarfile.LNKTYPE)],
    "very deep": [tarfile.TarInfo("d/" * 1500 + "file")],
    "a name that is too long": [tarfile.TarInfo("n" * 300)],
    "upwards": [tarfile.TarInfo("../outside"), tarfile.TarInfo("a/../../outside")],
    "git's own files": [tarfile.TarInfo(".git/config"), tarfile.TarInfo("a/.git/hooks/x")],
}


@pytest.mark.integration
@pytest.mark.parametrize("name", others_later(HOSTILE, {"upwards", "a file below a link", "very deep"}))
def test_a_hostile_archive_has_no_effect_outside_and_no_reward(
    verifier: ModuleType, tmp_path: Path, name: str
) -> None:
    with tarfile.open(verifier.LEFT, "w:gz", format=tarfile.GNU_FORMAT) as archive:
        for member in HOSTILE[name]:
            archive.addfile(member)
    target = tmp_path / "into" / "left"
    target.mkdir(parents=True)
    with contextlib.suppress(Exception):
        verifier.extract(verifier.LEFT, str(target))
    assert not [path for path in tmp_path.rglob("outside") if target not in path.parents]
    assert not list(target.rglob(".git"))
    assert reward(verifier) == "0"


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_FILES"])
def test_a_work_tree_that_is_too_large(
    verifier: ModuleType, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    left_archive(Path(verifier.LEFT), RIGHT)
    monkeypatch.setattr(verifier, limit, 3)
    assert reward(verifier) == "0"


@pytest.mark.integration
def test_tests_that_hang(verifier: ModuleType, task: Path) -> None:
    grading = json.loads((task / "tests" / "task.json").read_text())
    (task / "tests" / "task.json").write_text(json.dumps(grading | {"timeout": 0.5}))
    left_archive(Path(verifier.LEFT), {**FILES, "calc.py": "while True:\n    pass\n"})
    assert reward(verifier) == "0"


XFAIL = "\n\ndef add(a, b):\n    import pytest\n    pytest.xfail('not today')\n"


@pytest.mark.integration
def test_a_test_that_the_code_calls_an_expected_failure(verifier: ModuleType) -> None:
    left_archive(Path(verifier.LEFT), {**FILES, "calc.py": CODE + XFAIL})
    assert reward(verifier) == "0"


@pytest.mark.slow  # quick: test_what_the_agent_left_decides
def test_a_test_that_is_marked_as_an_expected_failure(verifier: ModuleType, task: Path) -> None:
    tests = task / "tests" / "files" / "tests" / "test_calc.py"
    text = tests.read_text().replace("def test_twice", "import pytest\n\n@pytest.mark.xfail\ndef test_twice")
    tests.write_text(text.replace("twice(4) == 8", "twice(4) == 9"))
    left_archive(Path(verifier.LEFT), RIGHT)
    assert reward(verifier) == "1"


@pytest.mark.slow  # quick: test_what_the_agent_left_decides
def test_options_that_pytest_does_not_know_here(verifier: ModuleType, task: Path) -> None:
    """They are dropped, as for m3agent's own grading."""
    (task / "tests" / "files" / "setup.cfg").write_text("[tool:pytest]\naddopts = --no-such-option\n")
    left_archive(Path(verifier.LEFT), RIGHT)
    assert reward(verifier) == "1"


# -- a task of Harbor --------------------------------------------------------------------------------------------------


def test_a_task_has_what_harbor_reads(task: Path) -> None:
    read = tomllib.loads((task / "task.toml").read_text())
    assert read["schema_version"] == "1.4"
    assert read["task"]["name"] == "m3agent/small__calc-1"
    assert read["environment"] == {"docker_image": IMAGE, "workdir": "/testbed"}
    assert (read["verifier"]["environment_mode"], read["verifier"]["timeout_sec"]) == ("separate", 660.0)
    assert "left.tar.gz" in read["verifier"]["collect"][0]["command"]
    assert (task / "instruction.md").read_text().startswith("add is wrong\n")
    assert (task / "environment" / "Dockerfile").read_text().startswith(f"FROM {IMAGE}\n")


def test_what_an_agent_sees_does_not_name_the_tests(task: Path) -> None:
    seen = (task / "instruction.md").read_text() + (task / "environment" / "Dockerfile").read_text()
    assert not any(word in seen for word in ("test_add", "a + b", "test_zero"))


@pytest.mark.integration
def test_the_solution_applies_the_reference(task: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    write_files(work, FILES)
    git(work, "init", "-q")
    script = (task / "solution" / "solve.sh").read_text().replace("/testbed", str(work))
    subprocess.run(["sh", "-c", script], check=True)
    assert (work / "calc.py").read_text() == FIXED


def test_the_tests_of_the_task_are_those_of_the_answer(task: Path) -> None:
    assert (task / "tests" / "files" / "tests" / "test_calc.py").read_text() == NEW_TESTS
    grading = json.loads((task / "tests" / "task.json").read_text())
    assert grading["tests"] == sorted(EVERY)
    assert grading["targets"] == ["tests/test_calc.py"]


def test_a_patch_that_holds_the_end_of_the_script(tmp_path: Path) -> None:
    instance = small_instance(tmp_path / "instance")
    end = "-- \nEND_OF_THE_REFERENCE_PATCH\necho ran\n"
    odd = instance.with_answer(patch=instance.answer.patch + end)
    script = task_of(odd, tmp_path) / "solution" / "solve.sh"
    assert script.read_text().endswith("echo ran\nEND_OF_THE_REFERENCE_PATCH_\n")


# -- which instances are exported --------------------------------------------------------------------------------------


@pytest.mark.integration
async def test_a_task_is_written_once_and_whole(tmp_path: Path) -> None:
    instance = small_instance(tmp_path / "instance")
    told: list[Exported] = []
    assert await exporter(tmp_path).harbor([instance], told.append) == [Exported(instance.id)]
    assert told == [Exported(instance.id)]
    assert [path.name for path in (tmp_path / "out").iterdir()] == [instance.id]
    again = await exporter(tmp_path).harbor([instance], told.append)
    assert again == [Exported(instance.id, kept=True)]


@pytest.mark.parametrize(
    ("changes", "after", "why"),
    [
        ({"runner": "unittest"}, " ".join(EVERY), "run by unittest"),
        ({"test_command": "python run.py"}, " ".join(EVERY), "run by run.py"),
        ({"runner": ""}, " ".join(EVERY), "run by another runner"),
        ({}, TO_KEEP[0], "the reference patch does not resolve it: 2 tests to fix"),
    ],
)
async def test_an_instance_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, Any], after: str, why: str
) -> None:
    instance = small_instance(tmp_path / "instance", **changes)
    (found,) = await exporter(tmp_path, after).harbor([instance], lambda _: None)
    assert why in found.reason
    assert list((tmp_path / "out").iterdir()) == []


async def test_a_fault_of_the_machine_stops_no_other_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def whole_image(self: Environments, task: Task) -> str:
        if task.instance_id == "small__calc-1":
            raise DiskFull("the disk is full")
        return IMAGE

    monkeypatch.setattr(OneImage, "whole_image", whole_image)
    first = small_instance(tmp_path / "instance")
    second = first.model_copy(update={"task": first.task.model_copy(update={"instance_id": "other-1"})})
    found = await exporter(tmp_path).swebench([first, second], lambda _: None)
    failed = Exported(first.id, "this machine failed: the disk is full", machine_failed=True)
    assert found == [failed, Exported("other-1")]


async def test_without_an_engine_nothing_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole_image(self: Environments, task: Task) -> str:
        raise EngineUnavailable("none")

    monkeypatch.setattr(OneImage, "whole_image", whole_image)
    with pytest.raises(EngineUnavailable):
        await exporter(tmp_path).harbor([small_instance(tmp_path / "instance")], lambda _: None)


@pytest.mark.parametrize("spoil", [lambda out: out.write_text("x"), lambda out: out.mkdir()])
async def test_an_output_that_cannot_be_continued(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    out = tmp_path / "out"
    spoil(out)
    if out.is_dir():
        (out / "instances.jsonl").write_text('{"instance_id": "small__calc-1"}\n')
    with pytest.raises(UsageError, match="give a new"):
        await exporter(tmp_path).swebench([small_instance(tmp_path / "instance")], lambda _: None)


# -- rows of SWE-bench -------------------------------------------------------------------------------------------------


async def test_rows_can_be_read_again(tmp_path: Path) -> None:
    instance = small_instance(tmp_path / "instance")
    row = {"hints_text": "a hint", "repo_archive": "repos/x.tar", "repo_ref": "main", "dockerhub_tag": "1"}
    answer = instance.answer.model_copy(update={"row": row})
    task = instance.task.model_copy(update={"base_commit": "1" * 40})
    given = Instance(task=task, answer=answer)
    assert await exporter(tmp_path).swebench([given], lambda _: None) == [Exported(given.id)]
    assert await exporter(tmp_path).swebench([given], lambda _: None) == [Exported(given.id, kept=True)]
    (read,) = load(str(tmp_path / "out"))
    assert read.task.environment.image == IMAGE
    assert (read.answer.fail_to_pass, read.answer.pass_to_pass) == (TO_FIX, TO_KEEP)
    assert read.answer.test_command == "pytest -rA tests/test_calc.py"
    assert read.answer.row["hints_text"] == "a hint"
    assert read.answer.row["image_name"] == IMAGE
    assert not {"repo_archive", "repo_ref", "dockerhub_tag"} & read.answer.row.keys()


@pytest.mark.integration
def test_the_script_of_a_row_shows_the_tests(tmp_path: Path) -> None:
    """The script is run for real, except for the lines that need the image."""
    instance = small_instance(tmp_path / "instance")
    work = tmp_path / "work"
    write_files(work, {**FILES, "calc.py": FIXED, "tests/test_calc.py": "spoilt by a patch"})
    git(work, "init", "-q")
    write_files(work, {"calc.py": CODE, "tests/test_calc.py": FILES["tests/test_calc.py"]})
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "base")
    write_files(work, {"calc.py": FIXED, "tests/test_calc.py": "spoilt by a patch"})
    script: str = row_of(instance, IMAGE)["eval_script"]
    lines = [line for line in script.splitlines() if not line.startswith(("source", "conda", "git config"))]
    here = "\n".join(lines).replace("/testbed", str(work)).replace("pytest -rA", "cat")
    said = subprocess.run(["bash", "-c", here], capture_output=True, text=True, check=True)
    assert said.stdout.endswith(NEW_TESTS)
    assert ">>>>> Start Test Output" in said.stderr
    assert (work / "tests" / "test_calc.py").read_text() == FILES["tests/test_calc.py"]


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["harbor", "swebench"])
def test_the_command_lists_what_is_exported_and_why_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    async def write(
        self: Exporter, instances: list[Instance], tell: Callable[[Exported], None]
    ) -> list[Exported]:
        found = [
            Exported("someone__calc-1"),
            Exported("other-1", kept=True),
            Exported("bad-1", "no\x1b[2J image"),
        ]
        for _, one in zip(instances, found, strict=True):
            tell(one)
        return found

    monkeypatch.setattr(Exporter, form, write)
    names = ("someone__calc-1", "other-1", "bad-1")
    rows = write_rows(tmp_path / "rows.jsonl", *(a_row(instance_id=name) for name in names))
    done = CliRunner().invoke(app, ["eval", "export", rows, "-o", str(tmp_path / "out"), "--format", form])
    assert done.exit_code == 1
    assert done.stdout == "someone__calc-1\nother-1\n"
    assert done.stderr.splitlines() == [
        "[1/3] someone__calc-1: exported",
        "[2/3] other-1: already there",
        "[3/3] bad-1: not exported: no [2J image",
    ]


def test_the_command_refuses_data_that_cannot_be_read(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["eval", "export", str(tmp_path / "none.jsonl"), "-o", str(tmp_path / "out")]
    )
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert not (tmp_path / "out").exists()
