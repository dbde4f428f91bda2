"""The folder of instances: what a grader gets, what an agent may see, an archive that depends only on its commits."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from m3agent.evals.code.archive import MOST_BYTES, extract_files
from m3agent.evals.create.create import recipe_of
from m3agent.evals.create.folder import (
    CreatedFolder,
    ValidatedCandidate,
    folder_name,
    instance_id,
    pack,
    row_of,
    view,
)
from m3agent.evals.create.graded import Validated
from m3agent.evals.create.history import CommitHistory
from m3agent.evals.data.fields import Fields
from m3agent.evals.data.instance import INSTANCE_ID
from m3agent.evals.data.swebench import read_row
from m3agent.util.errors import UsageError
from tests.evals.create.history_of import FIRST, FIX, MORE_TEST, Repo, candidate

TRIED = ValidatedCandidate(verdict="valid", reason="1", instance_id="x", title="t", score=1, seconds=1.0)
FOUND = Validated(("tests/test_calc.py::test_sum",), ("tests/test_calc.py::test_zero",))


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    made = Repo(tmp_path / "calc")
    made.commit({**FIRST, "sub/deep/data.bin": bytes(range(256)) * 40}, "Begin")
    made.commit(FIX)
    return made


def add(made: CreatedFolder, history: CommitHistory) -> dict[str, object]:
    found = candidate(history)
    recipe = recipe_of(history, found.base, found.commit, None)
    row = row_of(made.repo, found, recipe, ("Sums are wrong.\n", "message"), FOUND)
    made.add(found.commit.sha, TRIED, row, history.store)
    return row


def unpack(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as tar:
        extract_files(tar, target, MOST_BYTES)
    return next(target.glob("*.git"))


def test_an_archive_has_each_base_under_its_own_id_and_nothing_else(repo: Repo, tmp_path: Path) -> None:
    with CreatedFolder.opened(tmp_path / "out", "me/calc") as made:
        first = add(made, repo.history(tmp_path / "s1"))
        repo.commit({"calc.py": "add = sum\n", "tests/test_calc.py": MORE_TEST.replace("3", "4")})
        second = add(made, repo.history(tmp_path / "s2"))
        bare = unpack(made.archive, tmp_path / "unpacked")

    def git(*args: str) -> str:
        done = subprocess.run(["git", "-C", str(bare), *args], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    assert bare.name == "me__calc.git" and made.archive.name == "me__calc.shallow.git.tar.gz"
    assert git("fsck", "--full", "--strict") == ""
    refs = dict(
        line.split(" ")[::-1]
        for line in git("for-each-ref", "--format=%(objectname) %(refname)").splitlines()
    )
    assert refs == {str(row["repo_ref"]): row["base_commit"] for row in (first, second)}
    assert git("rev-list", "--all", "--count") == "2"
    objects = {
        line.split()[0] for line in git("cat-file", "--batch-all-objects", "--batch-check").splitlines()
    }
    assert objects == {line.split()[0] for line in git("rev-list", "--objects", "--all").splitlines()}
    clone = tmp_path / "clone"
    branch = str(first["repo_ref"]).removeprefix("refs/heads/")
    command = ["git", "clone", "-q", "--depth", "1", "--branch", branch, f"file://{bare}", str(clone)]
    subprocess.run(command, check=True, capture_output=True)
    assert (
        subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=clone, capture_output=True, text=True, check=True
        ).stdout.strip()
        == first["base_commit"]
    )
    assert (clone / "sub/deep/data.bin").read_bytes() == bytes(range(256)) * 40


def test_the_same_commits_give_the_same_bytes_however_they_are_packed(repo: Repo, tmp_path: Path) -> None:
    base = repo.git("rev-parse", "HEAD~")

    def packed(name: str) -> bytes:
        history = repo.history(tmp_path / name)
        return pack(history.store, {"refs/heads/base/x": base}, "calc")

    loose = packed("a")
    repo.git("gc", "-q", "--aggressive")
    assert packed("b") == loose


def test_temporary_files_may_be_in_another_file_system(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git cannot rename a pack from one file system to another; /tmp often is one of its own."""
    history = repo.history(tmp_path / "history")
    other = next(
        (
            folder
            for folder in ("/dev/shm", "/tmp", "/var/tmp")
            if os.access(folder, os.W_OK) and Path(folder).stat().st_dev != tmp_path.stat().st_dev
        ),
        None,
    )
    if other is None:
        pytest.skip("there is only one file system")
    monkeypatch.setattr(tempfile, "tempdir", other)
    assert pack(history.store, {"refs/heads/base/x": repo.git("rev-parse", "HEAD~")}, "calc")


