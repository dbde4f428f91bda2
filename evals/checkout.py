"""An instance's code as a repository of one commit: its history, where a fix could be read, does not come along."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from m3agent.agent.errors import EnvironmentFault
from m3agent.evals.archive import unpack
from m3agent.evals.data.instance import DataError, Source, Task
from m3agent.evals.folder_base import BASE, commit_folder
from m3agent.evals.leak_proof import BRANCH, LeakProof, prove
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.git import RAW_ATTRIBUTES, UNFINISHED, GitFailed, TreeStore, run_git
from m3agent.sandbox.indexes import find_indexes

_NO_LOG = ("-c", "core.logAllRefUpdates=false")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NOT_THERE = ("couldn't find remote ref", "not our ref")
"""Git's words for what a server does not have."""
_IDLE = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60")
"""A server that sends less than 1000 bytes a second for a minute is given up."""


def checkout(task: Task, target: Path, *, cache: Path | None = None) -> LeakProof:
    """Make `target` (absent or empty) a repository whose one commit, on the branch main, is the task's base.

    The commit keeps its id where the source has it; only its tree comes along. Files are as the commit has them,
    byte for byte. cache: a folder that keeps unpacked archives and fetched commits; several processes may share it.
    Blocking.

    Raises:
        DataError: the source does not have the commit that the task names, or is damaged.
        EnvironmentFault: the source cannot be reached, or git or the disk fails.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise EnvironmentFault(f"{target} is not empty: a checkout needs a folder of its own.")
    try:
        with _mirror(task.source, cache) as (mirror, ref):
            commit = _commit(task, mirror, ref or task.base_commit)
            _fetch_into(target, mirror, commit)
        return prove(target, task.base_commit)
    except SandboxError as error:
        raise EnvironmentFault(f"{task.instance_id} cannot be checked out: {error}.") from None
    except OSError as error:
        raise EnvironmentFault(
            f"{task.instance_id} cannot be checked out: {error.filename or target}: {error.strerror}."
        ) from None


def _commit(task: Task, mirror: Path, ref: str) -> str:
    """The commit that a ref of the mirror names. Raises DataError where it is not there or not the task's base."""
    found = run_git(
        *("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"),
        cwd=mirror,
        env={"GIT_NO_REPLACE_OBJECTS": "1"},
        ok=(0, 1),
    )
    what, commit = f"{task.instance_id}: {task.source.location}", found.stdout.decode().strip()
    if not commit:
        raise DataError(f"{what} does not have {ref}, which is to be taken from it")
    if task.base_commit and commit != task.base_commit:
        raise DataError(f"{what} has the commit {commit} as {ref}, which is not the base {task.base_commit}")
    return commit


def _fetch_into(target: Path, mirror: Path, commit: str) -> None:
    """A new repository with that commit alone, checked out."""
    kind = "sha256" if len(commit) == 64 else "sha1"
    branch = f"--initial-branch={BRANCH.rpartition('/')[2]}"
    run_git("init", "--quiet", "--template=", f"--object-format={kind}", branch, str(target))
    (target / ".git" / "info").mkdir(exist_ok=True)
    (target / ".git" / "info" / "attributes").write_text(RAW_ATTRIBUTES)
    _fetch(target, mirror.resolve().as_uri(), f"{commit}:{BRANCH}")
    run_git(*_NO_LOG, "checkout", "--quiet", "--force", cwd=target)


def _fetch(repository: Path, url: str, refspec: str) -> None:
    """One commit without its history, over the URL's own protocol and no other."""
    scheme = urlsplit(url).scheme
    env = {"GIT_ALLOW_PROTOCOL": scheme}
    if scheme != "file":
        indexes = find_indexes(os.environ, Path.home())  # this machine's proxy and authorities
        env |= indexes.proxies
        if indexes.certificates:
            env["GIT_SSL_CAINFO"] = str(indexes.certificates)
    run_git(
        *(*_NO_LOG, *_IDLE, "-c", "protocol.version=2"),
        *("fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "--update-head-ok"),
        *("--no-auto-maintenance", "--no-recurse-submodules", "--", url, refspec),
        cwd=repository,
        env=env,
    )


@contextlib.contextmanager
def _mirror(source: Source, cache: Path | None) -> Iterator[tuple[Path, str]]:
    """A repository on this machine that has the source's commit, and the ref to ask it for."""
    parts = urlsplit(source.location)
    if source.kind == "git" and parts.scheme != "https":
        path = Path(parts.path if parts.scheme == "file" else source.location)
        if not path.is_dir():
            raise EnvironmentFault(
                f"{source.location} is neither a repository's folder nor an address that begins with https."
            )
        yield path, source.ref
        return
    ref = source.ref if source.kind == "archive" else BASE
    key = _key(source) if cache is not None else None
    if cache is not None and key is not None:
        yield _kept(source, cache, key), ref
        return
    with tempfile.TemporaryDirectory() as temporary:
        mirror = Path(temporary) / "mirror.git"
        _make(source, mirror)
        yield mirror, ref


def _make(source: Source, mirror: Path) -> None:
    if source.kind == "archive":
        unpack(Path(source.location), mirror)
    elif source.kind == "folder":
        commit_folder(TreeStore(mirror), Path(source.location))
    else:
        run_git("init", "--quiet", "--bare", "--template=", str(mirror))
        try:
            _fetch(mirror, source.location, f"{source.ref}:{BASE}")
        except GitFailed as error:
            if any(words in str(error) for words in _NOT_THERE):
                raise DataError(f"{source.location} does not have {source.ref} ({error})") from None
            raise


def _kept(source: Source, cache: Path, key: str) -> Path:
    """The cache's mirror. Several processes may make it at once: it appears whole, and the first one stays."""
    mirror = cache / f"{key}.git"
    if not mirror.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=cache) as temporary:
            made = Path(temporary) / mirror.name
            _make(source, made)
            try:
                made.rename(mirror)
            except OSError:
                if not mirror.exists():
                    raise
    return mirror


def _key(source: Source) -> str | None:
    """What a mirror depends on, hashed; None where it is not worth keeping, or another one tomorrow."""
    if source.kind == "archive":
        state = Path(source.location).stat()
        content = [source.location, state.st_size, state.st_mtime_ns, state.st_ino]
    elif source.kind == "git" and _COMMIT.fullmatch(source.ref):
        content = [source.location, source.ref]
    else:
        return None
    return hashlib.sha256(repr(content).encode()).hexdigest()[:32]
