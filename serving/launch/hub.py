"""Fetch a checkpoint from Hugging Face's hub or a mirror of it: look it up, download it, check every file.

huggingface_hub downloads, into its own cache or into a folder. A connection that breaks continues after the last whole piece of
10 MiB. After an interruption whole files stay, and the few files that were under way begin again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from m3agent.serving.launch.checkpoint import CheckpointError, free_bytes
from m3agent.util.atomic_write import write_whole
from m3agent.util.counted import first_of
from m3agent.util.errors import EnvironmentFault, ServerFault
from m3agent.util.sanitize import printable_line

if TYPE_CHECKING:
    from types import ModuleType

AT_ONCE = 4
"""Files under way at once. An interruption loses what it has of them; each stream alone is fast."""
_ANSWER_SECONDS = 30.0
_CHUNK = 1 << 22
_COMMIT = re.compile(r"[0-9a-f]{40}")
MAIN = "main"


@dataclass(frozen=True)
class HubFile:
    """A file of a checkpoint."""

    path: str
    size: int
    blob: str
    """Its hash in git; of a file in LFS, that of a pointer."""
    sha256: str | None
    """The hash of its bytes, if it is in LFS."""

    @property
    def etag(self) -> str:
        """The name of its bytes in the cache."""
        return self.sha256 or self.blob


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint as the hub has it at one commit, and where it goes."""

    name: str
    revision: str
    commit: str
    files: Sequence[HubFile]
    folder: Path
    store: Path | None
    """Folder of the repository in Hugging Face's cache; None if the files go to a folder of the user's."""

    @property
    def size(self) -> int:
        """The bytes of all its files."""
        return sum(file.size for file in self.files)

    def missing(self) -> list[HubFile]:
        """Return the files that are not here yet."""
        return [file for file in self.files if not any(map(_has(file), self._places(file)))]

    def remove(self, file: HubFile) -> None:
        """Remove a file, so that the next download has it anew."""
        places = [*self._places(file), (self.folder / file.path).resolve()]
        for place in places:  # the last may be in another folder of the cache
            if place.is_relative_to(self.folder if self.store is None else self.store.parent):
                place.unlink(missing_ok=True)

    def _places(self, file: HubFile) -> list[Path]:
        return [self.folder / file.path, *([] if self.store is None else [self.store / "blobs" / file.etag])]


def _has(file: HubFile) -> Callable[[Path], bool]:
    return lambda path: path.is_file() and path.stat().st_size == file.size


