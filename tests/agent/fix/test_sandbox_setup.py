"""Which image a sandbox of a fix starts from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.agent.fix import sandbox_setup
from m3agent.agent.fix.sandbox_setup import with_environment
from m3agent.agent.settings.settings import Settings
from m3agent.sandbox.backends.factory import SandboxSpec
from m3agent.sandbox.store.workspace import Workspace

WorkspaceOf = Callable[[dict[str, str | bytes]], Workspace]


@pytest.mark.parametrize("given", [None, "m3agent-env:own"])  # the second is a resumed session
async def test_only_other_trees_are_asked_for_their_image(
    given: str | None, workspace_of: WorkspaceOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find_environment(*_: object, **__: object) -> str:
        return "m3agent-env:own"

    async def image_of_tree(of: Workspace, image: str, *_: object) -> str:
        return f"{image}-{of.base}"

    monkeypatch.setattr(sandbox_setup, "find_environment", find_environment)
    monkeypatch.setattr(sandbox_setup, "image_of_tree", image_of_tree)
    workspace = workspace_of({"a.py": "old"})
    spec = SandboxSpec("docker", given)
    ready = await with_environment(spec, "docker", workspace, Settings(), tmp_path, lambda _: None)
    assert ready.image == "m3agent-env:own"
    assert ready.image_of is not None
    assert await ready.image_of(Workspace(workspace.store, workspace.base), ready.image) == ready.image
    empty = Workspace(workspace.store, workspace.store.write_tree([]))
    assert await ready.image_of(empty, ready.image) == f"m3agent-env:own-{empty.base}"


@pytest.mark.parametrize("settings", [Settings(), Settings(environment="off")])
async def test_the_users_own_image_is_for_all_trees(
    settings: Settings, workspace_of: WorkspaceOf, tmp_path: Path
) -> None:
    spec = SandboxSpec("docker", "theirs:1")
    workspace = workspace_of({"a.py": ""})
    ready = await with_environment(spec, "docker", workspace, settings, tmp_path, lambda _: None)
    assert ready.image_of is None
