"""Read a repository's history from a separate store, so that no setting of the repository takes effect.

The store reads the repository's objects through alternates. It has none of the repository's configuration,
hooks, attributes, replaced objects or remotes. From the repository itself only its head, its tags, its
origin's address and its shallow boundary are read.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from m3agent.agent.repo.repository import Repository, open_repository, origin_url
from m3agent.agent.repo.snapshot import borrowing_store
from m3agent.sandbox.store.git import DIFF_OPTIONS, GitFailed, TreeStore
from m3agent.util.errors import EnvironmentFault, UsageError

SUBMODULE = 0o160000
ABSENT = 0
FIELDS = "%H%x1f%P%x1f%ct%x1f%B"
RELEASE = re.compile(r"\d+(?:\.\d+)+(?:[._-]?(?:a|b|c|rc|alpha|beta|post|dev)[._-]?\d+)?")


@dataclass(frozen=True)
class Commit:
    """A commit."""

    sha: str
    parent: str | None
    """Id of its first parent; None if it has none, or if the history is cut off here."""
    merged: tuple[str, ...]
    """Ids of its other parents."""
    date: datetime
    message: str


@dataclass(frozen=True)
class CommitChange:
    """A path that differs between two trees."""

    path: str
    old_mode: int
    """Git's file mode before; 0 if the path did not exist."""
    new_mode: int
    """Git's file mode after; 0 if the path no longer exists."""
    old: str
    """Blob id before."""
    new: str
    """Blob id after."""


@dataclass(frozen=True)
class CommitHistory:
    """The first-parent history of a repository's head."""

    store: TreeStore
    head: str
    name: str
    """`owner/name`, or only the name if no remote tells the owner."""

    def commits(self, since: datetime | None = None, until: datetime | None = None) -> Iterator[Commit]:
        """Yield the commits between two dates, in the order of the history, newest first.

        Raises:
            EnvironmentFault: The repository is damaged.
        """
        try:
            out = self.store.git("log", "--first-parent", "-z", f"--format={FIELDS}", self.head)
        except GitFailed as error:
            raise EnvironmentFault(f"the history cannot be read: {error}") from None
        for record in out.decode(errors="replace").split("\0"):
            if not record:
                continue
            sha, parents, seconds, message = record.split("\x1f", 3)
            parent, *merged = parents.split() or [""]
            date = _date(seconds)
            # no valid date: the environment's package versions could not be chosen by it
            if date is None or (since and date < since) or (until and date > until):
                continue
            yield Commit(sha, parent or None, tuple(merged), date, message)

    def changes(self, old: str, new: str) -> list[CommitChange]:
        """Return the paths that differ between two commits. A rename is a removed file and a new file."""
        out = self.store.git("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", old, new)
        fields = out.split(b"\0")
        changes = []
        for meta, path in zip(fields[:-1:2], fields[1::2], strict=True):
            old_mode, new_mode, before, after, _ = meta.removeprefix(b":").decode().split()
            name = path.decode(errors="surrogateescape")
            changes.append(CommitChange(name, int(old_mode, 8), int(new_mode, 8), before, after))
        return changes

    def diff(self, old: str, new: str, paths: Sequence[str]) -> bytes:
        """Return the patch between two commits for these paths, in the form that `git apply` reads."""
        return self.store.git(
            "--literal-pathspecs", "diff-tree", "-p", "-r", *DIFF_OPTIONS, old, new, "--", *paths
        )

    def messages_merged(self, commit: Commit) -> list[str]:
        """Return the messages of the commits that a merge brought in, oldest first, at most twenty."""
        if commit.parent is None or not commit.merged:
            return []
        limits = ("--no-merges", "--max-count=20", f"^{commit.parent}")
        try:
            out = self.store.git("log", "-z", "--reverse", "--format=%B", *limits, *commit.merged)
        except GitFailed:  # the history is cut off there
            return []
        return [message for message in out.decode(errors="replace").split("\0") if message.strip()]

    def whole(self, commit: str) -> bool:
        """Return whether all objects of a commit are present. A partial clone lacks some."""
        try:
            self.store.git("rev-list", "--objects", "--no-walk", "--quiet", commit)
        except GitFailed:
            return False
        return True

    def release(self, commit: str) -> str | None:
        """Return the version of the latest release before a commit; None if there is no such tag.

        The version comes from the nearest tag that contains one.
        """
        try:
            out = self.store.git("describe", "--tags", "--abbrev=0", "--match=*[0-9].[0-9]*", commit)
        except GitFailed:  # no such tag
            return None
        version = RELEASE.search(out.decode(errors="replace"))
        return version[0] if version else None


def open_history(path: Path, scratch: Path, name: str | None = None) -> CommitHistory:
    """Open the history of the repository that contains `path`; `path` may also be a bare repository.

    Args:
        name: Name of the repository; None to derive it from its origin or its folder.

    Raises:
        UsageError: There is no such repository, it has no commit, or it uses SHA-256 ids.
        EnvironmentFault: git or the repository cannot be used.
    """
    repository = open_repository(path)
    if len(repository.head) != 40:
        raise UsageError(
            f"{path} is a repository with SHA-256 ids, which m3agent cannot read: convert it to SHA-1."
        )
    store = borrowing_store(repository, scratch / "history.git")
    if tags := _tags(repository):
        store.git("update-ref", "--stdin", "-z", stdin=tags)
    return CommitHistory(store, repository.head, name or _name(repository))


def _tags(repository: Repository) -> bytes:
    """Return the repository's tags as input for `git update-ref --stdin -z`.

    Tags on non-commits are left out.
    """
    listing = "--format=%(refname) %(objecttype) %(objectname) %(*objecttype) %(*objectname)"
    commands = []
    for line in repository.git("for-each-ref", listing, "refs/tags").splitlines():
        ref, *words = line.split(b" ")
        target = next((words[i + 1] for i in (0, 2) if words[i] == b"commit"), None)
        if target is not None:
            commands.append(b"update " + ref + b"\0" + target + b"\0\0")
    return b"".join(commands)


def _name(repository: Repository) -> str:
    """Return the end of the origin's address, `owner/name`; without an origin, the folder's name."""
    address = origin_url(repository) or ""
    match = (
        re.search(r"[/:]([^/:]+)/([^/]+?)(?:\.git)?/?$", address)
        if "://" in address or "@" in address
        else None
    )
    folder = repository.root or repository.git_dir
    return f"{match[1]}/{match[2]}" if match else folder.name.removesuffix(".git")


@functools.cache
def _date(seconds: str) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        return None
