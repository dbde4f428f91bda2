"""Unpack a bare repository from an untrusted tar.

Only objects and refs are taken: nothing that git could execute or follow to another place.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from m3agent.evals.data.instance import DataError
from m3agent.sandbox.store.git import run_git

MOST_BYTES = 16 << 30
"""Limit for the unpacked files of one archive, in bytes: several times the largest benchmark repository."""
MOST_MEMBERS = 5_000_000
"""Limit for the files and folders of one archive."""

TAKEN = ("objects", "refs", "packed-refs", "shallow")
"""Entries of a repository that are copied: they make up the history.

`config` and `hooks` are left out because they name programs. `HEAD` is left out because it only names a ref.
"""
BORROWED = ("alternates", "http-alternates")
"""Files in `objects/info` that make git read objects from other places; they are deleted."""


def unpack(archive: Path, target: Path) -> None:
    """Create a bare repository from the one inside a tar.

    Args:
        archive: The tar file, compressed or not. Its content is untrusted.

    Raises:
        DataError: The tar cannot be read; it contains no bare repository; or a member is a link, is a device
            or points outside the target.
        SandboxError: git fails.
        OSError: The disk fails.
    """
    raw = target.with_name(f"{target.name}-raw")
    raw.mkdir(parents=True)
    try:
        _extract(archive, raw)
        bare = _bare(raw)
        if bare is None:
            raise DataError(f"{archive} holds no bare repository (a folder with objects and refs)")
        run_git("init", "--quiet", "--bare", "--template=", f"--object-format={_hash(bare)}", str(target))
        for name in TAKEN:
            if (bare / name).exists():
                if (target / name).is_dir():
                    shutil.rmtree(target / name)
                (bare / name).rename(target / name)
        for name in BORROWED:
            (target / "objects" / "info" / name).unlink(missing_ok=True)
    finally:
        shutil.rmtree(raw, ignore_errors=True)


def _extract(archive: Path, raw: Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            extract_files(tar, raw, MOST_BYTES)
    except (tarfile.TarError, EOFError, zlib.error, UnicodeError) as error:
        raise DataError(f"{archive} cannot be read as a tar ({error})") from None
    except ValueError as error:
        raise DataError(f"{archive}: {error}: refused") from None


def extract_files(tar: tarfile.TarFile, folder: Path, most_bytes: int, *, links: bool = False) -> None:
    """Unpack the files and folders of an untrusted tar into an empty folder. Of a file's mode, only `executable` is kept.

    `TarFile.extractall` has no filters in Python 3.11.3 and older, which Debian 12 has.

    Args:
        links: Whether the tar may have links. Symbolic links are made last, so nothing is written through one.

    Raises:
        ValueError: A member is a device, is a link that may not be, or points outside the folder; two have one name; or
            all are too large.
        tarfile.TarError: The tar is damaged.
        OSError: A file cannot be written.
    """
    left = most_bytes
    targets: dict[Path, str] = {}
    for number, member in enumerate(tar):
        if number == MOST_MEMBERS:
            raise ValueError(f"it has more than {MOST_MEMBERS} members")
        path = folder / _plain_path(member, links=links)
        if member.issym():
            targets[path] = member.linkname
            continue
        # a hard link has size 0, and its file's content
        left -= member.size if member.size > left else _place(tar, member, path)
        if left < 0:
            raise ValueError(f"it unpacks to more than {most_bytes >> 30} GiB")
    for link in targets:
        link.parent.mkdir(parents=True, exist_ok=True)
    for link, target in targets.items():
        if os.path.lexists(link):
            raise ValueError(f"its member {link.name!r} is there twice")
        link.symlink_to(target)


def _plain_path(member: tarfile.TarInfo, *, links: bool) -> PurePosixPath:
    """Return a member's path, after a check that the member may be unpacked."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\0" in member.name:
        raise ValueError(f"its member {member.name!r} is outside the archive")
    if not (member.isreg() or member.isdir() or (links and (member.issym() or member.islnk()))):
        raise ValueError(f"its member {member.name!r} is a link or a device")
    return path


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> int:
    """Write one member. Return its bytes. Owner and time are ignored."""
    (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
    if member.isdir():
        return 0
    try:
        content = tar.extractfile(member)  # of a hard link: that of its file
    except KeyError:
        content = None
    if content is None:
        raise tarfile.ReadError(f"the file of {member.name!r} is missing")
    with path.open("wb") as file:
        shutil.copyfileobj(content, file)
        size = file.tell()
    if member.mode & 0o100:
        path.chmod(path.stat().st_mode | 0o111)
    return size


def _bare(folder: Path) -> Path | None:
    """Return the bare repository in a folder: the folder itself or one of its direct subfolders.

    Copies often lack `config`, and `refs` if all refs are packed.
    """
    candidates = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    objects, refs, packed, _ = TAKEN
    return next(
        (
            path
            for path in candidates
            if (path / objects).is_dir() and ((path / refs).is_dir() or (path / packed).is_file())
        ),
        None,
    )


def _hash(bare: Path) -> str:
    """Return the repository's object format. git records it in `config` if it is not the default, sha1."""
    config = bare / "config"
    return "sha256" if config.is_file() and b"sha256" in config.read_bytes().lower() else "sha1"
