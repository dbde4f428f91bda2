"""Fixtures for the agent's tests: git repositories, files, a model server, and an attempt in memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from tests.agent.fix.attempt_parts import World
    from tests.servers.misbehaving import MisbehavingServer

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


Files = Mapping[str, bytes] | Mapping[bytes, bytes]


class WriteFiles(Protocol):
    """Write files below a folder, and make folders as needed."""

    def __call__(self, root: Path, files: Files) -> None: ...


class RunGit(Protocol):
    """Run git in a folder and return its output."""

    def __call__(self, cwd: Path, *args: str) -> str: ...


class NewRepo(Protocol):
    """Make a repository in the test's folder with one commit that holds `files`."""

    def __call__(self, name: str = "repo", files: Files | None = None) -> Path: ...


def _write_files(root: Path, files: Files) -> None:
    for name, data in files.items():
        path = root / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture
def model(server: MisbehavingServer) -> MisbehavingServer:
    """Return the server that plays the model."""
    return server


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return the surroundings of an attempt, in memory."""
    from tests.agent.fix.attempt_parts import world_in  # imported here because most tests need no attempt

    with world_in(tmp_path) as made:
        yield made


@pytest.fixture
def write_files() -> WriteFiles:
    return _write_files


@pytest.fixture
def run_git() -> RunGit:
    def run(cwd: Path, *args: str) -> str:
        env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | GIT_ENV
        done = subprocess.run(["git", *args], cwd=cwd, env=env, check=True, capture_output=True)
        return os.fsdecode(done.stdout).strip()

    return run


@pytest.fixture
def new_repo(tmp_path: Path, run_git: RunGit) -> NewRepo:
    def make(name: str = "repo", files: Files | None = None) -> Path:
        root = tmp_path / name
        root.mkdir()
        run_git(root, "init", "--quiet", "--initial-branch=main")
        _write_files(root, {"a.py": b"x = 1\n"} if files is None else files)
        run_git(root, "add", "--all", "--force")
        run_git(root, "commit", "--quiet", "--allow-empty", "--message=first")
        return root

    return make
