"""Git as a store of trees, never as an interpreter of what a repository says.

Every call here is started by `git_command.for_store`: no system or user file, no hooks, no fsmonitor, no filters, no
attributes from the tree (plain `git status` ran three payloads of a hostile `.git`, `git diff` four).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from m3agent.sandbox.errors import DiskFull, SandboxError
from m3agent.sandbox.git_command import for_store

RAW_ATTRIBUTES = "* -text -eol -filter -ident -working-tree-encoding -export-ignore -export-subst\n"
"""Overrides every attribute of the tree: bytes go in and come out as they are."""

# What running tests and tools leaves behind: never part of a patch unless the repository already tracks it.
JUNK = (
    "__pycache__/",
    "*.py[co]",
    ".pytest_cache/",
    ".mypy_cache/",
    ".ruff_cache/",
    ".hypothesis/",
    ".coverage",
    ".coverage.*",
    ".tox/",
    ".nox/",
    ".eggs/",
    "*.egg-info/",
    ".venv/",
    "node_modules/",
)
_FULL = ("No space left", "Disk quota", "Out of diskspace")
"""The system's words for a disk that is full, and git's own."""
SKIP_FOLDERS = (".git", *(name.rstrip("/") for name in JUNK if name.endswith("/") and "*" not in name))
"""Folders a scan of the work tree does not enter."""


DIFF_OPTIONS = ("--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames")
"""What makes a patch whole and a function of its two trees alone."""

_HEADER = re.compile(rb"^diff --git (a/.+)$", re.MULTILINE)

UNFINISHED = "unfinished-"
"""Beginning of the name of what in a store is still being made."""


def _unambiguous(header: re.Match[bytes]) -> bytes:
    """The first line of a file's part of a patch, with its names in quotes where blanks beside slashes hide their ends.

    `git diff` leaves such names bare, and `git apply` refuses them where no other line repeats them: files that are empty or
    binary, and changes of mode.
    """
    names = header[1]
    old = names[: len(names) // 2]  # both have the same length, and a blank between them
    if not any(part != part.strip(b" ") for part in old.split(b"/")):
        return header[0]
    return b'diff --git "%s" "%s"' % (old, names[len(old) + 1 :])


class GitFailed(SandboxError):
    """A git command that has to work did not; the text holds git's own last line."""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment that git runs in here: it names no configuration but ours."""
    return for_store(extra).environment


