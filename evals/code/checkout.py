"""Check out an instance's code as a repository with a single commit, and show that it has nothing else.

The upstream history is left out, because an agent could read the fix in it. `codebase` keeps a read-only checkout of
each base commit in the state folder, made once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import re
import shutil
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, computed_field

from m3agent.agent.repo.repository import GitCommandFailed, open_repository
from m3agent.agent.repo.snapshot import borrowing_store
from m3agent.evals.code.archive import unpack
from m3agent.evals.code.code_image import code_image, commit_of_image
from m3agent.evals.data.files import BASE, commit_folder, hash_of_folder
from m3agent.evals.data.instance import DataError, Source, Task
from m3agent.evals.data.results import stored
from m3agent.sandbox.errors import EngineUnavailable, EnvironmentBuildFailed, ImageMissing, SandboxError
from m3agent.sandbox.images.indexes import indexes_here
from m3agent.sandbox.store.git import RAW_ATTRIBUTES, UNFINISHED, GitFailed, TreeStore, run_git
from m3agent.util.errors import EnvironmentFault, UsageError

BRANCH = "refs/heads/main"
"""The only ref of a checkout."""

_KEEPERS = (
    *("logs", "FETCH_HEAD", "ORIG_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "worktrees", "modules"),
    *("objects/info/alternates", "objects/info/http-alternates", "info/grafts"),
    *("hooks", "branches", "remotes"),
)
"""Paths in a git directory that lead to other history or mention it."""


class LeakProof(BaseModel):
    """What a repository contains, counted after the checkout."""

    model_config = ConfigDict(frozen=True)

    head: str
    """Id of the commit that is checked out."""
    matches: bool | None
    """Whether `head` is the task's base; None if the base is unknown."""
    commits: int
    """Number of commits in the object store, reachable or not."""
    refs: tuple[str, ...]
    objects: int
    reachable: int
    """Number of objects that `head` reaches."""
    keepers: tuple[str, ...] = ()
    """Other things that lead to more history or mention it, such as remotes and reflogs."""
    image: tuple[str, ...] = ()
    """What the instance's image contains of the time after the base (`m3agent.evals.grade.image_leaks`)."""

    @computed_field  # type: ignore[prop-decorator]  # pydantic's documented pattern
    @property
    def clean(self) -> bool:
        """Whether the repository contains the base commit and nothing else."""
        return (
            self.matches is not False
            and self.commits == 1
            and self.refs == (BRANCH,)
            and self.objects == self.reachable
            and not self.keepers
        )


def prove(repository: Path, base_commit: str = "") -> LeakProof:
    """Inspect a repository with a work tree. Only m3agent may have written to it.

    Args:
        base_commit: The id that `HEAD` should have; empty if it is unknown.

    Raises:
        SandboxError: git cannot read the repository.
    """

    git_dir = repository.absolute() / ".git"

    def lines(*args: str) -> list[str]:
        done = run_git(*args, env={"GIT_DIR": str(git_dir), "GIT_NO_REPLACE_OBJECTS": "1"})
        return done.stdout.decode(errors="replace").split("\n")[:-1]

    head = lines("rev-parse", "HEAD^{commit}")[0]
    kinds = lines("cat-file", "--batch-all-objects", "--unordered", "--buffer", "--batch-check=%(objecttype)")
    remotes = (f"remote {name}" for name in lines("remote"))
    return LeakProof(
        head=head,
        matches=head == base_commit if base_commit else None,
        commits=kinds.count("commit"),
        refs=tuple(lines("for-each-ref", "--format=%(refname)")),
        objects=len(kinds),
        reachable=len(lines("rev-list", "--objects", "--no-object-names", head)),
        keepers=(*remotes, *(name for name in _KEEPERS if (git_dir / name).exists())),
    )


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
    parsed = run_git(
        *("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"),
        env={"GIT_DIR": str(mirror.absolute()), "GIT_NO_REPLACE_OBJECTS": "1"},
        ok=(0, 1),
    )
    what, commit = f"{task.instance_id}: {task.source.location}", parsed.stdout.decode().strip()
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
        parsed = repository.git(
            "--no-replace-objects", "rev-parse", "--verify", "--quiet", "--end-of-options", ref
        )
        ref = parsed.decode().strip()
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


WORK, PROOF = "work", "proof.json"
CODE = Path("evals", "code")
"""Folder below the state folder for checkouts, unpacked archives and fetched commits."""


@dataclass(frozen=True)
class Codebase:
    """A checkout and the proof that it contains no other history."""

    path: Path
    proof: LeakProof


def code_folder(state: Path) -> Path:
    """Return the folder for code below the state folder; make it if it is missing.

    Raises:
        EnvironmentFault: It cannot be made.
    """
    kept = state / CODE
    try:
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"{kept} cannot be made ({error.strerror}).") from None
    return kept


def codebase(task: Task, state: Path) -> Codebase:
    """Return the checkout of a task's base commit; create it if it is missing. This function blocks.

    Raises:
        EnvironmentFault: The checkout cannot be created.
        DataError: The data names a wrong commit, or the checkout contains more than its own commit.
        EngineUnavailable, EnvironmentBuildFailed, ImageMissing: The image that has the code is not available.
    """
    kept = code_folder(state)
    folder = kept / _checkout_key(task, kept)
    with (kept / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        proof = stored(LeakProof, folder / PROOF)
        if proof is None:
            shutil.rmtree(folder, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=kept, prefix="unfinished-") as temporary:
                new = Path(temporary) / "new"
                new.mkdir()
                proof = checkout(task, new / WORK, cache=kept)
                (new / PROOF).write_text(proof.model_dump_json(), "utf-8")
                new.rename(folder)
    if not proof.clean:
        raise DataError(
            f"{task.instance_id}: its checkout holds more than its own commit, so an agent could find the fix there."
        )
    return Codebase(folder / WORK, proof)


def _checkout_key(task: Task, kept: Path) -> str:
    """Return a hash of the checkout's inputs.

    These are the source's kind and location, the ref, the base commit and the state of the source's content.
    """
    made_from = [
        task.source.kind,
        task.source.location,
        task.source.ref,
        task.base_commit,
        _stamp(task, kept),
    ]
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:24]


def _stamp(task: Task, kept: Path) -> list[object]:
    """Return values that change when the source's content changes.

    The list is empty for git sources, where the commit id is enough.
    """
    source = task.source
    if source.kind == "image":
        return [code_image(task.environment, kept, lambda _: None, threading.Event()).ident]
    path = Path(source.location)
    if source.kind == "git" or not path.exists():
        return []
    if source.kind == "archive":
        info = path.stat()
        return [info.st_size, info.st_mtime_ns]
    return [hash_of_folder(path)]