def test_an_agent_sees_neither_patches_nor_tests_nor_the_fix(repo: Repo, tmp_path: Path) -> None:
    with CreatedFolder.opened(tmp_path / "out", "me/calc") as made:
        row = add(made, repo.history(tmp_path / "s"))
    (line,) = (tmp_path / "out/agent_view.jsonl").read_text().splitlines()
    seen = json.loads(line)
    assert seen == json.loads(json.dumps(view(row)))
    assert set(seen) == {
        "instance_id", "repo", "base_commit", "problem_statement", "version", "environment", "repo_archive", "repo_ref",
    }  # fmt: skip
    for hidden in ("test_calc", "test_sum", "return a + b", str(row["fix_commit"])[:12]):
        assert hidden in json.dumps(row) and hidden not in line
    assert row["FAIL_TO_PASS"] == '["tests/test_calc.py::test_sum"]'
    (whole,) = (tmp_path / "out/instances.jsonl").read_text().splitlines()
    assert json.loads(whole) == json.loads(json.dumps(row))


def test_a_row_is_an_instance(repo: Repo, tmp_path: Path) -> None:
    with CreatedFolder.opened(tmp_path / "out", "me/calc") as made:
        row = add(made, repo.history(tmp_path / "s"))
    instance = read_row(Fields(row, "row"), tmp_path / "out")
    assert (
        instance.answer.fail_to_pass == FOUND.fail_to_pass
        and instance.answer.pass_to_pass == FOUND.pass_to_pass
    )
    assert instance.answer.test_command == "pytest -rA tests/test_calc.py"
    assert instance.task.source.ref == f"refs/heads/base/{instance.id}"
    assert instance.task.environment.pip_packages == ("pytest",)


def test_a_folder_is_gone_on_with(repo: Repo, tmp_path: Path) -> None:
    with CreatedFolder.opened(tmp_path / "out", "me/calc") as made:
        row = add(made, repo.history(tmp_path / "s"))
    with CreatedFolder.opened(tmp_path / "out", "me/calc") as made:
        assert list(made.tried.values()) == [TRIED]
        assert list(made.rows) == [row["instance_id"]]
        with (
            pytest.raises(UsageError, match="Another process works in"),
            CreatedFolder.opened(tmp_path / "out", "me/calc"),
        ):
            pass


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"notes.txt": "x"}, "is not empty and is not a folder of instances"),
        (
            {"create.json": '{"v":1,"repo":"other/one","tried":{}}'},
            "holds instances of other/one, not of me/calc",
        ),
        ({"create.json": '{"v":1,'}, "its files are damaged"),
        ({"create.json": '{"v":1,"repo":"me/calc"}', "instances.jsonl": "[]\n"}, "its files are damaged"),
    ],
)
def test_a_folder_that_is_something_else_is_refused(files: dict[str, str], said: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=said), CreatedFolder.opened(tmp_path, "me/calc"):
        pass
    assert all((tmp_path / name).read_text() == content for name, content in files.items())


@pytest.mark.parametrize("repo_name", ["me/calc", "caf\u00e9 & co", "..", "-x/-y", "a" * 300])
def test_any_name_gives_an_id_that_is_one(repo_name: str) -> None:
    assert INSTANCE_ID.fullmatch(instance_id(repo_name, "0" * 40)) and "/" not in folder_name(repo_name)
