"""Opens the repository to work on and answers questions about it through git, changing nothing.

This is git as its user has set it up: whose repositories are trusted, what is ignored, how lines end. The trees of
sandboxes are never read this way; for them there is `m3agent.sandbox.git`, which knows no configuration at all.
"""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from m3agent.agent.context.checkout import Checkout
from m3agent.agent.errors import EnvironmentFault, M3AgentError, UsageError
from m3agent.agent.git_process import SAFE, environment

MIN_GIT = (2, 30)
"""The oldest git accepted, that of Debian 11."""

_SUBMODULE, _SYMLINK = "160000", "120000"


class GitCommandFailed(M3AgentError):
    """A git command failed; `stderr` is all it wrote, `said` its first line."""

    exit_code = 3

    def __init__(self, command: str, stderr: str) -> None:
        self.stderr = stderr
        said = next((line for line in stderr.splitlines() if line.strip()), "it gave no reason")
        self.said = said.removeprefix("fatal: ").removeprefix("error: ").strip().rstrip(".")
        super().__init__(f"git {command} failed: {self.said}.")


def git(args: Sequence[str], *, cwd: Path, stdin: bytes | None = None, timeout: float | None = 300) -> bytes:
    """Run `git *args` in `cwd` and return its standard output, with nothing in the repository able to start programs
    or prompts by it (content filters excepted, which belong to reading a work tree). Blocking; `timeout` in seconds.

    Raises `GitCommandFailed` on a non-zero exit, `EnvironmentFault` when git is missing or does not end in time.
    """
    try:
        done = subprocess.run(
            ["git", *SAFE, *args],
            cwd=cwd,
            env=environment(),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            check=False,
            timeout=timeout,
        )
    except FileNotFoundError:
        if not cwd.is_dir():
            raise EnvironmentFault(f"The folder {cwd} is gone.") from None
        raise EnvironmentFault(_NO_GIT) from None
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(f"git {args[0]} did not end within {timeout:g} seconds in {cwd}.") from None
    if done.returncode:
        raise GitCommandFailed(args[0], done.stderr.decode(errors="replace"))
    return done.stdout


_NO_GIT = "git is not installed: install it first (Debian and Ubuntu: apt-get install git)."


class TreeEntry(NamedTuple):
    """A file of a commit: its path, git's mode (six octal digits), blob id, and size in bytes (0 for a submodule)."""

    path: str
    mode: str
    oid: str
    size: int


@dataclass(frozen=True)
class Repository:
    """A git repository as it was when opened.

    `root` is the work tree's folder (None when bare), `head` the id of the commit checked out, `branch` its branch
    (None when detached). Paths handed out are relative to the root, with `/`; bytes that are not UTF-8 appear as
    surrogate escapes, as everywhere in Python's file functions.
    """

    root: Path | None
    git_dir: Path
    head: str
    branch: str | None
    bare: bool
    shallow: bool

    @property
    def checkout(self) -> Checkout:
        """What packing needs to know of it."""
        root = None if self.root is None else str(self.root)
        return Checkout(root, str(self.git_dir), self.head, shallow=self.shallow)

    def git(self, *args: str, stdin: bytes | None = None) -> bytes:
        """Run git in this repository; see `git`."""
        return git(args, cwd=self.root or self.git_dir, stdin=stdin)

    def dirty_paths(self) -> set[str]:
        """Paths whose content differs from HEAD, untracked files included, ignored ones not; empty when bare."""
        if self.bare:
            return set()
        out = self.git(
            "status",
            "--porcelain=v1",
            "-z",
            "--untracked-files=all",
            "--no-renames",
            "--ignore-submodules=dirty",
        )
        return {os.fsdecode(entry[3:]) for entry in out.split(b"\0") if entry}

    def list_files(self) -> list[str]:
        """Tracked files and untracked ones that git does not ignore, sorted by their bytes.

        Left out: what is not on disk (deleted, or not in a sparse checkout), submodules, symbolic links that leave
        the work tree or lead nowhere. When bare: the regular files of HEAD.
        """
        if self.root is None:
            return [entry.path for entry in self.tree() if entry.mode not in (_SUBMODULE, _SYMLINK)]
        out = self.git("ls-files", "-z", "--stage")
        entries = (entry.split(b"\t", 1) for entry in out.split(b"\0") if entry)
        names = {path for meta, path in entries if not meta.startswith(_SUBMODULE.encode())}
        # A nested repository is listed as "folder/", which is no file.
        names.update(filter(None, self.git("ls-files", "-z", "--others", "--exclude-standard").split(b"\0")))
        return list(_on_disk(self.root, map(os.fsdecode, sorted(names))))

    def tree(self) -> list[TreeEntry]:
        """Every file of HEAD's tree, sorted by path."""
        entries: list[TreeEntry] = []
        for line in self.git("ls-tree", "-r", "-l", "-z", "--full-tree", "HEAD").split(b"\0"):
            if line:
                meta, path = line.split(b"\t", 1)
                mode, _, oid, size = meta.decode().split()
                entries.append(TreeEntry(os.fsdecode(path), mode, oid, int(size) if size.isdecimal() else 0))
        return entries


