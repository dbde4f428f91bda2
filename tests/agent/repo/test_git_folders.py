"""Test how git is given its repository, and which keys of the repository's configuration it sees."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from m3agent.agent.repo.host_git import LINKED, find
from m3agent.agent.repo.repository import open_repository
from m3agent.sandbox.store.git_command import for_no_repository
from m3agent.util.errors import EnvironmentFault, UsageError
from tests.agent.repositories import NewRepo, found, run_git, write_files


def stand_in(folder: Path) -> Path:
    """Return the folder that git gets in place of the repository's common folder."""
    return Path(found(folder).command().environment["GIT_COMMON_DIR"])


def keys(folder: Path, *, remote: bool = False) -> dict[str, str]:
    """Return the configuration keys that git sees apart from the user's."""
    done = subprocess.run(
        ["git", "config", "--local", "--null", "--list"],
        env=found(folder).command(remote=remote).environment,
        check=True,
        capture_output=True,
    )
    entries = os.fsdecode(done.stdout).split("\0")[:-1]
    return {key: value for key, _, value in (entry.partition("\n") for entry in entries)}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("core.autocrlf", "input"),
        ("user.name", 'An "odd"; # name\\'),
        ("user.name", " two\nlines\tand more \r"),
        ("user.name", "caf\udce9"),
        ('remote.a"]\\b .c.url', "https://host.invalid/x"),
        ("remote.[core] fsmonitor = x.url", "y"),
        ("branch.main.merge", ""),
    ],
)
def test_plain_data_is_passed_on_unchanged(new_repo: NewRepo, key: str, value: str) -> None:
    root = new_repo()
    run_git(root, "config", key, value)
    assert keys(root) == keys(new_repo("other")) | {key: value}


def test_keys_that_are_not_plain_data_are_dropped(new_repo: NewRepo, tmp_path: Path) -> None:
    root = new_repo()
    expected = keys(root)
    (tmp_path / "more").write_text("[user]\n name = Included\n")
    for key in ("include.path", "includeIf.gitdir:/**.path", "core.attributesFile", "core.excludesFile"):
        run_git(root, "config", key, str(tmp_path / "more"))
    for key in ("remote.x.vcs", "url.ext::x.insteadOf", "http.proxy", "http.extraHeader", "alias.status"):
        run_git(root, "config", key, "x")
    assert keys(root) == expected


def test_headers_are_for_remotes(new_repo: NewRepo) -> None:
    root = new_repo()
    run_git(root, "config", "http.https://host.invalid/.extraheader", "Authorization: basic x")
    assert "http.https://host.invalid/.extraheader" in keys(root, remote=True)
    assert "http.https://host.invalid/.extraheader" not in keys(root)
    assert "ext" not in found(root).command(remote=True).environment["GIT_ALLOW_PROTOCOL"].split(":")
    assert found(root).command().environment["GIT_ALLOW_PROTOCOL"] == "none"


def test_a_changed_configuration_counts_at_once(new_repo: NewRepo) -> None:
    root = new_repo()
    repository = open_repository(root)
    for value in ("true", "input", "false"):
        run_git(root, "config", "core.autocrlf", value)
        assert repository.git("config", "core.autocrlf").decode().strip() == value
        assert keys(root)["core.autocrlf"] == value
    (root / ".git" / "config").unlink()
    assert keys(root) == {}


def test_it_is_made_once_for_its_owner_only(new_repo: NewRepo, own_state: Path) -> None:
    root = new_repo()
    folder = stand_in(root)
    assert folder.parent == own_state / "state" / "git"
    assert {path.stat().st_mode & 0o777 for path in (folder, folder.parent)} == {0o700}
    assert {path.name for path in folder.iterdir()} == {*LINKED, "config"}
    before = (folder / "config").stat().st_ino
    assert stand_in(root) == folder
    assert (folder / "config").stat().st_ino == before


def _open_often(folder: str) -> list[list[str]]:
    listed = []
    for _ in range(10):
        config = stand_in(Path(folder)) / "config"
        stale = config.with_name(f"config.{os.getpid()}")  # with another stamp, it has to be written again
        stale.write_bytes(b"# stale\n" + config.read_bytes().partition(b"\n")[2])
        stale.replace(config)  # at no time without a configuration, which git in another process may read now
        listed.append(open_repository(Path(folder)).list_files())
    return listed


@pytest.mark.slow
@pytest.mark.integration
def test_processes_may_make_it_at_once(new_repo: NewRepo, own_state: Path) -> None:
    root = new_repo()
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with threads can hang
    with ProcessPoolExecutor(4, mp_context=spawn) as pool:
        assert list(pool.map(_open_often, [str(root)] * 4)) == [[["a.py"]] * 10] * 4
    (folder,) = (own_state / "state" / "git").iterdir()
    assert {path.name for path in folder.iterdir()} == {*LINKED, "config"}, "nothing half done is left"


