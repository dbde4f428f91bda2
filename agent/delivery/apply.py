"""Hand the patch over: write it into the work tree, or commit it to a new branch.

Neither way overwrites uncommitted changes, unless the caller allows it with `over_uncommitted`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from m3agent.agent.repo.plain_folder import is_plain_folder
from m3agent.agent.repo.repository import GitCommandFailed, Repository
from m3agent.agent.repo.snapshot import scratch_folder
from m3agent.sandbox.store.git import TreeEntry
from m3agent.sandbox.store.workspace import Patch, TreeId, Workspace
from m3agent.util.counted import first_of
from m3agent.util.errors import PermissionRefused, UsageError
from m3agent.util.plain_file import open_plain
from m3agent.util.private_file import read_file, write_file

WRITTEN = "written.json"
"""A file in a session's folder. It names the files that were written into the work tree, so that they can be taken back."""
STAGED = "m3agent"
"""A folder in the git folder of the user's repository. Files are written here in full before they move into
the work tree.
"""


@dataclass(frozen=True)
class PullUpdate:
    """Where a further commit of an open pull request goes."""

    address: str
    """The address of the pull request."""
    remote: str
    """What git pushes to: `origin`, or the address of a fork."""
    branch: str
    """The branch of the pull request."""
    head: str
    """The branch's last commit, which the new commit follows."""
    merged: str | None
    """A commit of the target branch to merge, because it conflicts with `head`; None without a conflict."""
    tree: TreeId
    """The state of the session's work tree that belongs to `merged`, else to `head`."""
    draft: bool
    """Whether the pull request is a draft. Only then an unverified patch is pushed."""


@dataclass(frozen=True)
class HandOver:
    """What to do with a patch besides printing it.

    Raises:
        UsageError: `apply` is combined with `branch` or `pull_request`.
    """

    apply: bool = False
    """Write the patch into the work tree."""
    branch: str | None = None
    """Commit the patch to a new branch with this name."""
    pull_request: bool = False
    """Commit the patch to a new branch (named `branch`, if given), push it to origin and open a pull request."""
    always: bool = False
    """Apply the patch also if it is not verified: the work tree is the result."""
    update: PullUpdate | None = None
    """Push the patch as a further commit of a pull request that is open."""

    def __post_init__(self) -> None:
        if self.apply and (self.branch is not None or self.pull_request):
            other = "--pr" if self.pull_request else "--branch"
            raise UsageError(f"--apply and {other} are two ways to hand over one patch: give only one")

    @property
    def asked(self) -> bool:
        """Whether there is anything to do besides printing the patch."""
        return self.apply or self.branch is not None or self.pull_request or self.update is not None

    @property
    def shown_by(self) -> str | None:
        """The command that shows the patch where it then is; empty for a pull request; None if nothing is asked."""
        if self.pull_request or self.update is not None:
            return ""
        return "git diff" if self.apply else None if self.branch is None else f"git show {self.branch}"

    def check(self, repository: Repository) -> None:
        """Check the request against the repository, without using the network.

        Raises:
            UsageError: The branch name is invalid or taken, or the repository has no work tree to apply a
                patch to.
        """
        if (self.branch is not None or self.pull_request) and is_plain_folder(repository):
            raise UsageError(f"{repository.root} is no git repository, so it has no branches: use --apply")
        if self.branch is not None:
            check_branch(repository, self.branch)
        if self.apply and repository.bare:
            raise UsageError("a bare repository has no work tree to apply a patch to: use --branch NAME")

    def caution(self, repository: Repository) -> str:
        """Return what the user should know before the fix begins: which files it will not touch; empty without any."""
        given = (("--apply", self.apply), ("--pr", self.pull_request), ("--branch", self.branch is not None))
        option = next((name for name, is_given in given if is_given), None)
        if option is None or not (dirty := sorted(repository.dirty_paths())):
            return ""
        them = "it" if len(dirty) == 1 else "one of them"
        return f"{_have_changes(dirty)}: {option} is refused if the patch touches {them}; to avoid that, commit first"


