"""Find out what a patch changes: from a file, the work tree, commits, a branch or a pull request.

The trees are those of commits. Only for the work tree's own changes they have the files as they are on disk, as for a fix.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from stat import S_ISREG

from m3agent.agent.certificate.build import Change
from m3agent.agent.certificate.statement import Base
from m3agent.agent.certificate.statement import Source as Origin
from m3agent.agent.delivery.push import fetch
from m3agent.agent.forge.address import pull_of_origin
from m3agent.agent.forge.api import find_token
from m3agent.agent.forge.connection import ask
from m3agent.agent.repo.repository import GitCommandFailed, Repository, origin_url
from m3agent.agent.repo.snapshot import (
    TREES,
    borrowing_store,
    objects_of,
    submodules_with_room,
    too_large,
    workspace_of,
)
from m3agent.sandbox.errors import PathEscapes
from m3agent.sandbox.store.git import GitFailed, TreeEntry, TreeStore, blob_id
from m3agent.sandbox.store.workspace import TOO_LARGE, Workspace
from m3agent.util.counted import first_of
from m3agent.util.daemon_thread import in_background
from m3agent.util.errors import EnvironmentFault, UsageError, reason_of
from m3agent.util.plain_file import read_first
from m3agent.util.sanitize import quoted

MOST_PATCH = 64 << 20
"""Largest patch that is read, in bytes."""
_NO_PLACE = "unable to add cache entry for "
"""What git says before a path that it cannot create, such as one in a submodule."""
_NO_PATCH = re.compile(r"No valid patches in input|unrecognized input")
"""How `git apply` (2.35 and later, and before) refuses a text without any patch."""
_AT_ONCE = 1000  # files whose contents are read in one call
_NAMED = 5  # most files that a note names
_RANGE = re.compile(r"(.*?)\.{2,3}(.*)", re.DOTALL)


@dataclass(frozen=True)
class Source:
    """Where the patch is. At most one is given besides `base`; if none is, it is the changes of the work tree.

    Raises:
        UsageError: There are several, or a base for a range, which has its own.
    """

    file: str | None = None
    """The path of a patch, or `-` for standard input."""
    commits: str | None = None
    """A commit, or two with `..` between them."""
    branch: str | None = None
    """A branch, or another name of a commit."""
    pull_request: str | None = None
    """The address of a pull request."""
    base: str | None = None
    """The commit that the patch is compared with; None for the usual one."""

    def __post_init__(self) -> None:
        given = {
            "PATCH": self.file,
            "--commit": self.commits,
            "--branch": self.branch,
            "--pr": self.pull_request,
        }
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise UsageError(f"{' and '.join(names)} name two patches: give only one")
        if self.base is not None and self.commits is not None and _RANGE.fullmatch(self.commits):
            raise UsageError("--base is for one commit: a range names its base itself")

    @property
    def named(self) -> bool:
        """Whether there is a patch besides the changes of the work tree."""
        return any(one is not None for one in (self.file, self.commits, self.branch, self.pull_request))


async def read_change(
    source: Source,
    repository: Repository,
    folder: Path,
    *,
    github_api: str,
    env: Mapping[str, str],
    say: Callable[[str], None],
) -> Change:
    """Return the patch with its trees. The user's repository does not change.

    Raises:
        UsageError: There is no such patch, or it does not apply.
        PermissionRefused, EnvironmentFault: A pull request cannot be fetched.
        SandboxError: The patch cannot be tested, or the repository lacks objects.
    """
    reader = _Reader(repository, borrowing_store(repository, folder / TREES))
    if source.named and (others := await asyncio.to_thread(reader.uncommitted_beside, source.file)):
        say(f"the tests run on commits, so uncommitted files are left out: {first_of(others, _NAMED)}")
    if source.pull_request is not None:
        origin = origin_url(repository)
        pull = pull_of_origin(source.pull_request, origin, github_api=github_api, env=env)
        token = await in_background(lambda: find_token(pull, env))
        say(f"asking {pull.host} about {pull.what}")
        commits = await ask(pull, token, say, lambda client: client.commits(pull))
        say(f"fetching {pull.what} from origin")
        await fetch(repository, [pull.ref, f"refs/heads/{commits.branch}"], reader.store.git_dir / "objects")
        return await asyncio.to_thread(reader.of_pull, commits.head, commits.target, source.base)
    if source.file is not None:
        text = await in_background(lambda: _read(source.file or "-"))
        return await asyncio.to_thread(reader.of_file, source.file, text, source.base)
    if source.branch is not None:
        return await asyncio.to_thread(reader.of_branch, source.branch, source.base)
    if source.commits is not None:
        return await asyncio.to_thread(reader.of_commits, source.commits, source.base)
    return await asyncio.to_thread(reader.of_work_tree, folder, source.base, say)


class _Reader:
    """Reads patches of one repository; its methods block."""

    def __init__(self, repository: Repository, store: TreeStore) -> None:
        self._repository = repository
        self.store = store

    def uncommitted_beside(self, patch: str | None) -> list[str]:
        """Return the sorted paths of uncommitted files, without the file that has the patch."""
        root = self._repository.root
        own = {Path(patch).resolve()} if patch is not None else set()
        return sorted(
            path
            for path in self._repository.dirty_paths()
            if root is None or (root / path).resolve() not in own
        )

    def commit(self, name: str, option: str) -> str:
        """Return the id of the commit with a name. Raises UsageError."""
        try:
            found = self._repository.git(
                "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
            )
        except GitCommandFailed:
            raise UsageError(
                f"{option}: {quoted(name)} names no commit of this repository{self._if_shallow()}"
            ) from None
        return found.decode().strip()

    def merge_base(self, one: str, other: str) -> str:
        """Return the last commit that two commits have in common. Raises UsageError."""
        found = self.store.git("merge-base", one, other, ok=(0, 1)).decode().split()
        if not found:
            raise UsageError(f"{one[:12]} and {other[:12]} have no commit in common{self._if_shallow()}")
        return found[0]

    def between(self, base: str, head: str, kind: str) -> Change:
        """Return the difference of two commits."""
        origin = Origin.model_validate({"kind": kind, "commit": head})
        return self._change(base, self._tree(base), self._tree(head), origin)

    def of_pull(self, head: str, target: str, base: str | None) -> Change:
        """Return the changes of a fetched pull request since it left the branch that it is for."""
        try:
            self.store.git("cat-file", "-e", f"{head}^{{commit}}")
            self.store.git("cat-file", "-e", f"{target}^{{commit}}")
        except GitFailed:
            raise EnvironmentFault("the pull request changed while it was fetched: try again") from None
        other = target if base is None else self.commit(base, "--base")
        return self.between(self.merge_base(other, head), head, "pull request")

    def of_file(self, name: str, text: bytes, base: str | None) -> Change:
        """Return a patch in a file, for a commit. An empty file is a patch without changes."""
        shown = "standard input" if name == "-" else quoted(name)
        origin = Origin(kind="file", commit=None)
        commit = self._repository.head if base is None else self.commit(base, "--base")
        before = self._tree(commit)
        if not text.strip():
            return self._change(commit, before, before, origin)
        try:
            after = self.store.apply(before, text if text.endswith(b"\n") else text + b"\n")
        except GitFailed as error:
            said = str(error).removeprefix("git apply failed: ").removeprefix("error: ")
            if said.startswith(_NO_PLACE):
                self._workspace(commit, before).refuse_submodule(said.removeprefix(_NO_PLACE))
            if _NO_PATCH.match(said) is not None:
                raise UsageError(f"{shown} is not a patch: give one as `git diff` prints it") from None
            raise UsageError(
                f"the patch in {shown} does not apply to {commit[:12]} ({said}): "
                + ("the file is damaged" if "corrupt patch" in said else "name its commit with --base")
            ) from None
        return replace(self._change(commit, before, after, origin), text=text)

    def of_branch(self, name: str, base: str | None) -> Change:
        """Return the changes of a branch since it left the commit that is checked out, or the default branch of origin."""
        head = self.commit(name, "--branch")
        if base is None and head == self._repository.head:
            base = "refs/remotes/origin/HEAD"
            try:
                self._repository.git("rev-parse", "--verify", "--quiet", base)
            except GitCommandFailed:
                raise UsageError(
                    f"{quoted(name)} is checked out, and origin has no default branch here to compare it with: "
                    "say where it began with --base, such as --base main"
                ) from None
        other = self._repository.head if base is None else self.commit(base, "--base")
        return self.between(self.merge_base(other, head), head, "branch")

    def of_commits(self, name: str, base: str | None) -> Change:
        """Return the change of one commit, or of those between two."""
        option = "--commit"
        if (found := _RANGE.fullmatch(name)) is not None:
            first, last = (self.commit(one or "HEAD", option) for one in found.groups())
            return self.between(self.merge_base(first, last), last, "commits")
        head = self.commit(name, option)
        if base is not None:
            return self.between(self.merge_base(self.commit(base, "--base"), head), head, "commits")
        parent = self.store.git("rev-list", "--max-count=1", "--parents", head).decode().split()[1:2]
        if not parent:
            raise UsageError(
                f"{option}: the commit {head[:12]} has no parent here to compare it with{self._if_shallow()}"
            )
        return self.between(parent[0], head, "commits")

    def of_work_tree(self, folder: Path, base: str | None, say: Callable[[str], None]) -> Change:
        """Return the changes in the work tree, committed since the base or not.

        Certificates and pages that m3agent wrote there are no part of them, unless git tracks them.
        """
        repository = self._repository
        if repository.root is None:
            raise UsageError(
                "a bare repository has no changes of its own: give a patch, --commit, --branch or --pr"
            )
        commit = repository.head
        if base is not None:
            commit = self.merge_base(self.commit(base, "--base"), commit)
        changed = self._changed_since(commit)
        now = workspace_of(repository, folder, say)
        entries = now.entries(now.base)
        tracked = {entry.path for entry in self.store.list_tree(repository.head)}
        if own := repository.own_files():
            say(f"left out, because m3agent wrote it: {', '.join(sorted(own))}")
        if untracked := sorted((changed - tracked) & entries.keys()):
            say(f"untracked files are part of the patch: {first_of(untracked, _NAMED)}")
        before = {path: entry for path, entry in entries.items() if path not in changed}
        # a file that is there and not in the tree is too large: it is no part of the patch
        kept_out = {path for path in changed - entries.keys() if (repository.root / path).is_file()}
        wanted = changed - kept_out
        old = [entry for entry in self.store.list_tree(commit) if entry.path in wanted]
        before |= {entry.path: entry for entry in self._on_disk(old)}
        tree = self.store.write_tree(before.values())
        return self._change(commit, tree, now.base, Origin(kind="work tree", commit=None))

    def _changed_since(self, commit: str) -> set[str]:
        """Return the paths that differ between a commit and the work tree. Raises PathEscapes for a submodule."""
        repository = self._repository
        trees = self._tree(commit), self._tree(repository.head)
        changed = repository.dirty_paths() | {path for _, path in self.store.changed_paths(*trees)}
        for path in sorted(changed & repository.submodules()):
            raise PathEscapes(f"the change sets the commit of the submodule {path}: refused")
        return changed

    def _on_disk(self, entries: Sequence[TreeEntry]) -> Iterator[TreeEntry]:
        """Yield files of a commit as git would write them into the work tree, with the user's filters and line ends."""
        for start in range(0, len(entries), _AT_ONCE):
            some = entries[start : start + _AT_ONCE]
            together = [entry for entry in some if S_ISREG(entry.mode) and "\n" not in entry.path]
            contents = self._filtered(together)
            changed = [
                (entry, content)
                for entry, content in zip(together, contents, strict=True)
                if blob_id(content, len(entry.sha)) != entry.sha
            ]
            ids = self.store.put_blobs([content for _, content in changed])
            new = {entry.path: sha for (entry, _), sha in zip(changed, ids, strict=True)}
            alone = {entry.path for entry in some} - {entry.path for entry in together}
            for entry in some:
                if entry.path in alone:
                    yield self._one_filtered(entry)
                else:
                    yield replace(entry, sha=new.get(entry.path, entry.sha))

    def _filtered(self, entries: Sequence[TreeEntry]) -> list[bytes]:
        """Return the contents of files as git would write them, in one call to git."""
        if not entries:
            return []
        # git prints the sizes from before the filters, so a mark that no file has separates the contents
        mark = token_hex(16)
        names = b"".join(entry.sha.encode() + b" " + os.fsencode(entry.path) + b"\n" for entry in entries)
        out = self._repository.git("cat-file", f"--batch={mark}", "--filters", stdin=names)
        return (b"\n" + out.removesuffix(b"\n")).split(f"\n{mark}\n".encode())[1:]

    def _one_filtered(self, entry: TreeEntry) -> TreeEntry:
        """Return a file whose path does not fit into a line, or that is no plain file."""
        if not S_ISREG(entry.mode):
            return entry
        content = self._repository.git("cat-file", "--filters", f"--path={entry.path}", entry.sha)
        return replace(entry, sha=self.store.put_blob(content))

    def _tree(self, commit: str) -> str:
        return self.store.git("rev-parse", f"{commit}^{{tree}}").decode().strip()

    def _change(self, commit: str, before: str, after: str, origin: Origin) -> Change:
        if (submodules := self.store.submodules(before)) and submodules == self.store.submodules(after):
            for repositories, _ in submodules_with_room(self._repository).values():
                for each in repositories:
                    self.store.borrow(objects_of(each))
            before, after = self.store.with_submodules(before), self.store.with_submodules(after)
        workspace = self._workspace(commit, before)
        self._refuse_large(workspace, after)
        patch = workspace.patch(after)
        return Change(workspace, patch, patch.text, Base(commit=commit, tree=before, uncommitted=0), origin)

    def _refuse_large(self, workspace: Workspace, after: str) -> None:
        """Raise UsageError for a change with a file that no sandbox would get."""
        entries = {**workspace.entries(workspace.base), **workspace.entries(after)}
        changed = [path for _, path in self.store.changed_paths(workspace.base, after) if path in entries]
        sizes = self.store.sizes([entries[path].sha for path in changed])
        if large := too_large(dict(zip(changed, sizes, strict=True))):
            raise UsageError(
                f"the patch cannot be tested, because it has files {TOO_LARGE}: {first_of(large, _NAMED)}"
            )

    def _workspace(self, commit: str, tree: str) -> Workspace:
        """Return the states from a tree on, which belongs to a commit."""
        self.store.note_submodules(self.store.submodules(commit))
        return Workspace(self.store, tree)

    def _if_shallow(self) -> str:
        note = "; this clone is shallow: fetch more with 'git fetch --unshallow'"
        return note if self._repository.shallow else ""


def _read(name: str) -> bytes:
    """Return the bytes of a patch. Raises UsageError."""
    try:
        most = MOST_PATCH + 1
        data = sys.stdin.buffer.read(most) if name == "-" else read_first(name, most)
    except OSError as error:
        raise UsageError(
            f"the patch {quoted(name)} cannot be read: {reason_of(error)}; give the path of a patch (`m3agent sessions show` "
            "names that of a session)"
        ) from None
    if len(data) > MOST_PATCH:
        raise UsageError(f"the patch is larger than {MOST_PATCH >> 20} MiB")
    return data