def run_git(
    *args: str,
    cwd: Path | None = None,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
    ok: Sequence[int] = (0,),
) -> subprocess.CompletedProcess[bytes]:
    """Run git harmlessly and return its bytes.

    Raises:
        DiskFull: git could not write for lack of space.
        GitFailed: its exit status is not one of `ok`, or git is not installed.
    """
    try:
        done = for_store(env).run(*args, cwd=cwd, stdin=stdin)
    except FileNotFoundError:
        raise GitFailed("git is not installed: install it and try again") from None
    if done.returncode not in ok:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        if any(words in line for words in _FULL for line in lines):
            raise DiskFull(
                "the disk is full: git could not write the session's objects; make room and try again"
            )
        raise GitFailed(f"git {next((a for a in args if not a.startswith('-')), '')} failed: {lines[-1]}")
    return done


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises DiskFull where a file of ours at `path`, on the host, cannot be written."""
    try:
        yield
    except OSError as error:
        raise DiskFull(
            f"cannot write {error.filename or path}: {error.strerror}; make room and try again"
        ) from None


@dataclass(frozen=True)
class TreeEntry:
    """One file of a tree: path (undecodable bytes as surrogates), git's mode and the blob's id."""

    path: str
    mode: int
    sha: str


class TreeStore:
    """A bare repository of ours that holds the trees of one session.

    `alternates` names an object folder to read from, so that the user's objects need not be copied.
    """

    def __init__(self, git_dir: Path, alternates: Path | None = None) -> None:
        self.git_dir = git_dir
        # A session asks for the same few trees again and again.
        self._listed = lru_cache(maxsize=4)(self._list_tree)
        if not (git_dir / "HEAD").exists():
            run_git("init", "--quiet", "--bare", "--template=", "--object-format=sha1", str(git_dir))
        with writing(git_dir):
            (git_dir / "info").mkdir(exist_ok=True)
            (git_dir / "info" / "attributes").write_text(RAW_ATTRIBUTES)
            (git_dir / "info" / "exclude").write_text("\n".join(JUNK) + "\n")
            if alternates is not None:
                (git_dir / "objects" / "info").mkdir(exist_ok=True)
                (git_dir / "objects" / "info" / "alternates").write_bytes(os.fsencode(alternates) + b"\n")

    def sweep(self) -> None:
        """Remove what a process that was killed here left half done. For who has the store to himself."""
        for pattern in ("index-*", f"{UNFINISHED}*", "objects/??/tmp_obj_*"):
            for left in self.git_dir.glob(pattern):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)

    def git(
        self,
        *args: str,
        stdin: bytes | None = None,
        index: str | None = None,
        work_tree: Path | None = None,
        ok: Sequence[int] = (0,),
    ) -> bytes:
        """Run git on this store, optionally with a private index (a name) and a work tree."""
        git_dir = self.git_dir.absolute()  # git is started elsewhere
        env = {"GIT_DIR": str(git_dir)}
        if index is not None:
            env["GIT_INDEX_FILE"] = str(git_dir / index)
        if work_tree is not None:
            env["GIT_WORK_TREE"] = str(work_tree.absolute())
        return run_git(*args, cwd=work_tree or self.git_dir, stdin=stdin, env=env, ok=ok).stdout

    @contextlib.contextmanager
    def _own_index(self) -> Iterator[str]:
        """The name of an index that nobody else uses: sandboxes share a store, and one killed midway leaves a lock."""
        name = f"index-{uuid.uuid4().hex}"
        try:
            yield name
        finally:
            for left in (name, f"{name}.lock"):
                (self.git_dir / left).unlink(missing_ok=True)

    def put_blob(self, content: bytes) -> str:
        """Store bytes; returns git's id."""
        return (
            self.git("hash-object", "-w", "-t", "blob", "--no-filters", "--stdin", stdin=content)
            .decode()
            .strip()
        )

    def get_blob(self, sha: str) -> bytes:
        """The bytes of a blob."""
        return self.git("cat-file", "blob", sha)

    def get_blobs(self, shas: Sequence[str]) -> list[bytes]:
        """The bytes of many blobs, in one call to git."""
        return list(self.each_blob(shas))

    def each_blob(self, shas: Sequence[str]) -> Iterator[bytes]:
        """The bytes of many blobs, in one call to git, as it finds them.

        Raises:
            GitFailed: one of them is not there.
        """
        # not a pipe: it could fill up while git waits for its output to be read; nor a file on a disk that may be full
        with open(os.memfd_create("names"), "w+b") as names:  # noqa: PTH123  # a descriptor, not a path
            names.write("".join(f"{sha}\n" for sha in shas).encode())
            names.seek(0)
            command = for_store({"GIT_DIR": str(self.git_dir)})
            with subprocess.Popen(
                command.argv("cat-file", "--batch", "--buffer"),
                env=command.environment,
                stdin=names,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=1 << 20,
                pipesize=1 << 20,
            ) as process:
                assert process.stdout is not None
                for sha in shas:
                    header = process.stdout.readline().split()
                    if len(header) != 3:
                        raise GitFailed(f"object {sha} is missing from the repository")
                    blob = process.stdout.read(int(header[2]))
                    if process.stdout.read(1) != b"\n":
                        raise GitFailed("git ended in the middle of an object")
                    yield blob

    def write_tree(self, entries: Iterable[TreeEntry]) -> str:
        """Store a tree made of these files; returns its id."""
        lines = b"".join(b"%06o %s 0\t%s\0" % (e.mode, e.sha.encode(), os.fsencode(e.path)) for e in entries)
        with self._own_index() as index:
            self.git("update-index", "-z", "--index-info", stdin=lines, index=index)
            return self.git("write-tree", index=index).decode().strip()

    def apply(self, tree: str, patch: bytes, *options: str) -> str:
        """The tree after a patch, which is only data to git; `options` of `git apply`. Raises GitFailed."""
        with self._own_index() as index:
            self.git("read-tree", tree, index=index)
            self.git("apply", "--cached", "--whitespace=nowarn", *options, "-", stdin=patch, index=index)
            return self.git("write-tree", index=index).decode().strip()

    def list_tree(self, tree: str) -> tuple[TreeEntry, ...]:
        """Every file of a tree or commit, by its id; submodule entries are left out."""
        return self._listed(tree)

    def _list_tree(self, tree: str) -> tuple[TreeEntry, ...]:
        out = self.git("ls-tree", "-r", "-z", "--full-tree", tree)
        entries = []
        for line in out.split(b"\0")[:-1]:
            meta, path = line.split(b"\t", 1)
            mode, kind, sha = meta.split()
            if kind == b"blob":
                entries.append(TreeEntry(os.fsdecode(path), int(mode, 8), sha.decode()))
        return tuple(entries)

    def tree_of_folder(self, folder: Path, paths: Sequence[str]) -> str:
        """Store the files at `paths` (relative to `folder`) byte for byte; returns the tree's id."""
        names = b"".join(os.fsencode(path) + b"\0" for path in paths)
        with self._own_index() as index:
            self.git("update-index", "--add", "-z", "--stdin", stdin=names, index=index, work_tree=folder)
            return self.git("write-tree", index=index).decode().strip()

    def diff(self, old: str, new: str) -> bytes:
        """The patch from one tree to another, with binary files, as `git apply` takes it."""
        text = self.git("diff-tree", "-p", "-r", *DIFF_OPTIONS, old, new)
        return _HEADER.sub(_unambiguous, text)  # a line of a file's content begins with another character

    def changed_paths(self, old: str, new: str) -> list[tuple[str, str]]:
        """(status letter, path) of every file that differs between two trees."""
        out = self.git("diff-tree", "-r", "-z", "--name-status", "--no-renames", old, new).split(b"\0")
        return [(out[i].decode(), os.fsdecode(out[i + 1])) for i in range(0, len(out) - 1, 2)]

    def ignored(self, paths: Sequence[str], ignore_files: Path) -> set[str]:
        """Which of these paths the `.gitignore` files below `ignore_files` (or our list of junk) leave out."""
        if not paths:
            return set()
        # "./" keeps a name that begins with ":" from being taken for a pattern
        names = b"".join(b"./" + os.fsencode(path) + b"\0" for path in paths)
        with self._own_index() as index:
            out = self.git(
                "check-ignore",
                "--no-index",
                "-z",
                "--stdin",
                stdin=names,
                index=index,
                work_tree=ignore_files,
                ok=(0, 1),  # 1: none of them is ignored
            )
        return {os.fsdecode(name.removeprefix(b"./")) for name in out.split(b"\0")[:-1]}


def copy_store(source: Path, target: Path) -> TreeStore:
    """A store at `target` with the trees of the one at `source`, which is only read and may be in use: what is just being
    written there has no name yet and belongs to no tree.

    Raises:
        OSError, shutil.Error: it cannot be read or written.
    """
    unfinished = shutil.ignore_patterns("index-*", "tmp_*", "*.lock", f"{UNFINISHED}*")
    shutil.copytree(source, target, symlinks=True, ignore=unfinished)
    return TreeStore(target)