def check_branch(repository: Repository, name: str) -> None:
    """Refuse a branch name that git does not accept, that conflicts with a branch, or that is behind a link.

    Raises:
        UsageError: With the reason.
        PermissionRefused: A file that git would write is behind a symbolic link.
    """
    refused = UsageError(f"'{name}' is not a branch name that git accepts: choose another name")
    try:
        meant = repository.git("check-ref-format", "--branch", name)
    except GitCommandFailed:
        raise refused from None
    if meant.strip() != os.fsencode(name) or name == "@":  # @{-1} stands for another branch, @ for HEAD
        raise refused
    parts = name.split("/")
    above = [f"refs/heads/{'/'.join(parts[:n])}" for n in range(1, len(parts))]
    # the pattern matches the branch itself and branches below it; git cannot store both `a` and `a/b`
    refs = repository.git("for-each-ref", "--format=%(refname)", f"refs/heads/{name}", *above).splitlines()
    refuse_taken(name, (os.fsdecode(ref).removeprefix("refs/heads/") for ref in refs))
    _refuse_links(repository, f"heads/{name}", f"remotes/origin/{name}")


def _refuse_links(repository: Repository, *refs: str) -> None:
    """Refuse a new branch if a link would lead git to write to other files of the user.

    Git follows links. It appends a line to a reflog, which may be a line of a shell's start-up file.
    """
    common = repository.common_dir
    written = {common / "reftable", *repository.git_dir.glob("fast_import_crash_*")}
    for folder in ("refs", "logs/refs"):
        for ref in refs:
            path = common / folder / ref
            written.update(each for each in (path, *path.parents) if each.is_relative_to(common / folder))
    written.add(common / "logs")
    for path in sorted(written):
        if path.is_symlink():
            raise PermissionRefused(
                f"{path} is a symbolic link, so no branch can be made here: make a clone of the repository, "
                "or apply the patch with 'git apply'"
            )


def refuse_taken(name: str, branches: Iterable[str], where: str = "") -> None:
    """Refuse a new branch name that conflicts with an existing branch.

    Args:
        where: Where they exist, as the end of a clause in the error message (such as " on origin").

    Raises:
        UsageError: The branch exists. Or one of the two names is a folder of the other (`a` and `a/b`).
    """
    for taken in branches:
        if taken == name:
            raise UsageError(f"branch {name} exists already{where}: choose another name, or delete it first")
        if taken.startswith(f"{name}/") or name.startswith(f"{taken}/"):
            raise UsageError(f"branch {name} cannot exist beside branch {taken}{where}: choose another name")


def apply_to_work_tree(
    repository: Repository, workspace: Workspace, patch: Patch, *, over_uncommitted: bool = False
) -> tuple[str, ...]:
    """Write the patched files into the user's work tree: all of them, or none.

    If this process is killed, each file has either its old or its new content, and the work tree has no other
    changes. Files that already match the patch are skipped, so the call can be repeated.

    Args:
        over_uncommitted: Also write to files with uncommitted changes. The patch was made on top of those
            changes. Set it only if the user has seen the patch.

    Returns:
        The paths that were written; those that already matched the patch are not among them.

    Raises:
        UsageError: The repository is bare.
        PermissionRefused: A file has uncommitted changes, changed since the session started, lies behind a
            symbolic link or in a submodule, or cannot be written.
    """
    written = _to_write(repository, workspace, patch)
    if not over_uncommitted:
        refuse_dirty(repository, written)
    _refuse_moved(repository, workspace, written, "the fix started")
    if written.paths:
        record = _record(workspace)
        paths = {*_recorded(record), *written.paths}
        write_file(str(record), json.dumps(sorted(paths)).encode())
    return _write_patch(repository, workspace, written)


def undo(repository: Repository, workspace: Workspace, patch: Patch) -> tuple[str, ...]:
    """Take back what `apply_to_work_tree` wrote of a patch: all of it, or nothing.

    Returns:
        The paths that were written.

    Raises:
        PermissionRefused: Nothing of the patch was written, or it was taken back already. Or a file changed or was committed
            since, or cannot be written; then no file is changed.
    """
    record = _record(workspace)
    written = _recorded(record)
    if not written:
        raise PermissionRefused(
            "nothing of this patch was written into the work tree, or it was undone already"
        )
    applied = Workspace(workspace.store, patch.tree)
    back = dataclasses.replace(applied.patch(patch.base), paths=tuple(p for p in patch.paths if p in written))
    back = _to_write(repository, applied, back)
    _refuse_committed(repository, applied, back)
    _refuse_moved(repository, applied, back, "the patch was written")
    paths = _write_patch(repository, applied, back)
    record.unlink()
    return paths