def look_up(name: str, revision: str | None, to: Path | None) -> Snapshot:
    """Ask the hub which files a checkpoint has.

    Args:
        to: The folder for the files; None is Hugging Face's cache.

    Raises:
        CheckpointError: There is no such checkpoint or revision.
        EnvironmentFault: This machine lacks huggingface_hub, or must not use the network.
        ServerFault: The hub fails.
    """
    hub = _library()
    revision = revision or MAIN
    if ".." in revision or revision.startswith(("/", "-")):
        raise CheckpointError(f"{revision} is no revision: give a branch, a tag or a commit with --revision")
    store = Path(hub.constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    if hub.is_offline_mode():
        raise EnvironmentFault("HF_HUB_OFFLINE forbids the download: unset it, and fetch again")
    with _explained(hub, name, revision):
        api = hub.HfApi(library_name="m3agent")
        commit = str(api.model_info(name, revision=revision, timeout=_ANSWER_SECONDS).sha)
        entries = list(api.list_repo_tree(name, recursive=True, revision=commit))
        files = [_file(entry) for entry in entries if isinstance(entry, hub.hf_api.RepoFile)]
        if not _COMMIT.fullmatch(commit) or not files:
            raise ValueError(f"{commit} with {len(files)} files")
    folder = store / "snapshots" / commit if to is None else to.expanduser().absolute()
    return Snapshot(name, revision, commit, files, folder, store if to is None else None)


def check_room(snapshot: Snapshot, needed: int) -> int:
    """Return the free bytes of the disk that gets the files.

    Raises:
        EnvironmentFault: They are too few, or the disk cannot be asked.
    """
    try:
        there, free = free_bytes(snapshot.folder)
    except OSError as error:
        raise EnvironmentFault(
            f"{error.filename} cannot be read: {error.strerror}; choose another folder with --to"
        ) from None
    if free < needed:
        raise EnvironmentFault(
            f"{snapshot.name} needs {needed / 1e9:,.1f} GB more and {there} has {free / 1e9:,.1f} GB free: make room, or set "
            "HF_HOME or --to to a folder on a larger disk"
        )
    return free


def download(snapshot: Snapshot, count: Callable[[int], None]) -> None:
    """Download the files that are missing.

    Args:
        count: Receives the bytes that this call has downloaded so far, from several threads.

    Raises:
        CheckpointError, EnvironmentFault, ServerFault: A file cannot be downloaded, with the reason.
    """
    hub = _library()
    with _explained(hub, snapshot.name, snapshot.revision):
        hub.snapshot_download(
            snapshot.name,
            revision=snapshot.commit,
            local_dir=snapshot.folder if snapshot.store is None else None,
            library_name="m3agent",
            max_workers=AT_ONCE,
            tqdm_class=_bar(hub, count),
        )


def remove_unfinished(snapshot: Snapshot) -> None:
    """Remove what killed downloads left of files: nothing continues it, and it takes up the disk."""
    store = snapshot.store
    parts = snapshot.folder / ".cache/huggingface/download" if store is None else store / "blobs"
    for part in parts.rglob("*.incomplete"):
        with contextlib.suppress(OSError):
            if store is None:
                part.unlink()
                continue
            # another program that downloads this file holds its lock
            with (store.parent / ".locks" / store.name / f"{part.name.split('.')[0]}.lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink()


def check_files(snapshot: Snapshot, count: Callable[[int], None]) -> None:
    """Compare every file with the hub's checksum, and remove those that differ.

    Args:
        count: Receives the bytes that were read so far, from several threads.

    Raises:
        EnvironmentFault: A file cannot be read.
        ServerFault: A file differs.
    """
    done, lock = 0, threading.Lock()

    def matches(file: HubFile) -> bool:
        nonlocal done
        sha = (
            hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
        )
        with (snapshot.folder / file.path).open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                sha.update(chunk)
                with lock:
                    done += len(chunk)
                    count(done)
        return sha.hexdigest() == file.etag

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            right = pool.map(matches, snapshot.files)
            wrong = [file for file, good in zip(snapshot.files, right, strict=True) if not good]
        for file in wrong:
            snapshot.remove(file)
    except OSError as error:
        raise EnvironmentFault(f"{error.filename} cannot be read: {error.strerror}; fetch again") from None
    if wrong:
        names = first_of([file.path for file in wrong], 1)
        raise ServerFault(
            f"{names} did not have the hub's checksum and was removed: fetch again to download it anew"
        )


def keep_revision(snapshot: Snapshot) -> None:
    """Record in the cache which commit a branch or tag means, now that all of it is here; engines look there."""
    if snapshot.store is None or snapshot.revision == snapshot.commit:
        return
    reference = snapshot.store / "refs" / snapshot.revision
    try:
        reference.parent.mkdir(parents=True, exist_ok=True)
        write_whole(reference, snapshot.commit.encode())
    except OSError as error:
        raise EnvironmentFault(f"{reference} cannot be written: {error.strerror}") from None


def _library() -> ModuleType:
    try:
        import huggingface_hub as hub
        import huggingface_hub.errors
        import huggingface_hub.hf_api
        import huggingface_hub.utils
    except ImportError:
        raise EnvironmentFault(
            "huggingface_hub is not installed: install m3agent[serve] as docs/install.md says"
        ) from None
    hub.utils.logging.set_verbosity(logging.CRITICAL)  # it would print words of the server
    return hub


def _file(entry: Any) -> HubFile:
    path = PurePosixPath(entry.path)
    sha256 = None if entry.lfs is None else str(entry.lfs.sha256)
    file = HubFile(entry.path, entry.size, str(entry.blob_id), sha256)
    if path.is_absolute() or ".." in path.parts or not isinstance(file.size, int) or file.size < 0:
        raise ValueError(f"the file {path}")
    if not re.fullmatch(r"[0-9a-f]{40,64}", file.etag):
        raise ValueError(f"the hash of {path}")
    return file


def _bar(hub: ModuleType, count: Callable[[int], None]) -> type:
    """Return a class of progress bars for huggingface_hub that draws nothing and counts the bytes."""
    # one bar counts bytes from the network, one bytes of files; without Xet they are equal
    seen: dict[int, int] = {}
    base: Any = hub.utils.tqdm

    class Bar(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})
            self._of_bytes = options.get("unit") == "B"

        def update(self, n: float | None = 1) -> None:
            if self._of_bytes:
                seen[id(self)] = seen.get(id(self), 0) + int(n or 0)
                count(max(seen.values()))

    return Bar


@contextlib.contextmanager
def _explained(hub: ModuleType, name: str, revision: str) -> Iterator[None]:
    """Raise what fails in huggingface_hub as one sentence."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, hub.errors.HTTPError) as error:
        while isinstance(error, hub.errors.LocalEntryNotFoundError) and isinstance(
            error.__cause__, Exception
        ):
            error = error.__cause__
        raise _explanation(hub, error, name, revision) from None


def _explanation(hub: ModuleType, error: Exception, name: str, revision: str) -> Exception:
    errors: Any = hub.errors
    host = urlsplit(hub.constants.ENDPOINT).netloc.rpartition("@")[2]
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return ServerFault(
            f"{host} gives {name} only to those who agreed to its terms: agree on its page, and set HF_TOKEN"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return CheckpointError(f"{name} has no revision {revision} on {host}: correct --revision")
    if isinstance(error, errors.RepositoryNotFoundError):
        return CheckpointError(
            f"{host} has no model {name}, or it is private: correct the name, or set HF_TOKEN"
        )
    if status in (401, 403):
        return ServerFault(
            f"{host} refuses the download of {name} ({status}): correct HF_TOKEN, or log in with `hf auth login`"
        )
    if status is not None:
        return ServerFault(f"{host} answers {status} for {name}: fetch again later; what is here stays")
    if isinstance(error, errors.HTTPError):
        return ServerFault(
            f"{host} cannot be reached ({type(error).__name__}): check the network and HF_ENDPOINT, and fetch again; what is "
            "here stays"
        )
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename} cannot be written" if error.filename else "the download failed"
        return EnvironmentFault(
            f"{where}: {error.strerror}; make room, or choose another folder with HF_HOME or --to"
        )
    return ServerFault(f"{host} does not answer as a hub should for {name} ({printable_line(error, 200)})")
