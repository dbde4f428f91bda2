"""A bare repository out of a tar that somebody else made: its objects and refs, nothing that git could run or follow."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from m3agent.evals.data.instance import DataError
from m3agent.sandbox.git import run_git

MOST_BYTES = 16 << 30
"""Bytes of an archive's files: several times the largest repositories that benchmarks have."""

TAKEN = ("objects", "refs", "packed-refs", "shallow")
"""What makes up history. Not taken: `config` and `hooks`, which name programs; `HEAD`, which is only a ref's name."""
BORROWED = ("alternates", "http-alternates")
"""Files in `objects/info` that name other places to read objects from."""


def unpack(archive: Path, target: Path) -> None:
    """Make the bare repository `target` (not there yet) of the one in a tar, which may be compressed.

    Raises:
        DataError: it cannot be read; one of its members leads out of it, or is a link or a device; it holds no bare
            repository.
        SandboxError, OSError: git or the disk fails.
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
                    raise DataError(f"{archive}: its member {member.name!r} leads out of it: refused")
                if not (member.isreg() or member.isdir()):
                    raise DataError(f"{archive}: its member {member.name!r} is a link or a device: refused")
                left -= member.size
                if left < 0:
                    raise DataError(f"{archive}: it unpacks to more than {MOST_BYTES >> 30} GiB: refused")
                _place(tar, member, raw / path)
    except (tarfile.TarError, EOFError, zlib.error, UnicodeError) as error:
        raise DataError(f"{archive} cannot be read as a tar ({error})") from None


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Only content and place count: not owner, mode or time."""
    (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
    if member.isreg():
        content = tar.extractfile(member)
        assert content is not None
        with path.open("wb") as file:
            shutil.copyfileobj(content, file)


def _bare(folder: Path) -> Path | None:
    """The bare repository in a folder: itself or one below it."""
    candidates = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    return next((path for path in candidates if all((path / name).is_dir() for name in TAKEN[:2])), None)


def _hash(bare: Path) -> str:
    """The hash by which a repository names its objects: one that is not git's default stands in its configuration."""
    config = bare / "config"
    return "sha256" if config.is_file() and b"sha256" in config.read_bytes().lower() else "sha1"
