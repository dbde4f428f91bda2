"""Test the tree that a sandbox starts from."""

from __future__ import annotations

import os
from pathlib import Path

from m3agent.agent.repo.repository import open_repository
from m3agent.agent.repo.snapshot import workspace_of
from tests.agent.repositories import NewRepo


def test_a_sparse_file_is_left_out_by_name(new_repo: NewRepo, tmp_path: Path) -> None:
    """Reading it would take minutes, and no frame of the sandbox's protocol can hold it."""
    root = new_repo()
    (root / "kept.txt").write_text("kept")
    (root / "big.bin").touch()
    os.truncate(root / "big.bin", 4 << 30)
    said: list[str] = []
    repository = open_repository(root)
    folder = tmp_path / "trees"
    folder.mkdir()
    workspace = workspace_of(repository, folder, said.append)
    assert said == ["not copied into sandboxes, because larger than 100 MiB: big.bin"]
    names = set(workspace.entries(workspace.base))
    assert ("kept.txt" in names, "big.bin" in names) == (True, False)
