"""Read the files of a commit from git's object store, for repositories without a work tree."""

from __future__ import annotations

import os
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
from m3agent.agent.repo.host_git import HostGit
from m3agent.agent.repo.repository import GitCommandFailed, git


def read_commit(where: HostGit, head: str) -> Iterator[tuple[str, bytes | Reason]]:
    """Yield each path of the commit with its bytes, or with the reason for leaving it out.

    The paths with bytes come last.
    """
    wanted: list[tuple[str, str]] = []
    for line in git(where, ["ls-tree", "-r", "-l", "-z", "--full-tree", head]).split(b"\0"):
        if not line:
            continue
        meta, name = line.split(b"\t", 1)
        mode, kind, oid, size = meta.decode().split()
        path = os.fsdecode(name)
        reason = LINK if mode == "120000" else SUBMODULE if kind == "commit" else reason_by_name(path)
        if reason is None and int(size) > MAX_FILE_BYTES:
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
    try:
        return git(where, ["cat-file", "blob", f"{head}:{path}"])[:most]
    except GitCommandFailed:
        return None
