"""The benchmark of environments: a repository from a source distribution, and the table."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from benchmarks import environments
from benchmarks.common import git
from benchmarks.environments import Measured, make_repository, newest_source, table

FILES = {
    "a.py": "",
    "PKG-INFO": "",
    "src/own.egg-info/SOURCES.txt": "",
    "made.py": "",
    ".gitignore": "made.py\n",
}


def test_a_repository_has_only_what_upstream_has(tmp_path: Path) -> None:
    archive = tmp_path / "own-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in FILES.items():
            info = tarfile.TarInfo(f"own-1.0/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    folder = tmp_path / "own-1.0"
    make_repository(archive.as_uri(), "1.0", folder)
    assert git(folder, "ls-files").stdout.split() == [b".gitignore", b"a.py"]
    assert git(folder, "status", "--porcelain", "--ignored").stdout == b""
    assert git(folder, "describe", "--tags").stdout == b"v1.0\n"


def test_the_newest_release_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        "own-1.0.tar.gz",
        "own-1.10.tar.gz",
        "own-2.0rc1.tar.gz",
        "own-1.9-py3-none-any.whl",
        "own-1.9.zip",
    ]
    files: list[dict[str, object]] = [{"filename": name, "url": f"x:{name}"} for name in names]
    files.append({"filename": "own-3.0.tar.gz", "url": "x:", "yanked": True})
    (tmp_path / "own").mkdir()
    (tmp_path / "own/index.html").write_text(json.dumps({"files": files}))
    monkeypatch.setenv("UV_DEFAULT_INDEX", tmp_path.as_uri())
    monkeypatch.setattr(environments, "PAGE", "{}/{}/index.html")
    assert newest_source("own") == ("own", "1.10", "x:own-1.10.tar.gz")
    assert newest_source("own==2.0rc1") == ("own", "2.0rc1", "x:own-2.0rc1.tar.gz")
    with pytest.raises(SystemExit, match=r"no source distribution of own==1\.9"):
        newest_source("own==1.9")


def test_the_table() -> None:
    rows = [
        Measured("own", "1", 3.4, 0, 1200, [], ["b.py"], []),
        Measured("bad", "2", 9.6, None, 0, [], [], []),
    ]
    assert table(rows).splitlines()[2:] == [
        "| own 1 | 1,200 | 0 | 1 | 3 |",
        "| bad 2 | pytest does not start | 0 | 0 | 10 |",
    ]
