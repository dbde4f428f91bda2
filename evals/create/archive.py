"""Build a repository's archive: a bare git folder with one commit for each instance, and no history.

The same commits give the same bytes, however git had packed the source repository.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from m3agent.sandbox.store.git import TreeStore

CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"
FOLDERS = ("", "/objects", "/objects/info", "/objects/pack", "/refs", "/refs/heads", "/refs/tags")
# For reproducible bytes: no delta of the source's packs is reused, and threads would split the work
# differently each time.
PACKING = (
    *("--no-reuse-delta", "--no-reuse-object", "--threads=1", "--window=10", "--depth=50", "--compression=6"),
)


def pack(store: TreeStore, refs: Mapping[str, str], name: str) -> bytes:
    """Return the archive, a gzipped tar that contains the bare repository `name`.git.

    Args:
        store: The store that has the commits.
        refs: Commit ids by ref name. The commits have no parents.
        name: Name of the repository.

    Raises:
        GitFailed: The store lacks objects of these commits.
    """
    commits = sorted(set(refs.values()))
    wanted = store.git("rev-list", "--objects", "--no-walk=unsorted", *commits)
    files = {
        "HEAD": b"ref: refs/heads/main\n",
        "config": CONFIG.encode(),
        "packed-refs": "".join(f"{sha} {ref}\n" for ref, sha in sorted(refs.items())).encode(),
        "shallow": "".join(f"{sha}\n" for sha in commits).encode(),
    }
    # Git makes the pack in the store and renames it, so the folder must be in the same file system.
    with tempfile.TemporaryDirectory(dir=store.git_dir.resolve()) as scratch:
        store.git("pack-objects", "-q", *PACKING, f"{scratch}/pack", stdin=wanted)
        for part in Path(scratch).glob("pack-*"):
            if part.suffix in {".pack", ".idx"}:
                files[f"objects/pack/{part.name}"] = part.read_bytes()
    return _tar(f"{name}.git", files)


def _tar(root: str, files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for folder in FOLDERS:
            info = tarfile.TarInfo(f"{root}{folder}")
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
        for name, content in sorted(files.items()):
            info = tarfile.TarInfo(f"{root}/{name}")
            info.size, info.mode = len(content), 0o644
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
