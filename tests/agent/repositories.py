"""Repositories as the host finds them."""

from __future__ import annotations

from pathlib import Path

from m3agent.agent.host_git import HostGit, find


def found(folder: Path) -> HostGit:
    """The repository that is certainly there."""
    repository = find(str(folder))
    assert repository is not None
    return repository


def no_repository(folder: Path) -> HostGit:
    """A folder taken for a repository that it is not, as one that was removed meanwhile."""
    path = str(folder)
    return HostGit(path, path, path, path)
