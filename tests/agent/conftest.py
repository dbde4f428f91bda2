"""Fixtures for the agent's tests: git repositories, files, a model server, and an attempt in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.repositories import Files, NewRepo, run_git, write_files

if TYPE_CHECKING:
    from tests.agent.fix.attempt_parts import World
    from tests.agent.scripted import Fixes
    from tests.servers.misbehaving import MisbehavingServer


@pytest.fixture
def model(server: MisbehavingServer) -> MisbehavingServer:
    """Return the server that plays the model."""
    return server


@pytest.fixture
def fixes(model: MisbehavingServer, make_repo: Callable[..., Path], own_state: Path) -> Fixes:
    """Return what runs fixes by the server that plays the model."""
    from tests.agent.scripted import Fixes  # imported here because most tests run no fix

    return Fixes(model, make_repo, own_state)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return the surroundings of an attempt, in memory."""
    from tests.agent.fix.attempt_parts import world_in  # imported here because most tests need no attempt

    with world_in(tmp_path) as made:
        yield made


@pytest.fixture
def new_repo(tmp_path: Path) -> NewRepo:
    def make(name: str = "repo", files: Files | None = None) -> Path:
        root = tmp_path / name
        root.mkdir()
        run_git(root, "init", "--quiet", "--initial-branch=main")
        write_files(root, {"a.py": b"x = 1\n"} if files is None else files)
        run_git(root, "add", "--all", "--force")
        run_git(root, "commit", "--quiet", "--allow-empty", "--message=first")
        return root

    return make
