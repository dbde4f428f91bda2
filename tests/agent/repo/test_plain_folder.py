"""Work on a folder that is no git repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from m3agent.agent.delivery.apply import HandOver
from m3agent.agent.repo.plain_folder import is_plain_folder, open_folder
from m3agent.agent.repo.repository import open_repository
from m3agent.util.errors import UsageError
from tests.agent.repositories import write_files
from tests.conftest import git


@pytest.fixture(autouse=True)
def no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(
        tmp_path / "app",
        {"a.py": "x = 1\n", "d/b.py": "y = 2\n", ".gitignore": "*.log\n", "run.log": "noise"},
    )
    return tmp_path / "app"


def test_a_folder_becomes_a_repository_outside_of_it(folder: Path, tmp_path: Path) -> None:
    before = sorted(folder.rglob("*"))
    repository = open_folder(folder, tmp_path / "state")
    assert sorted(folder.rglob("*")) == before
    assert repository.root == folder
    assert is_plain_folder(repository)
    assert repository.list_files() == [".gitignore", "a.py", "d/b.py"]
    assert repository.ignored_files() == ["run.log"]
    assert repository.dirty_paths() == set()
    assert (tmp_path / "state" / "plain-folders").stat().st_mode & 0o777 == 0o700


def test_a_new_session_begins_anew_and_a_resumed_one_does_not(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = open_folder(folder, state)
    (folder / "a.py").write_text("x = 2\n")
    again = open_folder(folder, state, again=True)
    assert (again.head, again.dirty_paths()) == (first.head, {"a.py"})
    new = open_folder(folder, state)
    assert new.head != first.head
    assert new.dirty_paths() == set()


def test_a_repository_is_opened_as_ever(folder: Path, tmp_path: Path) -> None:
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=T", "-c", "user.email=t@localhost", "commit", "-q", "-m", "first")
    for path in (folder, folder / "d"):
        repository = open_folder(path, tmp_path / "state")
        assert (repository.root, repository.head) == (folder, open_repository(path).head)
        assert not is_plain_folder(repository)
    assert not (tmp_path / "state").exists()


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no folder"):
        open_folder(tmp_path / "missing", tmp_path / "state")


@pytest.mark.parametrize("hand_over", [HandOver(branch="fix"), HandOver(pull_request=True)])
def test_a_plain_folder_has_no_branches(folder: Path, tmp_path: Path, hand_over: HandOver) -> None:
    repository = open_folder(folder, tmp_path / "state")
    with pytest.raises(UsageError, match="is no git repository, so it has no branches: use --apply"):
        hand_over.check(repository)
    HandOver(apply=True).check(repository)