def _refuse_committed(repository: Repository, applied: Workspace, back: Patch) -> None:
    """Refuse to take back what was committed since: that would be a change that nobody asked for."""
    dirty, files = repository.dirty_paths(), set(repository.list_files())
    there = applied.entries(applied.base)
    committed = [path for path in back.paths if path not in dirty and (path in files or path not in there)]
    if committed:
        raise PermissionRefused(
            f"the patch was committed since it was written ({committed[0]}): take the commit back with 'git revert'"
        )


def last_written(sessions: Iterable[Path]) -> Path | None:
    """Return the folder of the session whose patch was written last. None if no patch is written, or each was taken back."""
    records = [folder / WRITTEN for folder in sessions if (folder / WRITTEN).is_file()]
    return max(records, key=lambda record: record.stat().st_mtime_ns).parent if records else None


def _record(workspace: Workspace) -> Path:
    """Return the file with the paths that were written, in the folder of the session."""
    return workspace.store.git_dir.parent / WRITTEN


def _recorded(record: Path) -> list[str]:
    data = read_file(str(record))
    return [] if data is None else json.loads(data)


def _to_write(repository: Repository, workspace: Workspace, patch: Patch) -> Patch:
    """Return a patch without the files that match it already. Raises UsageError, PermissionRefused."""
    if repository.root is None:
        raise UsageError("a bare repository has no work tree to apply a patch to: use --branch NAME")
    _refuse_submodules(repository, patch)
    patched, root = workspace.entries(patch.tree), repository.root
    left = [path for path in patch.paths if not _is_there(root / path, workspace, patched.get(path))]
    return dataclasses.replace(patch, paths=tuple(left))


def _write_patch(repository: Repository, workspace: Workspace, patch: Patch) -> tuple[str, ...]:
    """Write the files of a patch: all of them, or none. Return their paths."""
    root = repository.root
    assert root is not None
    try:
        with scratch_folder(repository.git_dir, STAGED) as staged:
            _write_all(root, workspace, patch, staged)
    except OSError as error:
        raise PermissionRefused(
            f"the patch could not be written to {error.filename2 or error.filename}: {error.strerror}; nothing was written"
        ) from None
    for path in patch.paths:
        folder = (root / path).parent
        while folder != root and _remove_if_empty(folder):  # git also removes a folder with its last file
            folder = folder.parent
    return patch.paths


def _write_all(root: Path, workspace: Workspace, patch: Patch, staged: Path) -> None:
    """Write the files of a patch, through temporary files in `staged`.

    Raises:
        OSError: A file could not be written. All files are as they were before the call.
    """
    base, patched = workspace.entries(patch.base), workspace.entries(patch.tree)
    made: list[Path] = []
    moves: list[_Move] = []
    try:
        for path in patch.paths:
            for folder in _missing_folders(root, root / path):
                folder.mkdir()
                made.append(folder)
            target = root / path
            # a move within one file system is atomic; from another file system it is a copy
            same = target.parent.stat().st_dev == staged.stat().st_dev
            room = staged if same else target.parent
            move = _Move(target, _new_name(room), _new_name(room))
            moves.append(move)
            # write both before the first move: most failures (a full disk, permissions) happen here,
            # while the work tree is still unchanged
            for source, entries in ((move.new, patched), (move.old, base)):
                if path in entries:
                    _write(source, workspace, entries[path])
            if path in base and not target.is_symlink():
                mode = stat.S_IMODE(target.stat().st_mode)
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
    """Commit the patch to a new branch that starts at HEAD, and return the id of the commit.

    The work tree, the index and the checked-out branch do not change.

    Args:
        option: The command-line option that the user gave, for error messages.

    Raises:
        PermissionRefused: The patch changes files that have uncommitted changes, which HEAD does not have. Or it
            changes files in a submodule.
        UsageError: The branch name is invalid or taken.
    """
    refuse_dirty(repository, patch, option)
    _refuse_submodules(repository, patch)
    check_branch(repository, name)
    return _write_commit(repository, workspace, patch, f"refs/heads/{name}", [repository.head], message)


