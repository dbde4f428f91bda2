"""Unpack a bare repository from an untrusted tar.

Only objects and refs are taken: nothing that git could execute or follow to another place.
"""

from __future__ import annotations

import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from m3agent.evals.data.instance import DataError
from m3agent.sandbox.store.git import run_git

MOST_BYTES = 16 << 30
"""Limit for the unpacked files of one archive, in bytes: several times the largest benchmark repository."""

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
        target: Path of the new repository; it must not exist yet.

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
        found = _bare(raw)
        if found is None:
            raise DataError(f"{archive} holds no bare repository (a folder with objects and refs)")
        run_git("init", "--quiet", "--bare", "--template=", f"--object-format={_hash(found)}", str(target))
        for name in TAKEN:
            if (found / name).exists():
                if (target / name).is_dir():
                    shutil.rmtree(target / name)
                (found / name).rename(target / name)
        for name in BORROWED:
            (target / "objects" / "info" / name).unlink(missing_ok=True)
    finally:
        shutil.rmtree(raw, ignore_errors=True)


def _extract(archive: Path, raw: Path) -> None:
    left = MOST_BYTES
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts or "\0" in member.name:
                    raise DataError(f"{archive}: its member {member.name!r} is outside the archive: refused")
                if not (member.isreg() or member.isdir()):
                    raise DataError(f"{archive}: its member {member.name!r} is a link or a device: refused")
                left -= member.size
                if left < 0:
                    raise DataError(f"{archive}: it unpacks to more than {MOST_BYTES >> 30} GiB: refused")
                _place(tar, member, raw / path)
    except (tarfile.TarError, EOFError, zlib.error, UnicodeError) as error:
        raise DataError(f"{archive} cannot be read as a tar ({error})") from None


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Write one member. Owner, mode and time are ignored; only path and content are used."""
    (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
    if member.isreg():
        content = tar.extractfile(member)
        assert content is not None
        with path.open("wb") as file:
            shutil.copyfileobj(content, file)


def _bare(folder: Path) -> Path | None:
    """Return the bare repository in a folder: the folder itself or one of its direct subfolders."""
    candidates = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    return next((path for path in candidates if all((path / name).is_dir() for name in TAKEN[:2])), None)


def _hash(bare: Path) -> str:
    """Return the repository's object format. git records it in `config` if it is not the default, sha1."""
    config = bare / "config"
    return "sha256" if config.is_file() and b"sha256" in config.read_bytes().lower() else "sha1"
