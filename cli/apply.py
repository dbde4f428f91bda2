"""`m3agent apply`: write the patch of an earlier fix into the work tree."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from m3agent.cli.common import Repo, Session, option, say, sessions_here, state_folder

if TYPE_CHECKING:
    from m3agent.agent.repo.repository import Repository
    from m3agent.agent.session.catalog import Summary


def apply(
    session: Session = "last",
    repo: Repo = Path(),
    undo: Annotated[
        bool,
        option(
            "--undo",
            "Take back what was written of the patch, if nothing else changed in these files. `last` is the patch that was "
            "written last.",
        ),
    ] = False,
) -> None:
    """Write the patch of a fix into the work tree, or take it back (--undo).

    The patch must be verified or unverified. Uncommitted changes are never overwritten, and a file that changed since the
    fix started is refused: then nothing is written.
    """
    from m3agent.agent.delivery.apply import apply_to_work_tree, last_written
    from m3agent.agent.delivery.apply import undo as take_back
    from m3agent.agent.fix.entry import opened
    from m3agent.agent.repo.snapshot import TREES
    from m3agent.agent.session.catalog import LAST, summary_of
    from m3agent.agent.session.record import read_session
    from m3agent.agent.settings.loader import settings_of
    from m3agent.sandbox.store.git import TreeStore
    from m3agent.sandbox.store.workspace import Workspace
    from m3agent.util.as_typed import as_typed
    from m3agent.util.errors import PermissionRefused, UsageError

    state = state_folder()
    sessions = sessions_here(repo)
    is_last = undo and session == LAST
    folder = last_written(sessions.folders()) if is_last else sessions.find(session, fixes=True)
    if folder is None:
        raise PermissionRefused(
            "no patch of m3agent is written in this work tree, or it was taken back already"
        )
    summary = summary_of(folder)
    root = Path(summary.repository)
    path = _patch_of(summary, undo=undo)
    if not (folder / TREES).is_dir():
        raise UsageError(f"{folder / TREES} no longer exists: apply the patch with 'git apply {path}'")
    started = read_session(folder).started
    settings = settings_of({"sandbox": started["sandbox"]["backend"]})
    repository = opened(root, settings, state, again=True)
    store = TreeStore(folder / TREES)
    workspace = Workspace(store, started["tree"])
    patch = workspace.patch(store.apply(started["tree"], path.read_bytes()))
    there = "" if repo == Path() else f" --repo {shlex.quote(str(repo))}"
    if undo:
        paths = take_back(repository, workspace, patch)
        again = as_typed(f"m3agent apply {summary.id}{there}", summary.repository)
        say(
            f"took the patch back from {root}: {', '.join(paths) or 'its files are as before'}; '{again}' writes it again"
        )
        return
    try:
        written = apply_to_work_tree(repository, workspace, patch)
    except PermissionRefused as error:
        earlier = last_written(sessions.folders())
        raise PermissionRefused(f"{error}; {_instead(repository, path, earlier)}") from None
    if written:
        which = "" if session == LAST else f" {session}"
        say(
            f"applied the {summary.status} patch to {root}: {', '.join(written)}; git diff shows it, "
            f"and '{as_typed(f'm3agent apply --undo{which}{there}')}' takes it back"
        )
    else:
        say(f"{root} has the {summary.status} patch already: {', '.join(patch.paths)}")


def _instead(repository: Repository, path: Path, earlier: Path | None) -> str:
    """Return what a person can do if a patch is refused: the patch of an earlier session may be in the work tree."""
    from m3agent.agent.repo.repository import GitCommandFailed

    try:
        repository.git("apply", "--check", str(path))
    except GitCommandFailed:
        if earlier is not None:
            return f"the patch of session {earlier.name} is there: 'm3agent apply --undo' takes it back, then apply this one"
        return f"lines at the patch's places changed, too: commit your change and run the fix again, or read {path} and change them by hand"
    return f"the lines of the patch did not change, so 'git apply {path}' applies it"


def _patch_of(summary: Summary, *, undo: bool) -> Path:
    """Return the path of a session's patch. Raises UsageError or PermissionRefused if it cannot be applied."""
    from m3agent.util.errors import HANDED_OVER, PermissionRefused, UsageError

    if summary.problem:
        raise UsageError(summary.problem)
    if summary.patch is None:
        raise UsageError(
            f"session {summary.id} has no patch (status {summary.status}); `m3agent sessions list` shows the others"
        )
    if summary.status not in HANDED_OVER and not undo:
        raise PermissionRefused(
            f"the status of session {summary.id} is {summary.status}, and only verified and unverified patches are applied: "
            f"read it, then use 'git apply {summary.patch}'"
        )
    if not summary.repository:
        raise UsageError("a bare repository has no work tree to apply a patch to: use 'git apply' elsewhere")
    return Path(summary.patch)
