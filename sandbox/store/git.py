"""Store trees in git without interpreting what a repository contains.

All calls use `git_command.for_store`: no system or user configuration, no hooks, no fsmonitor, no filters, no
attributes from the tree. With a hostile `.git`, a plain `git status` ran three payloads and `git diff` four.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import IO

from m3agent.sandbox.errors import DiskFull, SandboxError
from m3agent.sandbox.store.anonymous_file import anonymous_file
from m3agent.sandbox.store.git_command import for_store, subcommand

RAW_ATTRIBUTES = "* -text -eol -filter -ident -working-tree-encoding -export-ignore -export-subst\n"
"""Overrides every attribute of the tree: git stores and returns the bytes of a file unchanged."""

# Files that tests and tools leave behind. A patch contains them only if the repository already tracks them.
JUNK = (
    *("__pycache__/", "*.py[co]", ".pytest_cache/", ".mypy_cache/", ".ruff_cache/", ".hypothesis/"),
    *(".coverage", ".coverage.*", ".tox/", ".nox/", ".eggs/", "*.egg-info/", ".venv/", "node_modules/"),
)
_FULL = ("No space left", "Disk quota", "Out of diskspace")
"""Messages for a full disk, from the operating system and from git."""
SKIP_FOLDERS = (".git", *(name.rstrip("/") for name in JUNK if name.endswith("/") and "*" not in name))
"""Folders that a scan of the work tree does not enter."""


DIFF_OPTIONS = ("--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames")
"""With these options, a patch is complete and depends only on its two trees."""

_HEADER = re.compile(rb"^diff --git (a/.+)$", re.MULTILINE)

SHORT_BLOB, KEPT_BLOBS = 1 << 15, 200
"""Most bytes of a blob that is kept in memory, and the number of blobs that are kept."""
SUBMODULES = "submodules"
"""A file of a store, with the paths of the repository's submodules."""
UNFINISHED = "unfinished-"
"""The prefix of names of unfinished entries in a store."""


