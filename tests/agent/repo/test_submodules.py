"""Sandboxes have the files of submodules that are checked out, and no patch changes them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from m3agent.agent.certificate.build import statement_of
from m3agent.agent.fix.sandbox_setup import suites_of
from m3agent.agent.patches.check import different_patch
from m3agent.agent.repo import snapshot
from m3agent.agent.repo.repository import open_repository
from m3agent.agent.repo.snapshot import workspace_of
from m3agent.agent.settings.settings import Settings
from m3agent.sandbox.errors import PathEscapes
from m3agent.sandbox.store.workspace import Workspace
from tests.agent.certificate.test_certificate import ENVIRONMENT, FOUND
from tests.agent.patches.test_patch_sources import MakeRepo, both, change, commit
from tests.conftest import git

PARTS = {
    "data/.gitignore",
    "data/.gitmodules",
    "data/case.json",
    "data/deep/n.txt",
    "data/go.mod",
    "data/own_test.go",
}
"""The files of the submodule `data`, and of the one in it."""


@pytest.fixture
def repo(make_repo: MakeRepo) -> Path:
    """Return a repository with the submodules `data`, which contains another, and `empty`, which is not checked out."""
    deep = make_repo({"n.txt": "5\n"}, "deep")
    data = make_repo(
        {"case.json": "1\n", ".gitignore": "*.tmp\n", "go.mod": "module own\n", "own_test.go": ""},
        "data-origin",
    )
    root = make_repo({"a.py": "x = 1\n", "tests/test_a.py": "def test_a(): assert 1\n"})
    add = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add")
    git(data, *add, str(deep), "deep")
    git(data, "commit", "-q", "-m", "deep")
    git(root, *add, str(data), "data")
    git(root, *add, str(make_repo({"x": ""}, "other")), "empty")
    git(root, "commit", "-q", "-m", "submodules")
    git(root, "submodule", "--quiet", "deinit", "--force", "empty")
    git(
        root,
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "update",
        "--init",
        "--recursive",
        "data",
    )
    return root


def workspace(root: Path) -> Workspace:
    folder = root.parent / "trees"
    folder.mkdir()
    return workspace_of(open_repository(root), folder, lambda _: None)


def in_submodules(paths: dict[str, str]) -> set[str]:
    return {path for path in paths if path.startswith(("data", "empty"))}


def test_the_files_are_those_on_disk(repo: Path) -> None:
    (repo / "data/case.json").write_text("2\n")
    (repo / "data/junk.tmp").write_text("")
    made = workspace(repo)
    entries = made.entries(made.base)
    assert {path for path in entries if path.startswith(("data", "empty"))} == PARTS
    assert made.store.get_blob(entries["data/case.json"].sha) == b"2\n"
    assert [need.name for need in suites_of(made)] == ["pytest:."], (
        "a submodule's own suites are not the repository's"
    )
    there, missing = made.about_submodules.split("; ")[1:]
    assert ("data" in there, "empty" in there) == (True, False)
    assert ("data" in missing, "empty" in missing) == (False, True)


def test_large_submodules_are_left_out(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "ROOM_FOR_SUBMODULES", 20_000)  # less than 8 KiB for each file
    made = workspace(repo)
    assert not PARTS & made.entries(made.base).keys()
    commit(repo, "fix", {"a.py": "x = 2\n"})
    assert not PARTS & both(change(repo, commits="HEAD"))[1].keys()
    assert "data" in made.about_submodules.partition("they do not have those of")[2]


def test_a_link_in_the_place_of_a_submodule_is_not_followed(repo: Path, make_repo: MakeRepo) -> None:
    outside = make_repo({"secret": "x\n"}, "outside")
    git(repo, "submodule", "--quiet", "deinit", "--force", "data")
    (repo / "data").rmdir()
    (repo / "data").symlink_to(outside)
    made = workspace(repo)
    assert set(made.entries(made.base)) == {".gitmodules", "a.py", "tests/test_a.py"}


def test_a_commit_has_the_files_that_it_names(repo: Path) -> None:
    """Although the submodule is at a newer commit on disk."""
    commit(repo, "fix", {"a.py": "x = 2\n"})
    commit(repo / "data", "newer", {"case.json": "3\n"})
    made = change(repo, commits="HEAD")
    before, after = both(made)
    assert (in_submodules(before), in_submodules(after)) == (PARTS, PARTS)
    assert (before["data/case.json"], made.patch.paths) == ("1\n", ("a.py",))


def test_a_commit_that_removes_a_submodule_is_read_as_before(repo: Path) -> None:
    git(repo, "rm", "-q", "--cached", "data")
    git(repo, "commit", "-q", "-m", "without")
    assert change(repo, commits="HEAD").patch.paths == ("data",)


def test_a_certificate_of_a_commit_holds(repo: Path) -> None:
    commit(repo, "fix", {"a.py": "x = 2\n"})
    made = change(repo, commits="HEAD")
    statement = statement_of(made, FOUND, ENVIRONMENT, Settings(), datetime.now(UTC))
    assert different_patch(statement, made, open_repository(repo)) == []


def test_no_patch_deletes_a_file_of_a_submodule(repo: Path) -> None:
    made = workspace(repo)
    with pytest.raises(PathEscapes, match=r"^data/case\.json belongs to the submodule data"):
        made.patch(made.commit_changes(made.base, [], ["data/case.json"]))