def test_a_state_folder_that_cannot_be_made(
    new_repo: NewRepo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("M3AGENT_STATE", str(tmp_path / "file" / "state"))
    root = new_repo()
    folder = stand_in(root)
    assert folder.parent == Path(tempfile.gettempdir())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert stand_in(root) == folder
    assert open_repository(root).list_files() == ["a.py"]


def test_a_bare_repository_with_work_trees_beside_it(new_repo: NewRepo, tmp_path: Path) -> None:
    """`project/.git` names `project/.bare`, and each branch has its folder in `project`."""
    project = tmp_path / "project"
    run_git(tmp_path, "clone", "--quiet", "--bare", str(new_repo()), "project/.bare")
    (project / ".git").write_text("gitdir: ./.bare\n")
    run_git(project, "worktree", "add", "--quiet", "main")
    for folder in (project, project / ".bare"):
        repository = open_repository(folder)
        assert repository.bare and repository.git_dir == project / ".bare"
        assert repository.list_files() == ["a.py"]
    linked = open_repository(project / "main")
    assert linked.root == project / "main" and linked.common_dir == project / ".bare"
    (project / "main" / "a.py").write_text("changed\n")
    assert linked.dirty_paths() == {"a.py"}


def test_a_sparse_checkout(new_repo: NewRepo) -> None:
    """Git sees a sparse checkout's keys in `config.worktree`; other keys there count no more than those of `config`."""
    root = new_repo(files={"kept/a.py": b"", "left/b.py": b""})
    run_git(root, "sparse-checkout", "set", "--cone", "kept")
    run_git(root, "config", "--worktree", "core.editor", "x")
    assert not (root / "left").exists()
    assert keys(root)["core.sparsecheckout"] == "true"
    assert not {"core.editor", "extensions.worktreeconfig"} & keys(root).keys()
    repository = open_repository(root)
    assert repository.list_files() == ["kept/a.py"] and repository.dirty_paths() == set()


def test_longer_ids_and_packed_references(tmp_path: Path) -> None:
    run_git(tmp_path, "init", "--quiet", "--object-format=sha256", "--initial-branch=main", "repo")
    root = tmp_path / "repo"
    write_files(root, {"a.py": b"1\n"})
    run_git(root, "add", ".")
    run_git(root, "commit", "--quiet", "--message=first")
    run_git(root, "pack-refs", "--all")
    run_git(root, "gc", "--quiet")
    repository = open_repository(root)
    assert len(repository.head) == 64 and repository.list_files() == ["a.py"]


def test_a_format_that_git_does_not_know_stays_refused(new_repo: NewRepo) -> None:
    root = new_repo()
    run_git(root, "config", "core.repositoryFormatVersion", "1")
    run_git(root, "config", "extensions.unheardOf", "true")
    with pytest.raises(EnvironmentFault, match="unknown repository extension"):
        open_repository(root)


def test_files_in_the_place_of_gits_own(new_repo: NewRepo, tmp_path: Path) -> None:
    root = new_repo()
    (root / ".git" / "config").unlink()
    os.mkfifo(root / ".git" / "config")  # a pipe without a writer, so reading it would block
    with pytest.raises(EnvironmentFault, match="config is not a usable git folder"):
        open_repository(root)
    for name, content in (("lost", "gitdir: /nowhere\n"), ("null", "gitdir: a\0b\n"), ("text", "hello\n")):
        (root / name).mkdir()
        (root / name / ".git").write_text(content)
        with pytest.raises(EnvironmentFault, match=rf"{name}/\.git is not a usable git folder"):
            open_repository(root / name)


def test_a_folder_that_only_looks_like_git_is_passed_over(new_repo: NewRepo) -> None:
    root = new_repo()
    (root / "d" / ".git").mkdir(parents=True)
    assert open_repository(root / "d").root == root


def test_git_finds_no_repository_by_itself(tmp_path: Path) -> None:
    assert find(str(tmp_path)) is None
    done = for_no_repository().run("status", cwd=tmp_path)
    assert done.returncode and b"not a git repository: '/dev/null'" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_repository_that_the_user_trusts(new_repo: NewRepo) -> None:
    root = new_repo()
    for path in (root / ".git", root):
        os.chown(path, 12345, 12345)
        with pytest.raises(EnvironmentFault, match=r"safe\.directory"):
            open_repository(root)
    # the repository cannot declare itself safe
    run_git(root, "config", "--file", str(root / ".git" / "config"), "safe.directory", "*")
    with pytest.raises(EnvironmentFault, match=r"safe\.directory"):
        open_repository(root)
    subprocess.run(["git", "config", "--global", "safe.directory", str(root)], check=True)
    assert open_repository(root).list_files() == ["a.py"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_the_repository_of_who_called_sudo(new_repo: NewRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    root = new_repo()
    for path in (root, root / ".git"):
        os.chown(path, 12345, 12345)
    monkeypatch.setenv("SUDO_UID", "12345")
    assert open_repository(root).root == root


def test_git_folder_of_a_submodule_is_not_a_repository(new_repo: NewRepo, tmp_path: Path) -> None:
    root, other = new_repo("repo"), new_repo("other")
    run_git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    with pytest.raises(UsageError, match="give the folder"):
        open_repository(root / ".git" / "modules" / "sub")