def commit_to_pull(
    repository: Repository, workspace: Workspace, patch: Patch, to: PullUpdate, name: str, message: str
) -> str:
    """Commit the patch on top of a pull request's branch, and return the id of the commit.

    No branch, index or work tree of the user changes. Git may remove the commit later, because no branch has it here.

    Args:
        patch: The difference from `to.tree`.
        name: A name that no other reference has.

    Raises:
        PermissionRefused: A changed file is not the same there as in `to.tree`, or belongs to a submodule.
    """
    _refuse_submodules(repository, patch)
    _refuse_links(repository, f"m3agent/{name}", f"remotes/origin/{to.branch}")
    onto = to.merged or to.head
    if patch.paths:
        _refuse_different(repository, workspace, patch, onto)
    parents, root = [to.head], None
    if to.merged is not None:
        parents.append(to.merged)
        root = repository.git("rev-parse", f"{to.merged}^{{tree}}").decode().strip()
    ref = f"refs/m3agent/{name}"
    try:
        return _write_commit(repository, workspace, patch, ref, parents, message, root)
    finally:
        repository.git("update-ref", "-d", ref)


def _refuse_different(repository: Repository, workspace: Workspace, patch: Patch, commit: str) -> None:
    """Raise PermissionRefused if a commit has other contents than the patch starts from, at a path that it changes."""
    listed = repository.git("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1]
    lines = (line.partition(b"\t") for line in listed)
    there = {os.fsdecode(raw): meta.split()[2].decode() for meta, _, raw in lines}
    before = workspace.entries(patch.base)
    for path in patch.paths:
        here = None if path not in before else _blob(repository, workspace, path, before[path])
        if there.get(path) != here:
            raise PermissionRefused(
                f"{path} is not the same in commit {commit[:12]} as in the session: somebody else changed it"
            )


def _blob(repository: Repository, workspace: Workspace, path: str, entry: TreeEntry) -> str:
    """Store a file in the user's repository and return the id of its blob."""
    # line ends and the user's own clean filters apply, as they would for `git add`
    filters = ["--no-filters"] if stat.S_ISLNK(entry.mode) else [f"--path={path}"]
    content = workspace.store.get_blob(entry.sha)
    return repository.git("hash-object", "-w", *filters, "--stdin", stdin=content).decode().strip()


def _write_commit(
    repository: Repository,
    workspace: Workspace,
    patch: Patch,
    ref: str,
    parents: Sequence[str],
    message: str,
    root: str | None = None,
) -> str:
    """Make a commit with the patch, let `ref` point to it, and return its id.

    Args:
        ref: The full name of a reference that does not exist.
        root: The tree that the patch changes; None for that of the first parent.
    """
    patched = workspace.entries(patch.tree)
    who = _identity(repository)
    text = message.encode("utf-8", "replace")
    first, *others = (parent.encode() for parent in parents)
    commands = [
        b"commit %s\ncommitter %s\ndata %d\n%s\nfrom %s\n" % (os.fsencode(ref), who, len(text), text, first)
    ]
    commands += [b"merge %s\n" % parent for parent in others]
    if root is not None:
        commands.append(b'M 040000 %s ""\n' % root.encode())
    for path in patch.paths:
        quoted = b'"%s"' % os.fsencode(path).replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(
            b"\n", b"\\n"
        )
        if path not in patched:
            commands.append(b"D %s\n" % quoted)
            continue
        entry = patched[path]
        blob = _blob(repository, workspace, path, entry)
        commands.append(b"M %06o %s %s\n" % (entry.mode, blob.encode(), quoted))
    repository.git("fast-import", "--quiet", "--date-format=raw", stdin=b"".join(commands))
    return repository.git("rev-parse", ref).decode().strip()


def refuse_dirty(repository: Repository, patch: Patch, option: str = "") -> None:
    """Raise PermissionRefused if the patch changes files that have uncommitted changes; `option` begins the message."""
    dirty = sorted(repository.dirty_paths() & set(patch.paths))
    if dirty:
        refused = f"{option} refused: " if option else ""
        raise PermissionRefused(f"{refused}{_have_changes(dirty)}: nothing was written")


def _have_changes(dirty: Sequence[str]) -> str:
    return f"{first_of(dirty, 3)} {'has' if len(dirty) == 1 else 'have'} uncommitted changes"


def _refuse_submodules(repository: Repository, patch: Patch) -> None:
    """Raise PermissionRefused if the patch has files in the place of a submodule, which a commit would replace."""
    places = repository.submodules()
    for path in patch.paths:
        for place in (path, *map(str, PurePosixPath(path).parents)):
            if place in places:
                raise PermissionRefused(f"{path} belongs to the submodule {place}: nothing was written")


@dataclass(frozen=True)
class _Move:
    """One file to put in place."""

    target: Path
    """The path in the work tree."""
    new: Path
    """A temporary file that replaces `target`. If it does not exist, `target` is deleted."""
    old: Path
    """A copy of the file now at `target`, for undoing the move. It does not exist if there is no file at `target`."""


def _carry_out(moves: list[_Move]) -> None:
    """Carry out all moves. If one fails, undo those before it and raise its OSError."""
    done = 0
    try:
        for move in moves:
            _put(move.new, move.target)
            done += 1
    except OSError:
        for move in reversed(moves[:done]):
            _put(move.old, move.target)
        raise


def _put(source: Path, target: Path) -> None:
    """Move a file into place; if it does not exist, delete the one there."""
    if os.path.lexists(source):
        source.replace(target)
    else:
        target.unlink()


def _new_name(folder: Path) -> Path:
    return folder / f".m3agent-{secrets.token_hex(6)}.tmp"


def _missing_folders(root: Path, target: Path) -> list[Path]:
    """Return the parent folders of `target` below `root` that do not exist, outermost first."""
    return [f for f in reversed(target.parents) if f.is_relative_to(root) and not f.exists()]


def _remove_if_empty(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:  # it is not empty, does not exist, or we may not remove it
        return False
    return True


def _is_there(target: Path, workspace: Workspace, entry: TreeEntry | None) -> bool:
    """Return whether the file at `target` already matches the patch."""
    if entry is None:
        return not os.path.lexists(target)
    try:
        mode = target.lstat().st_mode
    except OSError:
        return False
    if stat.S_ISLNK(mode) != stat.S_ISLNK(entry.mode):
        return False
    runs = stat.S_ISLNK(mode) or bool(mode & 0o100) == bool(entry.mode & 0o100)
    return runs and _has(target, mode, workspace.store.get_blob(entry.sha))


def _has(target: Path, mode: int, content: bytes) -> bool:
    """Return whether `target` is a link or a regular file with this content. Not more than that is read of it."""
    if stat.S_ISLNK(mode):
        # Path.readlink() would normalize "x/" and "./x" to "x"
        return os.readlink(os.fsencode(target)) == content  # noqa: PTH115
    try:
        file, size = open_plain(str(target), os.O_NOFOLLOW)
    except OSError:
        return False
    with os.fdopen(file, "rb") as opened:
        return size == len(content) and opened.read(size + 1) == content


def _refuse_moved(repository: Repository, workspace: Workspace, patch: Patch, since: str) -> None:
    """Refuse a patch if one of its files is not as it was when that happened what `since` says."""
    root, base = repository.root, workspace.entries(patch.base)
    assert root is not None
    for path in patch.paths:
        target = root / path
        if target.parent.resolve() != (root.resolve() / path).parent:
            raise PermissionRefused(f"{target} is behind a symbolic link: nothing was written")
        if not _is_same(target, workspace, base.get(path)):
            raise PermissionRefused(f"{target} has changed since {since}: nothing was written")


def _is_same(target: Path, workspace: Workspace, old: TreeEntry | None) -> bool:
    """Return whether a file is as an old one, or missing if there was none. Raises PermissionRefused."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return old is None
    except NotADirectoryError:
        raise PermissionRefused(
            f"{target} cannot be created because a part of its path is a file: nothing was written"
        ) from None
    if stat.S_ISDIR(mode):
        raise PermissionRefused(f"{target} is a folder now: nothing was written")
    return old is not None and _has(target, mode, workspace.store.get_blob(old.sha))


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
    """Return name, address and time for the commit: the user's, or m3agent's own if git knows no user."""
    try:
        return repository.git("var", "GIT_COMMITTER_IDENT").strip()
    except GitCommandFailed:
        import time

        return b"m3agent <m3agent@localhost> %d +0000" % int(time.time())
