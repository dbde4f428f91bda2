"""Check out an instance's code as a repository with a single commit.

The upstream history is left out, because an agent could read the fix in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

from m3agent.agent.repo.repository import GitCommandFailed, open_repository
from m3agent.agent.repo.snapshot import borrowing_store
from m3agent.evals.code.archive import unpack
from m3agent.evals.code.code_image import code_image, commit_of_image
from m3agent.evals.code.leak_proof import BRANCH, LeakProof, prove
from m3agent.evals.data.files import BASE, commit_folder
from m3agent.evals.data.instance import DataError, Source, Task
from m3agent.sandbox.errors import EngineUnavailable, EnvironmentBuildFailed, ImageMissing, SandboxError
from m3agent.sandbox.images.indexes import indexes_here
from m3agent.sandbox.store.git import RAW_ATTRIBUTES, UNFINISHED, GitFailed, TreeStore, run_git
from m3agent.util.errors import EnvironmentFault, UsageError

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NOT_THERE = ("couldn't find remote ref", "not our ref")
"""Parts of git's error messages that mean: the server does not have this ref or commit."""
_IDLE = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60")
"""Abort a transfer that stays below 1000 bytes per second for 60 seconds."""


def checkout(task: Task, target: Path, *, cache: Path | None = None) -> LeakProof:
    """Create a repository in `target` with one commit, the task's base, on the branch main.

    Only the commit's tree is fetched. The commit keeps its id if the source has that commit. The files are
    equal to the commit's, byte for byte. This function blocks.

    Args:
        target: A folder that is absent or empty.
        cache: A folder that keeps unpacked archives and fetched commits. Several processes may share it.

    Raises:
        DataError: The source is damaged, or lacks the commit that the task names.
        EnvironmentFault: The source cannot be reached, `target` is not empty, or git or the disk fails.
        EngineUnavailable, EnvironmentBuildFailed, ImageMissing: The image that has the code is not available.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise EnvironmentFault(f"{target} is not empty: a checkout needs an empty folder.")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            mirror, ref = _mirror(task, cache, Path(scratch))
            commit = _commit(task, mirror, ref or task.base_commit)
            _fetch_into(target, mirror, commit)
        return prove(target, task.base_commit)
    except (EngineUnavailable, EnvironmentBuildFailed, ImageMissing):
        raise
    except SandboxError as error:
        raise EnvironmentFault(f"{task.instance_id} cannot be checked out: {error}.") from None
    except OSError as error:
        raise EnvironmentFault(
            f"{task.instance_id} cannot be checked out: {error.filename or target}: {error.strerror}."
        ) from None


def _commit(task: Task, mirror: Path, ref: str) -> str:
    """Return the id of the commit that a ref of the mirror names."""
    found = run_git(
        *("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"),
        env={"GIT_DIR": str(mirror.absolute()), "GIT_NO_REPLACE_OBJECTS": "1"},
        ok=(0, 1),
    )
    what, commit = f"{task.instance_id}: {task.source.location}", found.stdout.decode().strip()
    if not commit:
        raise DataError(f"{what} does not have {ref}")
    if task.base_commit and commit != task.base_commit:
        raise DataError(f"{what} has the commit {commit} as {ref}, which is not the base {task.base_commit}")
    return commit


def _fetch_into(target: Path, mirror: Path, commit: str) -> None:
    """Create a repository that holds only this commit, and check it out."""
    kind = "sha256" if len(commit) == 64 else "sha1"
    branch = f"--initial-branch={BRANCH.rpartition('/')[2]}"
    git_dir = target.absolute() / ".git"
    env = {"GIT_DIR": str(git_dir), "GIT_WORK_TREE": str(git_dir.parent)}
    run_git("init", "--quiet", "--template=", f"--object-format={kind}", branch, str(target), env=env)
    (git_dir / "info").mkdir(exist_ok=True)
    (git_dir / "info" / "attributes").write_text(RAW_ATTRIBUTES, "utf-8")
    _fetch(git_dir, mirror.resolve().as_uri(), f"{commit}:{BRANCH}")
    run_git("checkout", "--quiet", "--force", cwd=target, env=env)


def _fetch(git_dir: Path, url: str, refspec: str) -> None:
    """Fetch one commit without its history; git may use only the protocol of the URL itself."""
    scheme = urlsplit(url).scheme
    env = {"GIT_DIR": str(git_dir), "GIT_ALLOW_PROTOCOL": scheme}
    if scheme != "file":
        indexes = indexes_here()  # this machine's proxy and certificate authorities
        env |= indexes.proxies
        if indexes.certificates:
            env["GIT_SSL_CAINFO"] = str(indexes.certificates)
    run_git(
        *(*_IDLE, "-c", "protocol.version=2"),
        *("fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "--update-head-ok"),
        *("--no-auto-maintenance", "--no-recurse-submodules", "--", url, refspec),
        env=env,
    )


def _mirror(task: Task, cache: Path | None, scratch: Path) -> tuple[Path, str]:
    """Return a local repository that has the task's commit, and the ref to fetch from it."""
    source, mirror = task.source, scratch / "mirror.git"
    if source.kind == "image":
        image = code_image(task.environment, cache or scratch / "kept", lambda _: None, threading.Event())
        commit_of_image(image, source.ref, TreeStore(mirror))
        return mirror, BASE
    parts = urlsplit(source.location)
    if source.kind == "git" and parts.scheme != "https":
        path = Path(unquote(parts.path) if parts.scheme == "file" else source.location)
        if not path.is_dir():
            raise EnvironmentFault(
                f"{source.location} is neither a repository's folder nor an address that begins with https."
            )
        return _borrow(path, source.ref, mirror)
    if cache is not None and (key := _key(source)) is not None:
        mirror = _kept(source, cache, key)
    else:
        _make(source, mirror)
    return mirror, source.ref if source.kind == "archive" else BASE


def _borrow(folder: Path, ref: str, mirror: Path) -> tuple[Path, str]:
    """Create a repository that reads the objects of the user's, and return it with the id of the ref.

    Git would obey the configuration of the user's repository, which may name programs. The new one has none.
    """
    try:
        repository = open_repository(folder)
    except UsageError as error:
        raise EnvironmentFault(str(error)) from None
    borrowing_store(repository, mirror)
    with contextlib.suppress(GitCommandFailed):  # the ref is missing, which is reported later
        found = repository.git(
            "--no-replace-objects", "rev-parse", "--verify", "--quiet", "--end-of-options", ref
        )
        ref = found.decode().strip()
    return mirror, ref


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
    """Return the mirror in the cache; create it if it is missing.

    Several processes may create it at once. It appears by an atomic rename, and the first one wins.
    """
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
    """Return a hash of all that a mirror depends on; None for a folder, or for a git ref that may move later."""
    if source.kind == "archive":
        state = Path(source.location).stat()
        content = [source.location, state.st_size, state.st_mtime_ns, state.st_ino]
    elif source.kind == "git" and _COMMIT.fullmatch(source.ref):
        content = [source.location, source.ref]
    else:
        return None
    return hashlib.sha256(repr(content).encode()).hexdigest()[:32]
