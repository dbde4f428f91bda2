"""`m3agent apply`: write the patch of an earlier fix into the work tree."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.agent.cli.common import faults, say, session_names

if TYPE_CHECKING:
    from m3agent.agent.session.catalog import Summary


def apply(
    session: Annotated[
        str,
        typer.Argument(
            help="The session's id, the beginning of the id, or 'last'.",
            metavar="[SESSION]",
            autocompletion=session_names,
        ),
    ] = "last",
) -> None:
    """Write the patch of a fix into the work tree, as `fix --apply` does.

    The patch must be verified or unverified. Uncommitted changes are never overwritten, and a file that changed since the
    fix started is refused: then nothing is written.
    """
    with faults():
        from m3agent.agent.delivery.apply import apply_to_work_tree
        from m3agent.agent.errors import PermissionRefused, UsageError
        from m3agent.agent.fix.entry import opened
        from m3agent.agent.repo.snapshot import TREES
        from m3agent.agent.session.catalog import LAST, find_session, summary_of
        from m3agent.agent.session.record import read_session
        from m3agent.agent.settings.loader import settings_of
        from m3agent.agent.settings.settings import state_dir
        from m3agent.sandbox.store.git import TreeStore
        from m3agent.sandbox.store.workspace import Workspace

        state = state_dir(os.environ)
        folder = find_session(state, session)
        summary = summary_of(folder)
        root = Path(summary.repository)
        if session == LAST and summary.repository and (other := _other_repository(root)) is not None:
            last = _last_of(other, state)
            which = (
                f"use m3agent apply {last}, its last patch"
                if last
                else f"name the session, as in m3agent apply {summary.id}"
            )
            raise UsageError(f"the last session is about {root}, and this is {other}: {which}")
        path = _patch_of(summary)
        if not (folder / TREES).is_dir():
            raise UsageError(f"{folder / TREES} no longer exists: apply the patch with 'git apply {path}'")
        started = read_session(folder).started
        settings = settings_of({"sandbox": started["sandbox"]["backend"]})
        repository = opened(root, settings, state, again=True)
        store = TreeStore(folder / TREES)
        workspace = Workspace(store, started["tree"])
        patch = workspace.patch(store.apply(started["tree"], path.read_bytes()))
        try:
            written = apply_to_work_tree(repository, workspace, patch)
        except PermissionRefused as error:
            raise PermissionRefused(
                f"{error}; if the lines of the patch did not change, 'git apply {path}' applies it"
            ) from None
        if written:
            say(f"applied the {summary.status} patch to {root}: {', '.join(written)}; git diff shows it")
        else:
            say(f"{root} has the {summary.status} patch already: {', '.join(patch.paths)}")


def _patch_of(summary: Summary) -> Path:
    """Return the path of a session's patch. Raises UsageError or PermissionRefused if it cannot be applied."""
    from m3agent.agent.errors import HANDED_OVER, PermissionRefused, UsageError

    if summary.problem:
        raise UsageError(summary.problem)
    if summary.patch is None:
        raise UsageError(
            f"session {summary.id} has no patch (status {summary.status}); `m3agent sessions list` shows the others"
        )
    if summary.status not in HANDED_OVER:
        raise PermissionRefused(
            f"the status of session {summary.id} is {summary.status}, and only verified and unverified patches are applied: "
            f"read it, then use 'git apply {summary.patch}'"
        )
    if not summary.repository:
        raise UsageError("a bare repository has no work tree to apply a patch to: use 'git apply' elsewhere")
    return Path(summary.patch)


def _last_of(repository: Path, state: Path) -> str | None:
    """Return the id of a repository's last session with a patch that can be applied; None without one."""
    from m3agent.agent.errors import HANDED_OVER
    from m3agent.agent.session.catalog import list_sessions

    for summary in list_sessions(state):
        fits = summary.patch and summary.status in HANDED_OVER
        if fits and summary.repository and Path(summary.repository).resolve() == repository.resolve():
            return summary.id
    return None


def _other_repository(root: Path) -> Path | None:
    """Return the repository of the current folder if it is another one than `root`."""
    from m3agent.agent.errors import M3AgentError
    from m3agent.agent.repo.repository import open_repository

    try:
        here = open_repository(Path()).root
    except M3AgentError:
        return None  # there is none here, so the session's repository cannot be confused with it
    return here if here is not None and here.resolve() != root.resolve() else None
