"""Open the user's repository and query it through git. Nothing in it is changed.

Git runs with the user's own configuration: trusted repositories, ignored files, line ends. From the
repository's own configuration only plain data is used (see `host_git`). The trees of sandboxes are never read
this way; `m3agent.sandbox.store.git` reads them, without any configuration.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from m3agent.agent.repo import git_spawn
from m3agent.agent.repo.git_config import first_words, no_git, unusable
from m3agent.agent.repo.host_git import HostGit, find
from m3agent.agent.repo.own_output import CERTIFICATE, PAGE
from m3agent.sandbox.store.git_command import for_no_repository, subcommand
from m3agent.util.errors import EnvironmentFault, M3AgentError, UsageError
from m3agent.util.plain_file import read_first

MIN_GIT = (2, 30)
"""The oldest accepted version of git: the one in Debian 11."""

READS_WORK_TREE = frozenset({"ls-files", "status"})
"""Commands that read files of the work tree, where a file can block them. They change nothing, so they can be repeated."""

_SUBMODULE, _SYMLINK = "160000", "120000"


class GitCommandFailed(M3AgentError):
    """A git command failed.

    Attributes:
        stderr: All of its standard error.
        said: The first line of its standard error, without git's prefix.
    """

    exit_code = 3

    def __init__(self, command: str, stderr: str) -> None:
        self.stderr = stderr
        self.said = first_words(stderr) or "it gave no reason"
        super().__init__(f"git {command} failed: {self.said}.")


def git(
    where: HostGit, args: Sequence[str], *, stdin: bytes | None = None, timeout: float | None = 300
) -> bytes:
    """Run `git *args` in the user's repository and return its standard output. Blocking.

    Nothing in the repository can make git start a program or prompt the user. Filters run only if the user's
    own configuration names them.

    Raises:
        GitCommandFailed: The exit status is not zero.
        EnvironmentFault: Git or the folder is missing, or git did not end in time.
    """
    try:
        done = _run(where, args, stdin, timeout)
    except FileNotFoundError:
        if not os.path.isdir(where.folder):  # noqa: PTH112
            raise EnvironmentFault(f"The folder {where.folder} is gone.") from None
        raise no_git() from None
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(
            f"git {subcommand(args)} did not end within {timeout:g} seconds in {where.folder}."
        ) from None
    if done.returncode:
        raise GitCommandFailed(subcommand(args), done.stderr.decode(errors="replace"))
    return done.stdout


def _run(
    where: HostGit, args: Sequence[str], stdin: bytes | None, timeout: float | None
) -> subprocess.CompletedProcess[bytes]:
    command = where.command()
    if args[0] in READS_WORK_TREE:
        try:
            return command.run(*args, cwd=where.folder, stdin=stdin, timeout=git_spawn.PATIENCE)
        except subprocess.TimeoutExpired:
            if (fault := git_spawn.blocked(where.root)) is not None:
                raise fault from None
    return command.run(*args, cwd=where.folder, stdin=stdin, timeout=timeout)


@dataclass(frozen=True)
class Repository:
    """A git repository in the state in which it was opened.

    Paths in results are relative to the root, with `/`. Bytes that are not UTF-8 appear as surrogate escapes,
    as in Python's file functions.
    """

    host_git: HostGit
    """The location of the repository, and how to run git in it."""
    head: str
    """The id of the checked-out commit."""
    branch: str | None
    """The checked-out branch; None if HEAD is detached."""
    shallow: bool
    """Whether the clone is shallow."""

    @property
    def root(self) -> Path | None:
        """The work tree's folder; None for a bare repository."""
        return None if self.host_git.root is None else Path(self.host_git.root)

    @property
    def git_dir(self) -> Path:
        """The git folder of this work tree."""
        return Path(self.host_git.git_dir)

    @property
    def common_dir(self) -> Path:
        """The git folder that linked work trees share; `git_dir` if there are none."""
        return Path(self.host_git.common_dir)

    @property
    def bare(self) -> bool:
        """Whether the repository has no work tree."""
        return self.host_git.root is None

    def git(self, *args: str, stdin: bytes | None = None) -> bytes:
        """Run git in this repository; see `git`."""
        return git(self.host_git, args, stdin=stdin)

    def dirty_paths(self) -> set[str]:
        """Return the paths whose content differs from HEAD; empty for a bare repository.

        Untracked files are included, unless m3agent wrote them. Ignored files are not.
        """
        if self.root is None:
            return set()
        options = ("--untracked-files=all", "--no-renames", "--ignore-submodules=dirty")
        out = self.git("status", "--porcelain=v1", "-z", *options)
        entries = [(entry[:2], os.fsdecode(entry[3:])) for entry in out.split(b"\0") if entry]
        return {path for _, path in entries} - own_files(
            self.root, (path for state, path in entries if state == b"??")
        )

    def list_files(self) -> list[str]:
        """Return tracked files, and untracked files that git does not ignore, sorted by their bytes.

        Left out: untracked files that m3agent wrote, files that are not on disk (deleted, or outside a sparse checkout),
        submodules, and symbolic links that leave the work tree or lead nowhere. For a bare repository: the regular files of HEAD.
        """
        if self.root is None:
            return [path for mode, path in self._of_head() if mode not in (_SUBMODULE, _SYMLINK)]
        out = self.git("ls-files", "-z", "--stage")
        entries = (entry.split(b"\t", 1) for entry in out.split(b"\0") if entry)
        names = {path for meta, path in entries if not meta.startswith(_SUBMODULE.encode())}
        # Git lists a nested repository as "folder/"; `_on_disk` drops it because it is not a file.
        untracked = self._untracked()
        names.update(map(os.fsencode, untracked - own_files(self.root, untracked)))
        return list(_on_disk(self.root, map(os.fsdecode, sorted(names))))

    def own_files(self) -> set[str]:
        """Return the untracked files that m3agent wrote: certificates, and pages of `report`."""
        return set() if self.root is None else own_files(self.root, self._untracked())

    def _untracked(self) -> set[str]:
        out = self.git("ls-files", "-z", "--others", "--exclude-standard")
        return {os.fsdecode(path) for path in out.split(b"\0") if path}

    def ignored_files(self) -> list[str]:
        """Return the ignored files on disk, sorted; a folder that has only such files is one path, without a `/`."""
        if self.root is None:
            return []
        listed = self.git("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
        return sorted(os.fsdecode(path).rstrip("/") for path in listed.split(b"\0") if path)

    def submodules(self) -> set[str]:
        """Return the paths of HEAD's submodules."""
        return {path for mode, path in self._of_head() if mode == _SUBMODULE}

    def checkouts(self) -> Iterator[tuple[str, Repository]]:
        """Yield path and repository of each submodule that is checked out, and of those in them."""
        root = self.root
        if root is None:
            return
        for path in sorted(self.submodules()):
            try:
                inner = open_repository(root / path)
            except M3AgentError:  # no folder, or one without a commit
                continue
            # of an empty folder, git finds the repository around it; a link could lead anywhere
            if inner.root is not None and inner.root.resolve() == root.resolve() / path:
                yield path, inner
                yield from ((f"{path}/{below}", each) for below, each in inner.checkouts())

    def _of_head(self) -> Iterator[tuple[str, str]]:
        """Yield mode and path of every file of HEAD, in the order of the paths."""
        for line in self.git("ls-tree", "-r", "-z", "--full-tree", "HEAD").split(b"\0")[:-1]:
            meta, path = line.split(b"\t", 1)
            yield meta.decode().partition(" ")[0], os.fsdecode(path)


def open_repository(path: Path) -> Repository:
    """Open the repository that contains `path`.

    It may be a clone of any kind, a linked work tree, or a submodule's checkout.

    Raises:
        UsageError: There is no repository, or it has no commit.
        EnvironmentFault: Git is missing or too old, or the repository is damaged.
    """
    _check_git()
    if not path.exists():
        raise UsageError(f"There is no folder {path}: give the repository's folder.")
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder: give the repository's folder.")
    found = find(str(path))
    if found is None:
        raise UsageError(
            f"{path.resolve()} is not in a git repository: give a repository's folder, "
            "or make it one ('git init', 'git add -A', 'git commit')."
        )
    try:
        said = git(found, ["rev-parse", "--is-shallow-repository"]).decode().strip()
    except GitCommandFailed as error:
        raise unusable(found.folder, error.said) from None
    branch = _branch(found)
    return Repository(found, _head(found, branch), branch, said == "true")


def origin_url(repository: Repository) -> str | None:
    """Return the address of the remote `origin`, with `url.*.insteadOf` applied; None without one."""
    try:
        return os.fsdecode(repository.git("remote", "get-url", "origin")).strip() or None
    except GitCommandFailed as error:
        if "No such remote" in error.stderr:
            return None
        raise


def last_tag(repository: Repository) -> str | None:
    """Return the nearest tag that HEAD's history contains; None without one."""
    try:
        return (
            os.fsdecode(repository.git("describe", "--tags", "--abbrev=0", repository.head)).strip() or None
        )
    except GitCommandFailed:  # no tag, or a history that is cut off before the first one
        return None


@cache
def _git_version(program: str) -> tuple[int, ...]:
    """Return the version of the git at the path `program`. The result is cached for each path."""
    out = for_no_repository().run("version", timeout=60).stdout.decode(errors="replace")
    found = re.search(r"(\d+)\.(\d+)", out)
    return tuple(int(part) for part in found.groups()) if found else (0,)


def git_version() -> tuple[int, ...] | None:
    """Return the major and minor version of the git on PATH, or None if git is not installed."""
    program = shutil.which("git")
    return _git_version(program) if program else None


def _check_git() -> None:
    version = git_version()
    if version is None:
        raise no_git()
    if version < MIN_GIT:
        found, needed = (".".join(map(str, numbers)) for numbers in (version, MIN_GIT))
        raise EnvironmentFault(f"git {found} is too old: git {needed} or newer is needed.")


def _branch(where: HostGit) -> str | None:
    try:
        return os.fsdecode(git(where, ["symbolic-ref", "--quiet", "HEAD"]).strip()).removeprefix(
            "refs/heads/"
        )
    except GitCommandFailed:
        return None


def _head(where: HostGit, branch: str | None) -> str:
    try:
        return git(where, ["rev-parse", "--verify", "HEAD^{commit}"]).decode().strip()
    except GitCommandFailed as error:
        if branch is not None and not _ref_exists(where, f"refs/heads/{branch}"):
            raise UsageError(
                f"The repository at {where.folder} has no commit on its branch {branch}: "
                "commit the files first ('git add -A', 'git commit'), or check out a branch that has commits."
            ) from None
        raise unusable(where.folder, error.said) from None


def _ref_exists(where: HostGit, ref: str) -> bool:
    # A pattern distinguishes an absent reference from one that points to a missing object.
    listed = git(where, ["for-each-ref", "--format=%(refname)", ref])
    return ref.encode() in listed.splitlines()


def _on_disk(root: Path, paths: Iterable[str]) -> Iterator[str]:
    """Yield those of `paths` that are regular files or symbolic links and stay inside `root`.

    A link must lead to an existing file or folder inside `root`. Git's own folder is left out: an index that
    git did not write may name files in it.
    """
    root = root.resolve()
    folders: dict[Path, bool] = {}
    for path in paths:
        if path.startswith(".git/") or "/.git/" in path:
            continue
        full = root / path
        try:
            mode = full.lstat().st_mode
        except OSError:
            continue
        if full.parent not in folders:
            folders[full.parent] = full.parent.resolve().is_relative_to(root)
        if not folders[full.parent]:
            continue
        if stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and _link_inside(root, full)):
            yield path


