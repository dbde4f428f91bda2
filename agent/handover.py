"""Hands the patch over: into the work tree, or as a commit on a new branch. Never over anybody's changes."""

from __future__ import annotations

import dataclasses
import os
import secrets
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from m3agent.agent.errors import PermissionRefused, UsageError
from m3agent.agent.repository import GitCommandFailed, Repository
from m3agent.agent.workspaces import scratch_folder
from m3agent.sandbox.git import TreeEntry
from m3agent.sandbox.workspace import Patch, Workspace

STAGED = "m3agent"
"""In git's folder of the user's repository: where files are made whole before they are moved into the work tree."""


@dataclass(frozen=True)
class HandOver:
    """What to do with a patch besides printing it.

    apply: write it into the work tree. branch: commit it to a new one of this name. pull_request: commit it to a new
    branch, by that name if one is given, push that to origin and open a pull request.

    Raises UsageError for two ways at once.
    """

    apply: bool = False
    branch: str | None = None
    pull_request: bool = False

    def __post_init__(self) -> None:
        if self.apply and (self.branch is not None or self.pull_request):
            other = "--pr" if self.pull_request else "--branch"
            raise UsageError(f"--apply and {other} are two ways to hand over one patch: give one of them")

    @property
    def asked(self) -> bool:
        """Whether anything is to be done."""
        return self.apply or self.branch is not None or self.pull_request

    def check(self, repository: Repository) -> None:
        """Raise UsageError for what cannot be done here, as far as can be told without a network."""
        if self.branch is not None:
            check_branch(repository, self.branch)
        if self.apply and repository.bare:
            raise UsageError("a bare repository has no work tree to apply a patch to: use --branch NAME")


def check_branch(repository: Repository, name: str) -> None:
    """Refuse a branch name that git does not take or that exists.

    Raises:
        UsageError: with the reason.
    """
    refused = UsageError(f"'{name}' is not a branch name git accepts: choose another")
    try:
        said = repository.git("check-ref-format", "--branch", name)
    except GitCommandFailed:
        raise refused from None
    if said.strip() != os.fsencode(name) or name == "@":  # @{-1} stands for another branch, @ for HEAD
        raise refused
    parts = name.split("/")
    above = [f"refs/heads/{'/'.join(parts[:n])}" for n in range(1, len(parts))]
    # a pattern finds the branch itself and those below it, which a branch of its name would displace
    found = repository.git("for-each-ref", "--format=%(refname)", f"refs/heads/{name}", *above).splitlines()
    refuse_taken(name, (os.fsdecode(ref).removeprefix("refs/heads/") for ref in found))


def refuse_taken(name: str, branches: Iterable[str], where: str = "") -> None:
    """Raise UsageError where there can be no new branch `name` beside `branches`; `where` they are, for the sentence."""
    for taken in branches:
        if taken == name:
            raise UsageError(f"branch {name} exists already{where}: choose another name, or delete it first")
        if taken.startswith(f"{name}/") or name.startswith(f"{taken}/"):
            raise UsageError(
                f"there can be no branch {name} beside branch {taken}{where}: choose another name"
            )


def apply_to_work_tree(
    repository: Repository, workspace: Workspace, patch: Patch, *, over_uncommitted: bool = False
) -> None:
    """Write the patched files into the user's work tree: all of them, or none.

    over_uncommitted: also into files with uncommitted changes, which the patch was made on top of: for who has seen it.

    A process that is killed here leaves each file as it was or as it is to be, and nothing else in the work tree; files
    that are as the patch has them already are passed over, so that it can be done again.

    Raises:
        PermissionRefused: a file has uncommitted changes, changed meanwhile, or is no longer a plain path.
    """
    root = repository.root
    if root is None:
        raise UsageError("a bare repository has no work tree to apply a patch to: use --branch NAME")
    base, patched = workspace.entries(patch.base), workspace.entries(patch.tree)
    left = [path for path in patch.paths if not _is_there(root / path, workspace, patched.get(path))]
    patch = dataclasses.replace(patch, paths=tuple(left))
    if not over_uncommitted:
        refuse_dirty(repository, patch, "--apply")
    for path in patch.paths:
        _refuse_moved(root, path, workspace, base.get(path))
    try:
        with scratch_folder(repository.git_dir, STAGED) as staged:
            _write_all(root, patch.paths, base, patched, workspace, staged)
    except OSError as error:
        raise PermissionRefused(
            f"the patch could not be written to {error.filename2 or error.filename}: {error.strerror}; it is kept in the "
            "session's folder"
        ) from None
    for path in patch.paths:
        folder = (root / path).parent
        while folder != root and _remove_if_empty(folder):  # as git does when a folder's last file goes
            folder = folder.parent


