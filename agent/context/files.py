"""List a repository's files with git, and read them without following symbolic links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from m3agent.agent.context.rules import (
    LARGE,
    LINK,
    MAX_FILE_BYTES,
    SUBMODULE,
    UNREADABLE,
    Reason,
    reason_by_name,
)
from m3agent.agent.repo.git_spawn import GitProcess
from m3agent.agent.repo.host_git import HostGit
from m3agent.util.plain_file import open_plain
from m3agent.util.record import record

LIST = (
    *("ls-files", "-z", "-t", "--stage", "--modified", "--others", "--exclude-standard", "--full-name", ":/"),
)
"""git command for `parse_listing`: the index, changed files, and untracked files that are not ignored."""


@record
class FileListing:
    """The files to read."""

    settled: dict[str, bool]
    """Maps each path to True, or to False if the file differs from the index or is not in it. Sorted by the paths' bytes."""
    left_out: list[tuple[str, Reason]]
    """Paths that are not files of this repository, with the reason."""


def parse_listing(output: bytes) -> FileListing:
    """Parse git's output for `LIST`. Files that are not checked out (sparse checkouts) are not included."""
    found: dict[bytes, bool] = {}
    left_out: dict[bytes, Reason] = {}
    for entry in output.split(b"\0"):
        tag = entry[:1]
        if tag == b"?":
            path = entry[2:]
            if path.endswith(b"/"):
                left_out[path] = SUBMODULE
            else:
                found[path] = False
        elif tag in (b"H", b"C", b"M"):  # unchanged, changed, unmerged; "S" is not checked out
            path = entry[entry.index(b"\t") + 1 :]
            if path.startswith(b".git/") or b"/.git/" in path:  # in an index that git did not write
                left_out[path] = UNREADABLE
            elif entry[2:8] == b"160000":
                left_out[path] = SUBMODULE
            else:
                found[path] = tag == b"H"
    decoded = [(os.fsdecode(path), found[path]) for path in sorted(found)]
    return FileListing(dict(decoded), [(os.fsdecode(path), reason) for path, reason in left_out.items()])


def git_output(where: HostGit, *args: str) -> bytes:
    """Return the output of a git command.

    Raises:
        GitCommandFailed: The command failed; the message contains git's error.
        EnvironmentFault: There is no git.
    """
    try:
        output = GitProcess(where, *args).output()
    except OSError:
        output = None
    if output is None:
        from m3agent.agent.repo.repository import git

        output = git(where, args)
    return output


def list_matching(where: HostGit, *patterns: str) -> set[str]:
    """Return the repository's files that match; `patterns` are git options that name ignored files.

    The patterns have the syntax of .gitignore: `--exclude=PATTERN`, or `--exclude-per-directory=FILE`.
    """
    out = git_output(where, "ls-files", "-z", "--cached", "--others", "--ignored", *patterns)
    return {os.fsdecode(path) for path in out.split(b"\0") if path}


def list_generated(where: HostGit) -> set[str]:
    """Return the files that .gitattributes marks as generated or vendored, as GitHub's linguist reads it."""
    attributes = (f"linguist-{kind}{value}" for kind in ("generated", "vendored") for value in ("", "=true"))
    out = git_output(where, "ls-files", "-z", *(f":(attr:{attribute})" for attribute in attributes))
    return {os.fsdecode(path) for path in out.split(b"\0") if path}


class WorkTree:
    """Read files below a root, opening each folder with O_NOFOLLOW so that no link can lead outside.

    The folders of the last path stay open, so each further file of a folder costs only one `open`.
    """

    def __init__(self, root: str) -> None:
        self._folders = [(".", os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))]

    def __enter__(self) -> WorkTree:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave(0)

    def read(self, path: str, first: int | None = None) -> bytes | Reason | None:
        """Return the file's bytes or the reason for leaving it out; None if the file does not exist.

        If `first` is given, a file of any size is read, up to this many bytes.
        """
        *folders, name = path.split("/")
        if not {"", ".", ".."}.isdisjoint((*folders, name)):
            return UNREADABLE
        try:
            return _read(self._enter(folders), name, first)
        except FileNotFoundError:
            return None
        except OSError:  # a link in place of a folder, or no permission
            return UNREADABLE

    def _enter(self, folders: list[str]) -> int:
        shared = 0
        while shared < min(len(folders), len(self._folders) - 1) and (
            folders[shared] == self._folders[shared + 1][0]
        ):
            shared += 1
        self._leave(shared + 1)
        for folder in folders[shared:]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._folders.append((folder, os.open(folder, flags, dir_fd=self._folders[-1][1])))
        return self._folders[-1][1]

    def _leave(self, keep: int) -> None:
        for _, descriptor in self._folders[keep:]:
            os.close(descriptor)
        del self._folders[keep:]


def _read(folder: int, name: str, first: int | None) -> bytes | Reason:
    try:
        file, size = open_plain(name, os.O_NOFOLLOW, folder=folder)
    except OSError:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return LINK
        raise
    try:
        if first is not None:
            return _read_first(file, first)
        if size > MAX_FILE_BYTES:
            return LARGE
        data = os.read(file, size + 1)
        if len(data) != size:  # the size changes during reading: read to the end
            while len(data) <= MAX_FILE_BYTES and (more := os.read(file, MAX_FILE_BYTES)):
                data += more
        return LARGE if len(data) > MAX_FILE_BYTES else data
    finally:
        os.close(file)


def _read_first(file: int, most: int) -> bytes:
    data = b""
    while len(data) < most and (more := os.read(file, most - len(data))):
        data += more
    return data


def read_commit(where: HostGit, head: str) -> Iterator[tuple[str, bytes | Reason]]:
    """Yield each path of the commit with its bytes, or with the reason for leaving it out.

    The paths with bytes come last.
    """
    from m3agent.agent.repo.repository import git  # slow to import

    wanted: list[tuple[str, str]] = []
    for line in git(where, ["ls-tree", "-r", "-l", "-z", "--full-tree", head]).split(b"\0"):
        if not line:
            continue
        meta, name = line.split(b"\t", 1)
        mode, kind, oid, size = meta.decode().split()
        path = os.fsdecode(name)
        reason = LINK if mode == "120000" else SUBMODULE if kind == "commit" else reason_by_name(path)
        if reason is None and size.isdigit() and int(size) > MAX_FILE_BYTES:  # BAD: the object is missing
            reason = LARGE
        if reason:
            yield path, reason
        else:
            wanted.append((path, oid))
    out = git(where, ["cat-file", "--batch"], stdin="".join(f"{oid}\n" for _, oid in wanted).encode())
    position = 0
    for path, _ in wanted:
        # format: "<oid> blob <size>\n", the bytes, "\n"
        start = out.index(b"\n", position) + 1
        header = out[position:start].split()
        if header[1] != b"blob":  # "<oid> missing": a partial clone
            yield path, UNREADABLE
            position = start
            continue
        end = start + int(header[2])
        data, position = out[start:end], end + 1
        yield path, data


def read_first(where: HostGit, head: str, path: str, most: int) -> bytes | None:
    """Return the first bytes of a file of the commit; None if git does not have it."""
    from m3agent.agent.repo.repository import GitCommandFailed, git  # slow to import

    try:
        return git(where, ["cat-file", "blob", f"{head}:{path}"])[:most]
    except GitCommandFailed:
        return None
