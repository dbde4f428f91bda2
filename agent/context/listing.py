"""Reads a repository's files without ever following a link, and says which do not belong into a prompt and why."""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from m3agent.agent.repository import Repository

MAX_FILE_BYTES = 1024 * 1024
"""Larger files are not packed: generated or data, nearly without exception."""

_LONG_LINE = 2000
_SMALL = 8192


class Reason(StrEnum):
    """Why a file is not in the context."""

    OVER_BUDGET = "over budget"
    BINARY = "binary"
    CREDENTIALS = "credentials"
    IMAGE = "image"
    LARGE = "larger than 1 MiB"
    LFS = "Git LFS pointer"
    LINK = "symbolic link"
    LOCK = "lock file"
    MINIFIED = "minified"
    UNREADABLE = "unreadable"
    VENDORED = "vendored"


Entry = tuple[str, bytes | Reason]
"""A file's path with its bytes, or with the reason why it is left out."""

_VENDORED = frozenset(
    {
        "node_modules",
        "bower_components",
        "vendor",
        "_vendor",
        "third_party",
        "third-party",
        "thirdparty",
        "site-packages",
        ".venv",
        "venv",
        ".tox",
        ".nox",
        "__pycache__",
    }
)
_LOCKS = frozenset(
    {
        "package-lock.json",
        "npm-shrinkwrap.json",
        "pnpm-lock.yaml",
        "go.sum",
        "bun.lockb",
        "packages.lock.json",
        "gradle.lockfile",
        "package.resolved",
    }
)
_IMAGES = frozenset(
    {
        ".ai",
        ".avif",
        ".bmp",
        ".eps",
        ".gif",
        ".heic",
        ".ico",
        ".icns",
        ".jpeg",
        ".jpg",
        ".png",
        ".psd",
        ".svg",
        ".tif",
        ".tiff",
        ".webp",
    }
)
_CREDENTIAL_SUFFIXES = frozenset(
    {
        ".jks",
        ".kdbx",
        ".key",
        ".keystore",
        ".p12",
        ".p8",
        ".pem",
        ".pfx",
        ".pkcs12",
        ".ppk",
        ".tfstate",
    }
)
_CREDENTIALS = re.compile(
    r".*\.env|\.env(?:rc|\..+)|id_(?:rsa|dsa|ecdsa|ed25519)(?!.*\.pub$).*|[._]netrc|\.pgpass|\.my\.cnf|\.npmrc|\.pypirc"
    r"|\.htpasswd|\.git-credentials|\.dockercfg|\.dockerconfigjson|kubeconfig"
    r"|credentials(?:\.json|\.ya?ml|\.toml|\.ini)?|secrets?\.(?:json|ya?ml|toml|ini)"
    r"|service[-_]account.*\.json|client_secret.*\.json"
)
# Templates of such files hold no secrets and say which settings there are.
_CREDENTIAL_TEMPLATE = re.compile(r".*(?:dist|example|sample|template).*")


def reason_by_name(path: str) -> Reason | None:
    """Why a file of this path is left out whatever it holds, or None."""
    *folders, name = path.lower().split("/")
    suffix = PurePosixPath(name).suffix
    if suffix in _CREDENTIAL_SUFFIXES or (
        _CREDENTIALS.fullmatch(name) and not _CREDENTIAL_TEMPLATE.fullmatch(name)
    ):
        return Reason.CREDENTIALS
    if not _VENDORED.isdisjoint(folders):
        return Reason.VENDORED
    if suffix == ".lock" or name in _LOCKS:
        return Reason.LOCK
    if suffix in _IMAGES:
        return Reason.IMAGE
    if name.endswith((".min.js", ".min.css", ".map")):
        return Reason.MINIFIED
    return None


def reason_by_content(data: bytes) -> Reason | None:
    """Why a file of these bytes is left out, or None."""
    if len(data) > MAX_FILE_BYTES:
        return Reason.LARGE
    if b"\0" in data:
        return Reason.BINARY
    if data[:11] == b"-----BEGIN " and b"PRIVATE KEY" in data[:64]:
        return Reason.CREDENTIALS
    if data.startswith(b"version https://git-lfs.github.com/spec/"):
        return Reason.LFS
    if len(data) > _SMALL:
        in_long_lines = sum(len(line) for line in data.splitlines() if len(line) > _LONG_LINE)
        if in_long_lines * 2 > len(data):
            return Reason.MINIFIED
    return None


def sift(files: Iterable[tuple[str, bytes]]) -> Iterator[Entry]:
    """Each of `files` with its bytes, or with the reason why it is left out."""
    for path, data in files:
        yield path, reason_by_name(path) or reason_by_content(data) or data


def read_repository(repository: Repository) -> Iterator[Entry]:
    """The repository's files: of the work tree, or of HEAD when it is bare."""
    if repository.root is None:
        yield from _read_commit(repository)
        return
    with _WorkTree(repository.root) as tree:
        for path in repository.list_files():
            found = reason_by_name(path) or tree.read(path)
            yield path, found if isinstance(found, Reason) else reason_by_content(found) or found


def _read_commit(repository: Repository) -> Iterator[Entry]:
    listed = set(repository.list_files())
    wanted: list[tuple[str, str]] = []
    for entry in repository.tree():
        if entry.path not in listed:
            continue
        reason = reason_by_name(entry.path) or (Reason.LARGE if entry.size > MAX_FILE_BYTES else None)
        if reason:
            yield entry.path, reason
        else:
            wanted.append((entry.path, entry.oid))
    out = repository.git("cat-file", "--batch", stdin="".join(f"{oid}\n" for _, oid in wanted).encode())
    position = 0
    for path, _ in wanted:
        # "<oid> blob <size>\n", the bytes, "\n"
        start = out.index(b"\n", position) + 1
        header = out[position:start].split()
        if header[1] != b"blob":  # "<oid> missing": a partial clone
            yield path, Reason.UNREADABLE
            position = start
            continue
        end = start + int(header[2])
        data, position = out[start:end], end + 1
        yield path, reason_by_content(data) or data


class _WorkTree:
    """Opens files below a root one folder at a time, each with O_NOFOLLOW, so that no link can lead outside.

    The folders of the last path stay open: neighbours in a sorted listing cost one `open` each.
    """

    def __init__(self, root: Path) -> None:
        self._folders = [(".", os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(0)

    def read(self, path: str) -> bytes | Reason:
        *folders, name = path.split("/")
        if not {"", ".", ".."}.isdisjoint((*folders, name)):
            return Reason.UNREADABLE
        try:
            return self._read(self._enter(folders), name)
        except OSError:  # a link where a folder was expected, gone since it was listed, or not ours to read
            return Reason.UNREADABLE

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

    def _read(self, folder: int, name: str) -> bytes | Reason:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            return Reason.LINK
        # O_NONBLOCK: were it a pipe by now, opening must not wait for a writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(name, flags, dir_fd=folder), "rb") as file:  # noqa: PTH123
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return Reason.UNREADABLE
            return Reason.LARGE if status.st_size > MAX_FILE_BYTES else file.read(MAX_FILE_BYTES + 1)
