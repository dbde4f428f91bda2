"""Git repositories: made for a test, and as the host finds them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from m3agent.agent.repo.host_git import HostGit, find

GIT_ENV = {
    "GIT_AUTHOR_NAME": "A. Tester",
    "GIT_AUTHOR_EMAIL": "tester@example.invalid",
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z",
    "GIT_COMMITTER_NAME": "A. Tester",
    "GIT_COMMITTER_EMAIL": "tester@example.invalid",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}
Files = Mapping[str, str | bytes] | Mapping[bytes, bytes]


class NewRepo(Protocol):
    """Make a repository in the test's folder with one commit that holds `files`; see the fixture `new_repo`."""

    def __call__(self, name: str = "repo", files: Files | None = None) -> Path: ...


def write_files(root: Path, files: Files) -> None:
    """Write files below a folder, and make folders as needed."""
    for name, data in files.items():
        path = root / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())


def run_git(cwd: Path, *args: str) -> str:
    """Run git in a folder, with no user's configuration and at one moment, and return its output."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | GIT_ENV
    done = subprocess.run(["git", *args], cwd=cwd, env=env, check=True, capture_output=True)
    return os.fsdecode(done.stdout).strip()


def found(folder: Path) -> HostGit:
    """Return the repository in a folder, which must have one."""
    repository = find(str(folder))
    assert repository is not None
    return repository


def no_repository(folder: Path) -> HostGit:
    """Return a `HostGit` for a folder that is not a repository, such as one that was removed meanwhile."""
    path = str(folder)
    return HostGit(path, path, path, path)
