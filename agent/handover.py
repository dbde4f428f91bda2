"""Hands the patch over: into the work tree, or as a commit on a new branch. Never over anybody's changes."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from m3agent.agent.errors import PermissionRefused, UsageError
from m3agent.agent.repository import GitCommandFailed, Repository
from m3agent.sandbox.git import TreeEntry
from m3agent.sandbox.workspace import Patch, Workspace


def check_branch(repository: Repository, name: str) -> None:
    """Refuse a branch name that git does not take or that exists.

    Raises:
        UsageError: with the reason.
    """
    try:
        repository.git("check-ref-format", "--branch", name)
    except GitCommandFailed:
        raise UsageError(f"'{name}' is not a branch name git accepts: choose another") from None
    if repository.git("for-each-ref", f"refs/heads/{name}").strip():
        raise UsageError(f"branch {name} exists already: choose another name, or delete it first")


def apply_to_work_tree(repository: Repository, workspace: Workspace, patch: Patch) -> None:
    """Write the patched files into the user's work tree: all of them, or none.

    Raises:
        PermissionRefused: a file has uncommitted changes, changed meanwhile, or is no longer a plain path.
    """
    root = repository.root
    if root is None:
        raise UsageError("a bare repository has no work tree to apply a patch to: use --branch NAME")
    refuse_dirty(repository, patch, "--apply")
    base, patched = workspace.entries(patch.base), workspace.entries(patch.tree)
    staged: list[tuple[Path | None, Path]] = []
    try:
        for path in patch.paths:
            target = root / path
            _refuse_moved(root, target, workspace, base.get(path))
            if path not in patched:
                staged.append((None, target))
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".m3agent-{secrets.token_hex(6)}.tmp")
            staged.append((temporary, target))
            _write(temporary, workspace, patched[path])
            if (
                target.is_file()
                and not target.is_symlink()
                and path in base
                and base[path].mode == patched[path].mode
            ):
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        for source, target in staged:
            if source is None:
                target.unlink()
            else:
                source.replace(target)
    except OSError as error:
        raise PermissionRefused(
            f"the patch could not be written to {error.filename}: {error.strerror}; it is kept in the session's folder"
        ) from None
    finally:
        for source, _ in staged:
            if source is not None:
                source.unlink(missing_ok=True)


def commit_to_branch(
    repository: Repository, workspace: Workspace, patch: Patch, name: str, message: str
) -> str:
    """A commit on a new branch from HEAD, without touching work tree, index or the branch checked out; returns its id.

    Raises:
        PermissionRefused: the patch touches files with uncommitted changes, which are not in HEAD.
    """
    refuse_dirty(repository, patch, "--branch")
    check_branch(repository, name)
    patched = workspace.entries(patch.tree)
    who = _identity(repository)
    text = message.encode("utf-8", "replace")
    commands = [
        b"commit refs/heads/%s\ncommitter %s\ndata %d\n%s\nfrom %s\n"
        % (name.encode(), who, len(text), text, repository.head.encode())
    ]
    for path in patch.paths:
        quoted = b'"%s"' % os.fsencode(path).replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(
            b"\n", b"\\n"
        )
        if path not in patched:
            commands.append(b"D %s\n" % quoted)
            continue
        entry = patched[path]
        link = stat.S_ISLNK(entry.mode)
        # the repository's own clean filters and line ends apply, as they would for `git add`
        filters = ["--no-filters"] if link else [f"--path={path}"]
        blob = repository.git(
            "hash-object", "-w", *filters, "--stdin", stdin=workspace.store.get_blob(entry.sha)
        )
        commands.append(b"M %06o %s %s\n" % (entry.mode, blob.strip(), quoted))
    repository.git("fast-import", "--quiet", "--date-format=raw", stdin=b"".join(commands))
    return repository.git("rev-parse", f"refs/heads/{name}").decode().strip()


def refuse_dirty(repository: Repository, patch: Patch, option: str) -> None:
    """Raise PermissionRefused where the patch touches files that have uncommitted changes."""
    dirty = sorted(repository.dirty_paths() & set(patch.paths))
    if dirty:
        names = ", ".join(dirty[:3]) + (f" and {len(dirty) - 3} more" if len(dirty) > 3 else "")
        raise PermissionRefused(
            f"{option} refused: {names} has uncommitted changes, which are yours; commit or stash them, then apply the "
            "patch with 'git apply'"
        )


def _refuse_moved(root: Path, target: Path, workspace: Workspace, old: TreeEntry | None) -> None:
    """Refuse a file that is not what the session started from."""
    if not target.parent.resolve().is_relative_to(root.resolve()) or target.parent.is_symlink():
        raise PermissionRefused(f"{target} lies behind a link: the patch is kept in the session's folder")
    try:
        info = target.lstat()
    except FileNotFoundError:
        now = None
    else:
        if stat.S_ISDIR(info.st_mode):
            raise PermissionRefused(f"{target} is a folder now: the patch is kept in the session's folder")
        now = os.fsencode(target.readlink()) if stat.S_ISLNK(info.st_mode) else target.read_bytes()
    if now != (None if old is None else workspace.store.get_blob(old.sha)):
        raise PermissionRefused(
            f"{target} changed while the fix was made: nothing was written; the patch is kept in the session's folder"
        )


def _write(target: Path, workspace: Workspace, entry: TreeEntry) -> None:
    content = workspace.store.get_blob(entry.sha)
    if stat.S_ISLNK(entry.mode):
        target.symlink_to(os.fsdecode(content))
        return
    fd = os.open(
        target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o777 if entry.mode & 0o100 else 0o666
    )
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _identity(repository: Repository) -> bytes:
    """Name, address and time for the commit: the user's, or ours where git knows none."""
    try:
        return repository.git("var", "GIT_COMMITTER_IDENT").strip()
    except GitCommandFailed:
        import time

        return b"m3agent <m3agent@localhost> %d +0000" % int(time.time())