def open_repository(path: Path) -> Repository:
    """Open the repository that `path` lies in: a clone of any kind, a worktree, a submodule's checkout.

    Raises `UsageError` when there is none or it has no commit, `EnvironmentFault` when git or the repository is not
    in a state to be used.
    """
    _check_git()
    if not path.exists():
        raise UsageError(f"There is no folder {path}: give the repository's folder.")
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder: give the repository's folder.")
    root, git_dir, bare = _discover(path.resolve())
    where = root or git_dir
    try:
        said = git(["rev-parse", "--is-shallow-repository"], cwd=where).decode().strip()
    except GitCommandFailed as error:
        raise _refused(error, where) from None
    branch = _branch(where)
    return Repository(root, git_dir, _head(where, branch), branch, bare, said == "true")


def origin_url(repository: Repository) -> str | None:
    """The address of the remote called origin as git uses it (`url.*.insteadOf` applied); None without one."""
    try:
        return os.fsdecode(repository.git("remote", "get-url", "origin")).strip() or None
    except GitCommandFailed as error:
        if "No such remote" in error.stderr:
            return None
        raise


@cache
def _git_version(program: str) -> tuple[int, ...]:
    done = subprocess.run([program, "version"], capture_output=True, check=False, timeout=60)
    out = done.stdout.decode(errors="replace")
    found = re.search(r"(\d+)\.(\d+)", out)
    return tuple(int(part) for part in found.groups()) if found else (0,)


def git_version() -> tuple[int, ...] | None:
    """Major and minor version of the git on PATH, or None when there is none."""
    program = shutil.which("git")
    return _git_version(program) if program else None


def _check_git() -> None:
    version = git_version()
    if version is None:
        raise EnvironmentFault(_NO_GIT)
    if version < MIN_GIT:
        found, needed = (".".join(map(str, numbers)) for numbers in (version, MIN_GIT))
        raise EnvironmentFault(f"git {found} is too old: git {needed} or newer is needed.")


def _discover(path: Path) -> tuple[Path | None, Path, bool]:
    """The work tree's folder (None when bare), the git folder, and whether it is bare."""
    # Imported here, after git was found: GitPython's import fails without git, and takes a while.
    from git import Repo
    from git.exc import InvalidGitRepositoryError, NoSuchPathError

    try:
        with Repo(path, search_parent_directories=True, expand_vars=False) as repo:
            git_dir = Path(repo.git_dir).resolve()
            root = None if repo.working_tree_dir is None else Path(repo.working_tree_dir).resolve()
    except (InvalidGitRepositoryError, NoSuchPathError):
        if damaged := next(
            (folder / ".git" for folder in (path, *path.parents) if (folder / ".git").exists()), None
        ):
            raise EnvironmentFault(
                f"{damaged} is not a usable git folder (incomplete or damaged): run 'git fsck' there or clone afresh."
            ) from None
        raise UsageError(
            f"{path} is not in a git repository: give a repository's folder, "
            "or make it one ('git init', 'git add -A', 'git commit')."
        ) from None
    if root is not None:
        _check_root(root)
    return root, git_dir, root is None


def _check_root(root: Path) -> None:
    """Refuse a work tree that git would place elsewhere: core.worktree of a hostile repository may name any folder."""
    try:
        said = Path(os.fsdecode(git(["rev-parse", "--show-toplevel"], cwd=root).removesuffix(b"\n")))
    except GitCommandFailed as error:
        raise _refused(error, root) from None
    if said.resolve() != root:
        raise EnvironmentFault(
            f"The repository at {root} names another folder as its work tree (core.worktree is {said}): "
            "remove that setting, or open the repository from that folder."
        )


def _branch(where: Path) -> str | None:
    try:
        return os.fsdecode(git(["symbolic-ref", "--quiet", "HEAD"], cwd=where).strip()).removeprefix(
            "refs/heads/"
        )
    except GitCommandFailed:
        return None


def _head(where: Path, branch: str | None) -> str:
    try:
        return git(["rev-parse", "--verify", "HEAD^{commit}"], cwd=where).decode().strip()
    except GitCommandFailed as error:
        if branch is not None and not _ref_exists(where, f"refs/heads/{branch}"):
            raise UsageError(
                f"The repository at {where} has no commit on its branch {branch}: "
                "commit the files first ('git add -A', 'git commit'), or check out a branch that has commits."
            ) from None
        raise _damaged(error, where) from None


def _ref_exists(where: Path, ref: str) -> bool:
    # Asked by pattern, which tells a reference that is absent from one that points at nothing.
    listed = git(["for-each-ref", "--format=%(refname)", ref], cwd=where)
    return ref.encode() in listed.splitlines()


def _refused(error: GitCommandFailed, where: Path) -> M3AgentError:
    if "dubious ownership" in error.stderr:
        return EnvironmentFault(
            f"The repository at {where} belongs to another user and git refuses it: if you trust it, run "
            f"'git config --global --add safe.directory {where}'."
        )
    if "must be run in a work tree" in error.stderr:
        return EnvironmentFault(
            f"The repository at {where} names another folder as its work tree (core.worktree): "
            "remove that setting, or open the repository from that folder."
        )
    return _damaged(error, where)


def _damaged(error: GitCommandFailed, where: Path) -> EnvironmentFault:
    return EnvironmentFault(
        f"The repository at {where} cannot be used (git says: {error.said}): "
        "repair it with the help of 'git fsck', or clone it afresh."
    )


def _on_disk(root: Path, paths: Iterable[str]) -> Iterator[str]:
    """Those of `paths` that are files, or links to them, inside `root` once every link is followed."""
    root = root.resolve()
    folders: dict[Path, bool] = {}
    for path in paths:
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
