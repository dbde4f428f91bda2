"""Test opening repositories of every form, listing their files, and refusing damaged or unsafe ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from m3agent.agent.errors import EnvironmentFault, M3AgentError, UsageError
from m3agent.agent.repo.repository import GitCommandFailed, git, last_tag, open_repository
from tests.agent.repositories import found, no_repository

if TYPE_CHECKING:
    from tests.agent.conftest import NewRepo, RunGit, WriteFiles


@pytest.fixture(autouse=True)
def _no_user_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)


def refused(path: Path, kind: type[M3AgentError]) -> str:
    with pytest.raises(kind) as caught:
        open_repository(path)
    assert type(caught.value) is kind
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith(".")
    return sentence


def test_opens_a_clone_from_any_folder_inside(new_repo: NewRepo, run_git: RunGit) -> None:
    root = new_repo(files={"src/deep/a.py": b"x = 1\n"})
    head = run_git(root, "rev-parse", "HEAD")
    for path in (root, root / "src" / "deep", root / ".git"):
        repository = open_repository(path)
        assert (repository.root, repository.git_dir) == (root, root / ".git")
        assert (repository.head, repository.branch) == (head, "main")
        assert not repository.bare and not repository.shallow


def test_detached_head(new_repo: NewRepo, run_git: RunGit) -> None:
    root = new_repo()
    run_git(root, "checkout", "--quiet", "--detach")
    assert open_repository(root).branch is None


def test_the_last_tag_is_the_nearest_in_the_history(new_repo: NewRepo, run_git: RunGit) -> None:
    root = new_repo()
    assert last_tag(open_repository(root)) is None
    for name in ("v1.0", "v1.1"):
        run_git(root, "tag", name)
        run_git(root, "commit", "--quiet", "--allow-empty", "-m", "next")
    assert last_tag(open_repository(root)) == "v1.1"
    run_git(root, "checkout", "--quiet", "v1.0")
    assert last_tag(open_repository(root)) == "v1.0"


def test_bare_clone_lists_the_files_of_head(new_repo: NewRepo, run_git: RunGit, tmp_path: Path) -> None:
    root = new_repo(files={"b/c.py": b"1\n", "a.py": b"2\n"})
    (root / "link").symlink_to("a.py")
    run_git(root, "add", "link")
    run_git(root, "commit", "--quiet", "--message=link")
    run_git(tmp_path, "clone", "--quiet", "--bare", str(root), "bare.git")
    repository = open_repository(tmp_path / "bare.git")
    assert repository.bare and repository.root is None and repository.git_dir == tmp_path / "bare.git"
    assert repository.list_files() == ["a.py", "b/c.py"]
    assert repository.dirty_paths() == set()


def test_shallow_clone(new_repo: NewRepo, run_git: RunGit, tmp_path: Path) -> None:
    root = new_repo()
    run_git(root, "commit", "--quiet", "--allow-empty", "--message=second")
    run_git(tmp_path, "clone", "--quiet", "--depth=1", root.as_uri(), "shallow")
    repository = open_repository(tmp_path / "shallow")
    assert repository.shallow and repository.list_files() == ["a.py"]


def test_worktree_and_submodule(new_repo: NewRepo, run_git: RunGit, tmp_path: Path) -> None:
    root, other = new_repo("repo"), new_repo("other", {"o.py": b"1\n"})
    run_git(root, "worktree", "add", "--quiet", "-b", "side", str(tmp_path / "tree"))
    worktree = open_repository(tmp_path / "tree")
    assert (worktree.root, worktree.branch, worktree.bare) == (tmp_path / "tree", "side", False)
    assert worktree.list_files() == ["a.py"]

    run_git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    submodule = open_repository(root / "sub")
    assert (submodule.root, submodule.git_dir) == (root / "sub", root / ".git" / "modules" / "sub")
    assert submodule.list_files() == ["o.py"]
    assert open_repository(root).list_files() == [".gitmodules", "a.py"]


def test_worktree_of_a_bare_clone(new_repo: NewRepo, run_git: RunGit, tmp_path: Path) -> None:
    run_git(tmp_path, "clone", "--quiet", "--bare", str(new_repo()), "bare.git")
    run_git(tmp_path / "bare.git", "worktree", "add", "--quiet", str(tmp_path / "tree"), "main")
    repository = open_repository(tmp_path / "tree")
    assert repository.root == tmp_path / "tree" and not repository.bare
    assert repository.list_files() == ["a.py"]


def test_lists_tracked_and_new_files_once(
    new_repo: NewRepo, run_git: RunGit, write_files: WriteFiles
) -> None:
    root = new_repo(files={"gone.py": b"", "kept.py": b"", ".gitignore": b"*.log\n", "tracked.log": b""})
    (root / "gone.py").unlink()
    write_files(root, {"new.py": b"", "x.log": b"", "nested/n.py": b""})
    run_git(root / "nested", "init", "--quiet")
    run_git(root / "nested", "add", ".")
    run_git(root / "nested", "commit", "--quiet", "--message=nested")
    assert open_repository(root).list_files() == [".gitignore", "kept.py", "new.py", "tracked.log"]


def test_conflicted_files_are_listed_once(new_repo: NewRepo, run_git: RunGit) -> None:
    root = new_repo()
    run_git(root, "checkout", "--quiet", "-b", "side")
    (root / "a.py").write_text("x = 2\n")
    run_git(root, "commit", "--quiet", "--all", "--message=side")
    run_git(root, "checkout", "--quiet", "main")
    (root / "a.py").write_text("x = 3\n")
    run_git(root, "commit", "--quiet", "--all", "--message=main")
    with pytest.raises(Exception, match="non-zero exit status"):
        run_git(root, "merge", "side")
    assert open_repository(root).list_files() == ["a.py"]


def test_links_out_of_the_tree_are_left_out(new_repo: NewRepo, run_git: RunGit, tmp_path: Path) -> None:
    secret = tmp_path / "outside"
    secret.mkdir()
    (secret / "key").write_text("secret")
    root = new_repo(files={"a.py": b"", "dir/key": b"mine"})
    for name, target in {
        "in": "a.py",
        "out": "../outside/key",
        "abs": str(secret / "key"),
        "loop": "loop",
        "broken": "nowhere",
    }.items():
        (root / name).symlink_to(target)
    run_git(root, "add", "--all")
    run_git(root, "commit", "--quiet", "--message=links")
    (root / "dir" / "key").unlink()
    (root / "dir").rmdir()
    (root / "dir").symlink_to(secret)
    assert open_repository(root).list_files() == ["a.py", "in"]


def test_names_that_are_not_utf_8(new_repo: NewRepo) -> None:
    root = new_repo(files={b"caf\xe9.py": b"1\n", b"with\nnewline \xc3\xa4": b"2\n"})
    repository = open_repository(root)
    assert repository.list_files() == ["caf\udce9.py", "with\nnewline ä"]
    (root / "caf\udce9.py").write_text("2\n")
    assert repository.dirty_paths() == {"caf\udce9.py"}


def test_dirty_paths(new_repo: NewRepo, run_git: RunGit, write_files: WriteFiles) -> None:
    files = {name: name.encode() for name in ("same", "edited", "staged", "removed", "old name")}
    root = new_repo(files=files | {".gitignore": b"*.log\n"})
    repository = open_repository(root)
    assert repository.dirty_paths() == set()
    (root / "edited").write_text("changed")
    (root / "staged").write_text("changed")
    (root / "removed").unlink()
    run_git(root, "add", "staged")
    run_git(root, "mv", "old name", "new name")
    write_files(root, {"folder/new": b"", "x.log": b""})
    assert repository.dirty_paths() == {"edited", "staged", "removed", "old name", "new name", "folder/new"}


def test_looking_changes_nothing_and_starts_nothing(
    new_repo: NewRepo, run_git: RunGit, tmp_path: Path
) -> None:
    root = new_repo()
    for name in ("post-index-change", "fsmonitor"):
        hook = root / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
        hook.chmod(0o755)
    run_git(root, "config", "core.fsmonitor", str(root / ".git" / "hooks" / "fsmonitor"))
    os.utime(root / "a.py", (1, 1))  # git would now refresh its index
    before = (root / ".git" / "index").read_bytes()
    repository = open_repository(root)
    repository.list_files()
    repository.dirty_paths()
    assert (root / ".git" / "index").read_bytes() == before
    assert not (tmp_path / "ran").exists()


def test_variables_set_inside_hooks_are_ignored(new_repo: NewRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    root, other = new_repo("repo"), new_repo("other", {"o.py": b""})
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    repository = open_repository(root)
    assert repository.root == root and repository.list_files() == ["a.py"]


def test_home_is_not_needed(new_repo: NewRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    assert open_repository(new_repo()).list_files() == ["a.py"]


def test_not_a_repository(tmp_path: Path) -> None:
    assert "is not in a git repository" in refused(tmp_path, UsageError)
    assert "There is no folder" in refused(tmp_path / "absent", UsageError)
    (tmp_path / "file").touch()
    assert "is not a folder" in refused(tmp_path / "file", UsageError)


def test_a_repository_without_commits(tmp_path: Path, new_repo: NewRepo, run_git: RunGit) -> None:
    run_git(tmp_path, "init", "--quiet", "--initial-branch=trunk", "empty")
    assert "no commit on its branch trunk" in refused(tmp_path / "empty", UsageError)
    run_git(tmp_path, "init", "--quiet", "--bare", "--initial-branch=trunk", "empty.git")
    assert "no commit on its branch trunk" in refused(tmp_path / "empty.git", UsageError)
    root = new_repo()
    run_git(root, "checkout", "--quiet", "--orphan", "fresh")
    assert "no commit on its branch fresh" in refused(root, UsageError)


def test_damaged_repositories(new_repo: NewRepo, run_git: RunGit) -> None:
    lost = new_repo("lost")
    head = run_git(lost, "rev-parse", "HEAD")
    (lost / ".git" / "objects" / head[:2] / head[2:]).unlink()
    assert "cannot be used (git says:" in refused(lost, EnvironmentFault)

    headless = new_repo("headless")
    (headless / ".git" / "HEAD").unlink()
    assert "incomplete or damaged" in refused(headless, EnvironmentFault)

    dangling = new_repo("dangling")
    (dangling / ".git" / "refs" / "heads" / "main").write_text("0123456789" * 4 + "\n")
    assert "cannot be used (git says:" in refused(dangling, EnvironmentFault)

    garbled = new_repo("garbled")
    (garbled / ".git" / "config").write_text("[core\n")
    assert "bad config line 1" in refused(garbled, EnvironmentFault)


def test_a_work_tree_elsewhere_is_refused(new_repo: NewRepo, run_git: RunGit, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("secret")
    for target in (tmp_path, tmp_path / "elsewhere"):
        target.mkdir(exist_ok=True)
        root = new_repo(f"to-{target.name}")
        run_git(root, "config", "core.worktree", str(target))
        assert "core.worktree" in refused(root, EnvironmentFault)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_repository(new_repo: NewRepo) -> None:
    root = new_repo()
    os.chown(root, 12345, 12345)
    os.chown(root / ".git", 12345, 12345)
    assert f"git config --global --add safe.directory {root}" in refused(root, EnvironmentFault)


def test_git_missing_or_too_old(new_repo: NewRepo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = new_repo()
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    assert "git is not installed" in refused(root, EnvironmentFault)
    with pytest.raises(EnvironmentFault, match="not installed"):
        git(found(root), ["version"])
    (programs / "git").write_text("#!/bin/sh\necho git version 1.8.3.1\n")
    (programs / "git").chmod(0o755)
    assert "git 1.8 is too old: git 2.30" in refused(root, EnvironmentFault)


def test_git_reports_what_went_wrong(new_repo: NewRepo, tmp_path: Path) -> None:
    root = new_repo()
    with pytest.raises(GitCommandFailed, match=r"^git cat-file failed: .*nonsense\.$"):
        git(found(root), ["cat-file", "-p", "nonsense"])
    with pytest.raises(EnvironmentFault, match="is gone"):
        git(no_repository(tmp_path / "absent"), ["version"])
    assert git(found(root), ["hash-object", "--stdin"], stdin=b"x\n").strip().isalnum()


def test_git_that_hangs_is_ended(new_repo: NewRepo, tmp_path: Path) -> None:
    root = new_repo()
    os.mkfifo(tmp_path / "never")
    with pytest.raises(EnvironmentFault, match="did not end within"):
        git(found(root), ["hash-object", str(tmp_path / "never")], timeout=0.2)
