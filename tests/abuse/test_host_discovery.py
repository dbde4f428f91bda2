"""Repositories laid out so that git would use another one than the user means, or more than it.

m3agent uses the repository of the work tree and nothing else, and none of the programs that a stranger names runs.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.agent.context.checkout import quick_checkout
from m3agent.agent.repo.host_git import find
from m3agent.agent.repo.repository import Repository, open_repository
from m3agent.util.errors import EnvironmentFault, UsageError
from tests.abuse.test_host_config import Hostile
from tests.abuse.test_host_git import CONFIG
from tests.agent.repositories import write_files
from tests.conftest import git

pytestmark = pytest.mark.integration

MakeRepo = Callable[..., Path]


class Outer(Hostile):
    """The user's repository, with a stranger's bare repository `nested` among its files."""

    def __init__(self, make_repo: MakeRepo, folder: Path) -> None:
        super().__init__(make_repo({"mine.py": "z = 1\n", "a.py": "x = 1\n"}), folder)
        self.nested = self.root / "nested"
        self.git("clone", "-q", "--bare", str(make_repo({"a.py": "evil = 1\n"}, "evil")), str(self.nested))
        self.configure(CONFIG, where="nested/config")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "nested")
        self.mark.unlink(missing_ok=True)

    def opened(self, folder: Path) -> Repository:
        """Open the repository of a folder in both ways, and do everything with it."""
        quick = quick_checkout(str(folder))
        repository = open_repository(folder)
        if repository.root is not None:
            assert quick is not None
            assert (quick.git_dir, quick.head) == (str(repository.git_dir), repository.head)
            self.use(repository.root, self.root.parent)
        return repository


@pytest.fixture
def outer(make_repo: MakeRepo, tmp_path: Path) -> Outer:
    return Outer(make_repo, tmp_path)


@pytest.mark.slow  # quick: tests/agent/repo/test_repository.py
@pytest.mark.parametrize("below", ["objects", "objects/info", "refs/heads", "hooks"])
def test_folders_of_a_nested_repository_belong_to_the_outer_one(outer: Outer, below: str) -> None:
    (outer.nested / below).mkdir(parents=True, exist_ok=True)
    assert outer.opened(outer.nested / below).git_dir == outer.root / ".git"
    assert not outer.ran()


@pytest.mark.parametrize("link", ["repo/link", "link", "repo/deep/er"])
def test_a_link_to_a_nested_repository(outer: Outer, tmp_path: Path, link: str) -> None:
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(outer.nested)
    with pytest.raises(UsageError, match="is a bare repository inside the work tree"):
        find(str(tmp_path / link))
    (tmp_path / link).unlink()
    (tmp_path / link).symlink_to(outer.nested / "objects")
    assert outer.opened(tmp_path / link).git_dir == outer.root / ".git"
    assert not outer.ran()


@pytest.mark.parametrize(
    "names",
    [
        ["GIT_DIR"],
        ["GIT_DIR", "GIT_WORK_TREE"],
        ["GIT_COMMON_DIR"],
        ["GIT_CEILING_DIRECTORIES"],
        ["GIT_CONFIG", "GIT_INDEX_FILE"],
        ["GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"],
    ],
)
def test_variables_select_no_repository(
    outer: Outer, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    below = {"GIT_CONFIG": "config", "GIT_INDEX_FILE": "index"}
    for name in names:
        monkeypatch.setenv(name, str(outer.nested / below.get(name, "")))
    (outer.root / "sub").mkdir()
    assert outer.opened(outer.root / "sub").git_dir == outer.root / ".git"
    for name in names:
        monkeypatch.delenv(name)
    assert outer.git("show", "fixed:mine.py") == "z = 1"
    assert not outer.ran()


@pytest.mark.parametrize("name", ["../nested", "../nested/../nested/", "../link"])
def test_a_file_that_names_a_nested_repository(outer: Outer, name: str) -> None:
    """A clone has no file .git, an archive may. That repository is used, its configuration is not."""
    write_files(outer.root, {"sub/.git": f"gitdir: {name}\n", "sub/a.py": "evil = 1\n"})
    (outer.root / "link").symlink_to("nested")
    assert outer.opened(outer.root / "sub").git_dir == outer.nested
    assert not outer.ran()


def test_a_file_that_names_a_repository_has_a_limit(outer: Outer) -> None:
    write_files(outer.root, {"sub/.git": "gitdir: ../nested\n"})
    with (outer.root / "sub/.git").open("r+b") as file:
        file.truncate(1 << 40)  # without data
    with pytest.raises(EnvironmentFault, match="not a usable git folder"):
        find(str(outer.root / "sub"))


def test_a_work_tree_whose_shared_folder_is_a_strangers(outer: Outer, tmp_path: Path) -> None:
    outer.git("worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    (outer.root / ".git/worktrees/linked/commondir").write_text(f"{outer.nested}\n")
    (outer.nested / "objects/info").mkdir(exist_ok=True)
    (outer.nested / "objects/info/alternates").write_text(f"{outer.root}/.git/objects\n")
    assert outer.opened(tmp_path / "linked").common_dir == outer.nested
    assert not outer.ran()


def test_objects_borrowed_from_a_stranger(outer: Outer) -> None:
    """Git asks such a repository for its references, in some commands."""
    outer.configure("[core]\n alternateRefsCommand = {run}\n")
    (outer.root / ".git/objects/info/alternates").write_text(f"{outer.nested}/objects\n")
    assert outer.opened(outer.root).git_dir == outer.root / ".git"
    assert not outer.ran()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_submodule_with_a_strangers_folder(outer: Outer, make_repo: MakeRepo, elsewhere: bool) -> None:
    """Git enters submodules to see whether they changed, with their own configuration."""
    other = make_repo({"a.py": "x = 1\n"}, "other")
    outer.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    outer.git("commit", "-q", "-m", "submodule")
    for where in (".git/modules/sub/config", ".git/config"):
        outer.configure(CONFIG, where=where)
    write_files(outer.root, {"sub/a.py": "dirty\n"})
    write_files(
        outer.root,
        {".git/config": (outer.root / ".git/config").read_text() + '[submodule "sub"]\n ignore = none\n'},
    )
    if elsewhere:
        (outer.root / "sub/.git").write_text("gitdir: ../nested\n")
    outer.opened(outer.root)
    assert not outer.ran()


@pytest.mark.parametrize("option", ["--split-index", "--fsmonitor", "--untracked-cache", "--index-version=4"])
def test_an_index_with_extensions(outer: Outer, option: str) -> None:
    outer.configure("[core]\n fsmonitor = {run}\n untrackedCache = true\n splitIndex = true\n")
    outer.git("update-index", option)
    outer.git("status")
    assert outer.ran(), "git would"
    outer.mark.unlink()
    outer.opened(outer.root)
    assert not outer.ran()


def hostile_index(blobs: dict[bytes, str]) -> bytes:
    """Return an index with entries that git itself would refuse to add."""
    entries = b""
    for path, blob in sorted(blobs.items()):
        entry = struct.pack(">10I20sH", *[0] * 6, 0o100644, 0, 0, 0, bytes.fromhex(blob), len(path)) + path
        entries += entry + b"\0" * (8 - len(entry) % 8)
    content = struct.pack(">4sII", b"DIRC", 2, len(blobs)) + entries
    return content + hashlib.sha1(content).digest()


def test_an_index_with_paths_outside(outer: Outer, tmp_path: Path) -> None:
    write_files(tmp_path, {"secret.py": "hush = 1\n"})
    outside = [b"../secret.py", os.fsencode(tmp_path / "secret.py"), b"sub/../../secret.py", b".git/config"]
    blobs = {name.encode(): outer.git("rev-parse", f"HEAD:{name}") for name in ("a.py", "mine.py")}
    (outer.root / ".git/index").write_bytes(hostile_index({**dict.fromkeys(outside, "1" * 40), **blobs}))
    (outer.root / "sub").mkdir()
    (outer.root / ".git/config").open("a").write("# hush\n")
    assert "../secret.py" in outer.git("ls-files"), "git lists them"
    assert not {os.fsdecode(path) for path in outside} & set(open_repository(outer.root).list_files())
    outer.use(outer.root, tmp_path)
    pack = (tmp_path / "context.txt").read_text()
    assert "z = 1\n" in pack
    assert "hush" not in pack
    assert (tmp_path / "secret.py").read_text() == "hush = 1\n"
    assert not outer.ran()


def test_replaced_objects_and_grafts(outer: Outer) -> None:
    """They change what git shows of the history. They lead to no program and to no other repository."""
    evil = git(outer.nested, "rev-parse", "HEAD")
    outer.git("commit", "-q", "--allow-empty", "-m", "next")
    (outer.root / ".git/objects/info/alternates").write_text(f"{outer.nested}/objects\n")
    outer.git("replace", "HEAD^", evil)
    (outer.root / ".git/info/grafts").write_text(f"{outer.git('rev-parse', 'HEAD')} {evil}\n")
    outer.opened(outer.root)
    assert not outer.ran()