def _unambiguous(header: re.Match[bytes]) -> bytes:
    """Return the header line of a file in a patch; quote its names if they have spaces beside slashes.

    `git diff` does not quote such names, so their ends are ambiguous. `git apply` refuses them if no other
    line repeats the names: for empty or binary files, and for changes of mode.
    """
    names = header[1]
    old = names[: len(names) // 2]  # both names have the same length; one space separates them
    if not any(part != part.strip(b" ") for part in old.split(b"/")):
        return header[0]
    return b'diff --git "%s" "%s"' % (old, names[len(old) + 1 :])


class GitFailed(SandboxError):
    """A git command failed that must succeed; the text holds the last line of git's output."""


def run_git(
    *args: str,
    cwd: Path | None = None,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
    ok: Sequence[int] = (0,),
) -> subprocess.CompletedProcess[bytes]:
    """Run git under the policy `for_store` and return its output as bytes.

    Raises:
        DiskFull: The disk is full.
        GitFailed: The exit status is not in `ok`, the folder is gone, or git is not installed.
    """
    try:
        done = for_store(env).run(*args, cwd=cwd, stdin=stdin)
    except FileNotFoundError:
        if cwd is not None and not cwd.is_dir():
            raise GitFailed(f"git {subcommand(args)} failed: the folder {cwd} is gone") from None
        raise GitFailed("git is not installed: install it and try again") from None
    if done.returncode not in ok:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        if any(words in line for words in _FULL for line in lines):
            raise DiskFull(
                "the disk is full: git could not write the session's objects; make room and try again"
            )
        raise GitFailed(f"git {subcommand(args)} failed: {lines[-1]}")
    return done


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError into DiskFull, around code that writes m3agent's own file at `path` on the host."""
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
    """A bare repository of m3agent's own that holds the trees of one session.

    Args:
        git_dir: The folder of the repository; created if it does not exist.
        alternates: An object folder to read from as well, so that the user's objects need not be copied.
        object_format: The kind of ids, "sha1" or "sha256".
        only_read: The store exists, and another object or process may be using it: write nothing.
    """

    def __init__(
        self,
        git_dir: Path,
        alternates: Path | None = None,
        object_format: str = "sha1",
        *,
        only_read: bool = False,
    ) -> None:
        self.git_dir = git_dir
        # A session asks for the same few trees and files again and again. What an id names never changes.
        self._listed = lru_cache(maxsize=4)(self._list_tree)
        self._diff = lru_cache(maxsize=2)(self._find_diff)
        self._changed = lru_cache(maxsize=16)(self._find_changed)
        self._blobs: dict[str, bytes] = {}
        self.left_out = set[str]()
        """Paths of files that no sandbox got, because they are too large."""
        if only_read:
            return
        if not (git_dir / "HEAD").exists():
            kind = f"--object-format={object_format}"
            run_git("init", "--quiet", "--bare", "--template=", kind, str(git_dir))
        with writing(git_dir):
            (git_dir / "info").mkdir(exist_ok=True)
            (git_dir / "info" / "attributes").write_text(RAW_ATTRIBUTES, "utf-8")
            (git_dir / "info" / "exclude").write_text("\n".join(JUNK) + "\n", "utf-8")
            if alternates is not None:
                (git_dir / "objects" / "info").mkdir(exist_ok=True)
                (git_dir / "objects" / "info" / "alternates").write_bytes(os.fsencode(alternates) + b"\n")

    def sweep(self) -> None:
        """Remove unfinished files that a killed process left. Nobody else may use the store meanwhile."""
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
        """Run git on this store and return its standard output.

        Raises:
            DiskFull, GitFailed: As for `run_git`.
        """
        git_dir = self.git_dir.absolute()  # git may run in another folder
        env = {"GIT_DIR": str(git_dir)}
        if index is not None:
            env["GIT_INDEX_FILE"] = str(git_dir / index)
        if work_tree is not None:
            env["GIT_WORK_TREE"] = str(work_tree.absolute())
        return run_git(*args, cwd=work_tree or self.git_dir, stdin=stdin, env=env, ok=ok).stdout

    @contextlib.contextmanager
    def _own_index(self) -> Iterator[str]:
        """Yield the name of a private index.

        Sandboxes share a store, and a killed sandbox leaves a lock on its index.
        """
        name = f"index-{uuid.uuid4().hex}"
        try:
            yield name
        finally:
            for left in (name, f"{name}.lock"):
                (self.git_dir / left).unlink(missing_ok=True)

    def put_blob(self, content: bytes) -> str:
        """Store bytes and return the blob's id."""
        return (
            self.git("hash-object", "-w", "-t", "blob", "--no-filters", "--stdin", stdin=content)
            .decode()
            .strip()
        )

    def put_blobs(self, contents: Sequence[bytes]) -> list[str]:
        """Store the bytes of many blobs, in one call to git, and return their ids."""
        if not contents:
            return []
        with (
            writing(self.git_dir),
            tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=self.git_dir.absolute()) as folder,
        ):
            for number, content in enumerate(contents):
                (Path(folder) / str(number)).write_bytes(content)
            names = "".join(f"{folder}/{number}\n" for number in range(len(contents)))
            out = self.git(
                "hash-object", "-w", "-t", "blob", "--no-filters", "--stdin-paths", stdin=os.fsencode(names)
            )
        return out.decode().split()

    def get_blob(self, sha: str) -> bytes:
        """Return the bytes of a blob; short ones, which are asked for again and again, are kept in memory."""
        content = self._blobs.get(sha)
        if content is None:
            content = self.git("cat-file", "blob", sha)
            if len(content) <= SHORT_BLOB:
                if len(self._blobs) >= KEPT_BLOBS:
                    self._blobs.clear()
                self._blobs[sha] = content
        return content

    def get_blobs(self, shas: Sequence[str]) -> list[bytes]:
        """Return the bytes of many blobs, in one call to git."""
        return list(self.each_blob(shas))

    def each_blob(self, shas: Sequence[str]) -> Iterator[bytes]:
        """Yield the bytes of many blobs one by one, in one call to git.

        Raises:
            GitFailed: A blob does not exist, or git ended early.
        """
        for blob in self.each_blob_up_to(shas, sys.maxsize):
            assert blob is not None
            yield blob

    def each_blob_up_to(self, shas: Sequence[str], most: int) -> Iterator[bytes | None]:
        """Yield the bytes of many blobs one by one; None for a blob of more than `most` bytes, which is not read.

        Raises:
            GitFailed: A blob does not exist, or git ended early.
        """
        while shas:
            rest: Sequence[str] = ()
            with self._contents(shas) as output:
                for number, sha in enumerate(shas, 1):
                    header = output.readline().split()
                    if len(header) != 3:
                        raise GitFailed(f"object {sha} is missing from the repository")
                    if int(header[2]) > most:
                        rest = shas[number:]  # for a new git: this one would first write what nobody reads
                        yield None
                        break
                    blob = output.read(int(header[2]))
                    if output.read(1) != b"\n":
                        raise GitFailed("git ended in the middle of an object")
                    yield blob
            shas = rest

    @contextlib.contextmanager
    def _contents(self, shas: Iterable[str]) -> Iterator[IO[bytes]]:
        """Yield the output of a git that writes each blob after a line with its size."""
        # a pipe could fill up while git waits for us to read its output; a disk could be full
        with open(anonymous_file("names"), "w+b") as names:  # noqa: PTH123  # a descriptor, not a path
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
                yield process.stdout

    def sizes(self, shas: Sequence[str]) -> list[int]:
        """Return the sizes of blobs in bytes."""
        names = "".join(f"{sha}\n" for sha in shas).encode()
        return [
            int(size) for size in self.git("cat-file", "--batch-check=%(objectsize)", stdin=names).split()
        ]

    def write_tree(self, entries: Iterable[TreeEntry]) -> str:
        """Store a tree of these files and return its id."""
        lines = b"".join(b"%06o %s 0\t%s\0" % (e.mode, e.sha.encode(), os.fsencode(e.path)) for e in entries)
        with self._own_index() as index:
            self.git("update-index", "-z", "--index-info", stdin=lines, index=index)
            return self.git("write-tree", index=index).decode().strip()

    def apply(self, tree: str, patch: bytes, *options: str) -> str:
        """Apply a patch to a tree and return the id of the new tree. Git treats the patch as plain data.

        Raises:
            GitFailed: The patch does not apply.
        """
        with self._own_index() as index:
            self.git("read-tree", tree, index=index)
            self.git("apply", "--cached", "--whitespace=nowarn", *options, "-", stdin=patch, index=index)
            return self.git("write-tree", index=index).decode().strip()

    def list_tree(self, tree: str) -> tuple[TreeEntry, ...]:
        """Return every file of a tree or commit, given its id; submodules are left out."""
        return self._listed(tree)

    def entries_at(self, tree: str, paths: Sequence[str]) -> dict[str, TreeEntry]:
        """Return the files of a tree that are at these paths, by path. Large trees are not read whole."""
        return {entry.path: entry for entry in self._list_tree(tree, *paths) if entry.path in paths}

    def _list_tree(self, tree: str, *paths: str) -> tuple[TreeEntry, ...]:
        out = self.git(
            "ls-tree", "-r", "-z", "--full-tree", tree, "--", *(f":(literal){path}" for path in paths)
        )
        entries = []
        for line in out.split(b"\0")[:-1]:
            meta, path = line.split(b"\t", 1)
            mode, kind, sha = meta.split()
            if kind == b"blob":
                entries.append(TreeEntry(os.fsdecode(path), int(mode, 8), sha.decode()))
        return tuple(entries)

    def note_submodules(self, paths: Iterable[str]) -> None:
        """Remember the paths of the repository's submodules: no tree that is made here has them."""
        with writing(self.git_dir):
            (self.git_dir / SUBMODULES).write_bytes(b"".join(os.fsencode(path) + b"\0" for path in paths))

    def noted_submodules(self) -> frozenset[str]:
        """Return the paths that `note_submodules` got."""
        try:
            noted = (self.git_dir / SUBMODULES).read_bytes()
        except FileNotFoundError:
            return frozenset()
        return frozenset(map(os.fsdecode, noted.split(b"\0")[:-1]))

    def submodules(self, tree: str) -> dict[str, str]:
        """Return the commits of the submodules of a tree or commit, by path."""
        lines = self.git("ls-tree", "-r", "-z", "--full-tree", tree).split(b"\0")
        split = (line.split(b"\t", 1) for line in lines if line.startswith(b"160000"))
        return {os.fsdecode(path): meta.split()[2].decode() for meta, path in split}

    def borrow(self, objects: Path) -> None:
        """Read the objects in this folder as well."""
        with writing(self.git_dir), (self.git_dir / "objects" / "info" / "alternates").open("ab") as borrowed:
            borrowed.write(os.fsencode(objects) + b"\n")

    def with_submodules(self, tree: str) -> str:
        """Return a tree that has the files of its submodules in their places, where the store has their commits."""
        entries = list[TreeEntry]()
        for path, commit in self.submodules(tree).items():
            if self.git("cat-file", "-t", commit, ok=(0, 128)) == b"commit\n":
                inner = self.list_tree(self.with_submodules(commit))
                entries += (replace(entry, path=f"{path}/{entry.path}") for entry in inner)
        return self.write_tree([*self.list_tree(tree), *entries]) if entries else tree

    def tree_of_folder(self, folder: Path, paths: Sequence[str]) -> str:
        """Store the files at `paths` (relative to `folder`) byte for byte, and return the tree's id."""
        names = b"".join(os.fsencode(path) + b"\0" for path in paths)
        with self._own_index() as index:
            self.git("update-index", "--add", "-z", "--stdin", stdin=names, index=index, work_tree=folder)
            return self.git("write-tree", index=index).decode().strip()

    def diff(self, old: str, new: str) -> bytes:
        """Return the patch from one tree to another, with binary files, in the format of `git apply`."""
        return self._diff(old, new)

    def _find_diff(self, old: str, new: str) -> bytes:
        text = self.git("diff-tree", "-p", "-r", *DIFF_OPTIONS, old, new)
        return _HEADER.sub(_unambiguous, text)  # content lines begin with another character than `d`

    def changed_paths(self, old: str, new: str) -> list[tuple[str, str]]:
        """Return (status letter, path) of every file that differs between two trees."""
        return list(self._changed(old, new))

    def _find_changed(self, old: str, new: str) -> list[tuple[str, str]]:
        out = self.git("diff-tree", "-r", "-z", "--name-status", "--no-renames", old, new).split(b"\0")
        return [(out[i].decode(), os.fsdecode(out[i + 1])) for i in range(0, len(out) - 1, 2)]

    def ignored(self, paths: Sequence[str], ignore_files: Path) -> set[str]:
        """Return those of `paths` that are ignored by the list `JUNK` or by `.gitignore` files."""
        if not paths:
            return set()
        # without "./", git would read a name that begins with ":" as a pattern
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


def blob_id(content: bytes, digits: int) -> str:
    """Return the id that git gives a blob, in a repository whose ids have this many digits."""
    digest = hashlib.sha1(usedforsecurity=False) if digits == 40 else hashlib.sha256()
    digest.update(b"blob %d\0" % len(content))
    digest.update(content)
    return digest.hexdigest()


def copy_store(source: Path, target: Path) -> TreeStore:
    """Copy a store and return the copy.

    The source is only read and may be in use. Files that a process is still writing there are left out: they
    have no final name yet and belong to no tree.

    Raises:
        OSError, shutil.Error: The source cannot be read, or the target cannot be written.
    """
    unfinished = shutil.ignore_patterns("index-*", "tmp_*", "*.lock", f"{UNFINISHED}*")
    shutil.copytree(source, target, symlinks=True, ignore=unfinished)
    return TreeStore(target)
