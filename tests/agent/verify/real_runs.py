"""Verify a patch with real tests in real sandboxes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.agent.verify.verify import Verification, verify
from m3agent.sandbox.backends.factory import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.sandbox.store.workspace import Workspace
from tests.fakes.trees import memory_workspace

REGULAR = 0o100644


async def verified(
    folder: Path,
    backend: Backend,
    base: Mapping[str, str],
    changes: Mapping[str, str | None],
    *,
    pinned: Collection[str] = (),
    checks: Sequence[str] = (),
    seconds: float = 600.0,
) -> Verification:
    """Return the verification, without reruns, of changes to a repository. None deletes a file."""
    workspace = memory_workspace(folder, dict(base))
    files = [(path, REGULAR, text.encode()) for path, text in changes.items() if text is not None]
    deleted = [path for path, text in changes.items() if text is None]
    patch = workspace.patch(workspace.commit_changes(workspace.base, files, deleted))

    def fresh(tree: Workspace) -> Sandbox:
        return new_sandbox(
            backend, SandboxSpec(backend, limits=SandboxLimits(memory=1 << 30)), tree, lambda _: None
        )

    runs = TreeRuns(SandboxesAhead(workspace.store, fresh), folder, checks=checks)
    return await verify(workspace, patch, runs, 0, seconds=seconds, pinned=pinned)