def _write_all(
    root: Path,
    paths: Sequence[str],
    base: Mapping[str, TreeEntry],
    patched: Mapping[str, TreeEntry],
    workspace: Workspace,
    staged: Path,
) -> None:
    """Bring the files at `paths` from `base` to `patched`, by way of `staged`. Raises OSError, all being as it was."""
    made: list[Path] = []
    moves: list[_Move] = []
    try:
        for path in paths:
            for folder in _missing_folders(root, root / path):
                folder.mkdir()
                made.append(folder)
            target = root / path
            # a file that is moved from another file system is not there at once
            same = target.parent.stat().st_dev == staged.stat().st_dev
            room = staged if same else target.parent
            move = _Move(target, _new_name(room), _new_name(room))
            moves.append(move)
            # both are written before anything is moved: what can fail fails now
            for source, entries in ((move.new, patched), (move.old, base)):
                if path in entries:
                    _write(source, workspace, entries[path])
            if path in base and not move.target.is_symlink():
                mode = stat.S_IMODE(move.target.stat().st_mode)
                move.old.chmod(mode)
                if path in patched and base[path].mode == patched[path].mode:
                    move.new.chmod(mode)
        _carry_out(moves)
    finally:
        for move in moves:
            move.new.unlink(missing_ok=True)
            move.old.unlink(missing_ok=True)
        for folder in reversed(made):
            _remove_if_empty(folder)


def commit_to_branch(
    repository: Repository,
    workspace: Workspace,
    patch: Patch,
    name: str,
    message: str,
    option: str = "--branch",
) -> str:
    """A commit on a new branch from HEAD, without touching work tree, index or the branch checked out; returns its id.

    `option` is how it was asked for.

    Raises:
        PermissionRefused: the patch touches files with uncommitted changes, which are not in HEAD.
    """
    refuse_dirty(repository, patch, option)
    check_branch(repository, name)
    patched = workspace.entries(patch.tree)
    who = _identity(repository)
    text = message.encode("utf-8", "replace")
    commands = [
        b"commit refs/heads/%s\ncommitter %s\ndata %d\n%s\nfrom %s\n"
        % (os.fsencode(name), who, len(text), text, repository.head.encode())
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
        # line ends and the user's own clean filters apply, as they would for `git add`
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


@dataclass(frozen=True)
class _Move:
    """One file to put in place: `new` takes the place of `target` if it exists, else `target` goes. `old` is a copy of
    what is there, if something is, to put it back."""

    target: Path
    new: Path
    old: Path


def _carry_out(moves: list[_Move]) -> None:
    """All of the moves; raises OSError after undoing them where one fails."""
    done = 0
    try:
        for move in moves:
            if os.path.lexists(move.new):
                move.new.replace(move.target)
            else:
                move.target.unlink()
            done += 1
    except OSError:
        for move in reversed(moves[:done]):
            if os.path.lexists(move.old):
                move.old.replace(move.target)
            else:
                move.target.unlink()
        raise


def _new_name(folder: Path) -> Path:
    return folder / f".m3agent-{secrets.token_hex(6)}.tmp"


def _missing_folders(root: Path, target: Path) -> list[Path]:
    """The folders that `target` lacks, outermost first."""
    return [f for f in reversed(target.parents) if f.is_relative_to(root) and not f.exists()]


def _remove_if_empty(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:  # it holds files, or is gone already, or is not ours to remove: it may stay
        return False
    return True


def _is_there(target: Path, workspace: Workspace, entry: TreeEntry | None) -> bool:
    """Whether a file is as the patch has it."""
    try:
        mode = target.lstat().st_mode
    except OSError:
        return entry is None and not os.path.lexists(target)
    if entry is None or stat.S_ISLNK(mode) != stat.S_ISLNK(entry.mode):
        return False
    content = workspace.store.get_blob(entry.sha)
    if stat.S_ISLNK(mode):
        return _link_target(target) == content
    runs = bool(mode & 0o100) == bool(entry.mode & 0o100)
    return stat.S_ISREG(mode) and runs and target.read_bytes() == content


def _link_target(link: Path) -> bytes:
    # as it is: Path.readlink() would take "x/" and "./x" for "x"
    return os.readlink(os.fsencode(link))  # noqa: PTH115


def _refuse_moved(root: Path, path: str, workspace: Workspace, old: TreeEntry | None) -> None:
    """Refuse a file that is not what the session started from."""
    target = root / path
    if target.parent.resolve() != (root.resolve() / path).parent:
        raise PermissionRefused(f"{target} lies behind a link: the patch is kept in the session's folder")
    try:
        info = target.lstat()
    except FileNotFoundError:
        now = None
    except NotADirectoryError:
        raise PermissionRefused(
            f"{target} cannot be made, a part of its path is a file: the patch is kept in the session's folder"
        ) from None
    else:
        if stat.S_ISDIR(info.st_mode):
            raise PermissionRefused(f"{target} is a folder now: the patch is kept in the session's folder")
        now = _link_target(target) if stat.S_ISLNK(info.st_mode) else target.read_bytes()
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
