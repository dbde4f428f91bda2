"""Unpacking files from tars that nobody vouches for."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from m3agent.evals.code.archive import extract_files


def a_tar(*members: tuple[tarfile.TarInfo, bytes]) -> tarfile.TarFile:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    made.seek(0)
    return tarfile.open(fileobj=made)


def member(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info, content


def test_files_folders_and_links_come_out_as_they_were(tmp_path: Path) -> None:
    tar = a_tar(
        member("./", kind=tarfile.DIRTYPE),
        member("./a/run.sh", b"echo", mode=0o755),
        member("./a/same", kind=tarfile.LNKTYPE, target="./a/run.sh"),
        member("./empty", kind=tarfile.DIRTYPE),
        member("./b/link", kind=tarfile.SYMTYPE, target="../a/run.sh"),
        member("./away", kind=tarfile.SYMTYPE, target="/etc/passwd"),
    )
    extract_files(tar, tmp_path, 1 << 20, links=True)
    assert os.access(tmp_path / "a/run.sh", os.X_OK)
    assert (tmp_path / "a/same").read_bytes() == (tmp_path / "b/link").read_bytes() == b"echo"
    assert (tmp_path / "away").readlink() == Path("/etc/passwd")
    assert (tmp_path / "empty").is_dir()


@pytest.mark.parametrize(
    "members",
    [
        [member("out", kind=tarfile.SYMTYPE, target=".."), member("out/escaped", b"x")],
        [
            member("out", kind=tarfile.SYMTYPE, target=".."),
            member("out/escaped", kind=tarfile.SYMTYPE, target="/etc"),
        ],
        [member("one", b"x"), member("one", kind=tarfile.SYMTYPE, target="three")],
        [member("../escaped", b"x")],
        [member("../escaped", kind=tarfile.SYMTYPE, target="x")],
        [member("/escaped", b"x")],
        [member("pipe", kind=tarfile.FIFOTYPE)],
        [member("same", kind=tarfile.LNKTYPE, target="../../etc/passwd")],
        [member("large", b"x" * 2000)],
        [
            member("half", b"x" * 600),
            *(member(f"same{n}", kind=tarfile.LNKTYPE, target="half") for n in range(9)),
        ],
    ],
    ids=[
        "through a link",
        "link through a link",
        "twice",
        "above",
        "link above",
        "absolute",
        "pipe",
        "hard link",
        "too large",
        "too large with hard links",
    ],
)
def test_nothing_is_written_outside(tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises((ValueError, tarfile.TarError)):
        extract_files(a_tar(*members), folder, 1000, links=True)
    assert not (tmp_path / "escaped").exists()
    assert not Path("/escaped").exists()


def test_links_are_refused_unless_they_are_wanted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a link or a device"):
        extract_files(a_tar(member("a", kind=tarfile.SYMTYPE, target="b")), tmp_path, 1000)