def _link_inside(root: Path, link: Path) -> bool:
    try:
        return link.resolve(strict=True).is_relative_to(root)
    except (OSError, RuntimeError):  # broken, or a loop
        return False


_HEAD = 2000
"""Bytes at the beginning of a file that show whether m3agent wrote it."""


def own_files(root: Path, untracked: Iterable[str]) -> set[str]:
    """Return the paths of untracked files that m3agent wrote or writes to. They are not part of the user's work."""
    outputs = _open_files()
    return {
        path
        for path in untracked
        if (path.endswith((".json", ".html")) and _is_own(root / path))
        or (outputs and _identity(root / path) in outputs)
    }


def _open_files() -> set[tuple[int, int] | None]:
    """Return the identities of the files that this process prints to, as after `m3agent fix > out.patch`."""
    return {_identity(stream) for stream in (1, 2)} - {None}


def _identity(file: Path | int) -> tuple[int, int] | None:
    """Return the identity of a regular file, given its path or descriptor; None if it is not a regular file."""
    try:
        status = os.stat(file, follow_symlinks=not isinstance(file, Path))  # noqa: PTH116 - also of descriptors
    except OSError:  # removed meanwhile, or closed
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _is_own(file: Path) -> bool:
    try:
        head = read_first(str(file), _HEAD)
    except OSError:  # a link that leads nowhere, a folder, a file that the user must not read
        return False
    return head.startswith(CERTIFICATE) or (head.startswith(b"<!doctype html>") and PAGE in head)
