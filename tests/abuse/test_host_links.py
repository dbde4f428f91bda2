"""Links in a checkout's git folder: what m3agent writes there must not lead to the user's other files.

A clone has no such links. An archive may have them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.util.errors import PermissionRefused
from tests.agent.delivery.test_apply import REGULAR, Made
from tests.agent.repositories import write_files
from tests.conftest import git

MakeRepo = Callable[..., Path]


class Checkout(Made):
    """A checkout with a patch, beside a home folder that is not to change."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.home = folder / "user"
        write_files(self.home, {"work/thesis": "mine\n", ".bashrc": "# mine\n"})
        super().__init__(root, folder / "trees.git", [("a.py", REGULAR, b"x = 2\n")], [])

    def link(self, name: str, target: str = "") -> None:
        """Put a link to something of the user into the git folder."""
        path = self.root / ".git" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            path.rename(self.root / ".git" / "moved")
        path.symlink_to(self.home / target)

    def untouched(self) -> bool:
        files = {
            str(path.relative_to(self.home)): path.read_text()
            for path in self.home.rglob("*")
            if path.is_file()
        }
        return files == {"work/thesis": "mine\n", ".bashrc": "# mine\n"}


@pytest.fixture
def checkout(make_repo: MakeRepo, tmp_path: Path) -> Checkout:
    return Checkout(make_repo({"a.py": "x = 1\n"}), tmp_path)


def test_the_folder_for_temporary_files_is_no_link(checkout: Checkout) -> None:
    """Whatever a killed m3agent left there is removed, so it must not be the user's home folder."""
    checkout.link("m3agent")
    with pytest.raises(PermissionRefused, match=r"\.git/m3agent: it is a symbolic link"):
        checkout.apply()
    assert checkout.untouched()
    assert (checkout.root / "a.py").read_text() == "x = 1\n"


@pytest.mark.parametrize(
    "name",
    [
        *("refs/heads/a/b", "refs/heads/a", "refs/remotes/origin", "refs/remotes", "reftable"),
        *("logs/refs/heads/a/b", "logs/refs/heads", "logs/refs", "logs", "logs/refs/remotes/origin/a/b"),
        "fast_import_crash_7",
    ],
)
def test_no_branch_is_made_behind_a_link(checkout: Checkout, name: str) -> None:
    """A line of a reflog has the user's name, and so may be a command of a shell."""
    git(checkout.root, "config", "user.name", "x; touch owned; #")
    checkout.link(name, ".bashrc" if name.endswith(("b", "7")) else "work")
    with pytest.raises(PermissionRefused, match=rf"{name} is a symbolic link"):
        checkout.commit("a/b")
    assert checkout.untouched()


def test_links_that_a_shared_repository_has_are_fine(make_repo: MakeRepo, tmp_path: Path) -> None:
    """The tool `repo` of Android and git's own `git-new-workdir` make such repositories."""
    root = make_repo({"a.py": "x = 1\n"})
    (root / ".git" / "objects").rename(tmp_path / "objects")
    (root / ".git" / "objects").symlink_to(tmp_path / "objects")
    (root / ".git").rename(tmp_path / "project.git")
    (root / ".git").symlink_to(tmp_path / "project.git")
    made = Checkout(root, tmp_path)
    made.commit("fixed")
    made.apply()
    assert git(root, "show", "fixed:a.py") == "x = 2" == (root / "a.py").read_text().strip()


def test_references_are_not_kept_elsewhere(make_repo: MakeRepo, tmp_path: Path) -> None:
    """Git since 2.54 takes an address of a folder for `extensions.refStorage`."""
    root = make_repo({"a.py": "x = 1\n"})
    git(root, "config", "core.repositoryFormatVersion", "1")
    subprocess.run(
        [
            "git",
            "config",
            "--file",
            root / ".git/config",
            "extensions.refStorage",
            f"files://{tmp_path}/user",
        ],
        check=True,
    )
    with pytest.raises(Exception, match="keeps a part of itself in another place"):
        Checkout(root, tmp_path)
