"""Git repositories as the host finds them."""

from __future__ import annotations

from pathlib import Path

from m3agent.agent.repo.host_git import HostGit, find


def found(folder: Path) -> HostGit:
    """Return the repository in a folder, which must have one."""
    repository = find(str(folder))
    assert repository is not None
    return repository


def no_repository(folder: Path) -> HostGit:
    """Return a `HostGit` for a folder that is not a repository, such as one that was removed meanwhile."""
    path = str(folder)
    return HostGit(path, path, path, path)
