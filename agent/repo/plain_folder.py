"""Work on a folder that is no git repository, as containers of benchmarks have them.

Its git folder is in m3agent's state, so nothing is written into the folder itself. Its only commit holds the folder's
files as they were at the start.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from m3agent.agent.repo.host_git import HostGit, find
from m3agent.agent.repo.repository import Repository, git, open_repository
from m3agent.sandbox.store.git_command import for_no_repository
from m3agent.util.errors import EnvironmentFault

FOLDER = "plain-folders"
"""Folder in the state for the git folders."""
IDENTITY = ("-c", "user.name=m3agent", "-c", "user.email=m3agent@localhost")


def open_folder(path: Path, state: Path, *, again: bool = False) -> Repository:
    """Return the repository that contains a folder; without one, a new one for the folder.

    Args:
        again: Use the git folder of an earlier call, for a session that resumes.

    Raises:
        UsageError: There is no such folder.
        EnvironmentFault: Git is missing or fails.
    """
    if path.is_dir() and find(str(path)) is None:
        return _adopted(path.resolve(), state, again=again)
    return open_repository(path)


def is_plain_folder(repository: Repository) -> bool:
    """Return whether a repository was made by `open_folder`."""
    return repository.git_dir.parent.name == FOLDER


def _adopted(folder: Path, state: Path, *, again: bool) -> Repository:
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]
    git_dir = state / FOLDER / f"{name}.git"
    found = HostGit(str(folder), str(git_dir), str(git_dir), str(folder))
    if not (again and git_dir.is_dir()):
        shutil.rmtree(git_dir, ignore_errors=True)
        git_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = for_no_repository().run("init", "--quiet", "--template=", "--bare", str(git_dir), timeout=60)
        if made.returncode:
            said = made.stderr.decode(errors="replace").strip()
            raise EnvironmentFault(f"git cannot make a repository in {git_dir}: {said}")
        (git_dir / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = false\n", "utf-8")
        listed = git(found, ["ls-files", "-z", "--others", "--exclude-standard"]).split(b"\0")
        files = b"".join(path + b"\0" for path in listed if path and not path.endswith(b"/"))
        git(found, ["update-index", "--add", "-z", "--stdin"], stdin=files)
        tree = git(found, ["write-tree"]).decode().strip()
        commit = git(found, [*IDENTITY, "commit-tree", "-m", "the folder as it was", tree]).decode().strip()
        git(found, ["update-ref", "HEAD", commit])
    head = git(found, ["rev-parse", "HEAD"]).decode().strip()
    return Repository(found, head, None, shallow=False)
