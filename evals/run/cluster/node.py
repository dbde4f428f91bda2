"""Code that runs on a cluster's nodes.

Make one attempt in a local folder and send the folder back as a tar. The code of an instance that exists only on the machine
of the run travels to the node as a tar of one commit, which any node can check out.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from m3agent import __version__
from m3agent.agent.settings.settings import state_dir
from m3agent.evals.code.archive import MOST_BYTES, TAKEN, extract_files
from m3agent.evals.code.checkout import BRANCH, codebase
from m3agent.evals.data.instance import Instance, Source, Task
from m3agent.evals.data.results import AttemptRecord
from m3agent.evals.run.attempt import EvalAttempt
from m3agent.evals.run.parts import AttemptListener, PartsOf
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.images.image_build import files_as_tar
from m3agent.util.atomic_write import write_whole

AWAY, LOCK = Path("evals", "away"), "lock"
"""Folder of running attempts, below a node's state folder.

Each attempt has a lock file, which is held while any process of the attempt runs.
"""
PATIENCE = 20.0
"""How long `Worker.news` waits for an event, in seconds."""
ROOT = "code.git"
RECEIVED = Path("evals", "received")
"""Folder below the state folder for code from other machines; the files are named by their hash."""


@dataclass(frozen=True)
class FinishedAttempt:
    """A finished attempt."""

    result: AttemptRecord
    patch: bytes
    files: bytes
    """The attempt's folder as a gzipped tar."""


News = tuple[str, str]
"""An event of an attempt, as kind and text: `phase` with its name, `say` with a note, `warm`, or `end`."""


def fault(version: str) -> str:
    """Return why this node cannot make attempts for an m3agent of this version; empty if it can."""
    if version != __version__:
        return f"it has m3agent {__version__}, and this machine {version}"
    try:
        connect().close()
    except SandboxError as error:
        return str(error)
    return ""


class Worker:
    """A Ray actor that makes one attempt. It must allow several concurrent method calls."""

    def __init__(self, instance: Instance, number: int, parts_of: PartsOf, sent: bytes | None) -> None:
        self._instance, self._number, self._parts_of, self._sent = instance, number, parts_of, sent
        self._news: list[News] = []
        self._more = asyncio.Event()
        self._making: asyncio.Task[FinishedAttempt] | None = None

    async def work(self) -> FinishedAttempt | None:
        """Make the attempt."""
        loop = asyncio.get_running_loop()

        def tell(kind: str, what: str) -> None:  # other threads call it, too
            loop.call_soon_threadsafe(self._tell, kind, what)

        self._making = asyncio.create_task(self._work(tell))
        try:
            return await self._making
        except asyncio.CancelledError:
            return None
        finally:
            self._tell("end", "")

    async def _work(self, tell: Callable[[str, str], None]) -> FinishedAttempt:
        state, instance = state_dir(os.environ), self._instance
        if self._sent is not None:
            task = await asyncio.to_thread(arrived, instance.task, self._sent, state)
            instance = instance.model_copy(update={"task": task})
        with _folder(state / AWAY) as (folder, lock):
            place = folder / "attempts" / instance.id / str(self._number)
            place.mkdir(parents=True)
            listener = AttemptListener(
                partial(tell, "phase"), partial(tell, "warm", ""), partial(tell, "say")
            )
            parts = self._parts_of(listener.say)
            attempt = EvalAttempt(instance, self._number, place, parts, listener, (lock,))
            result, patch = await attempt.make()
            return FinishedAttempt(result, patch, await asyncio.to_thread(packed, place))

    async def news(self, after: int) -> list[News]:
        """Return the events after the first `after` ones.

        Wait up to `PATIENCE` seconds if there are none yet.
        """
        if len(self._news) <= after:
            self._more.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await self._more.wait()
        return self._news[after:]

    async def stop(self) -> None:
        """Cancel the attempt; `work` then cleans up and returns None."""
        if self._making is not None:
            self._making.cancel()

    def _tell(self, kind: str, what: str) -> None:
        self._news.append((kind, what))
        self._more.set()


@contextlib.contextmanager
def _folder(away: Path) -> Iterator[tuple[Path, int]]:
    """Yield a new folder for an attempt and the descriptor of its lock.

    Folders of killed workers are removed first.
    """
    away.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in away.iterdir():
        with contextlib.suppress(OSError), (old / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(dir=away))
    try:
        with (folder / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder, lock.fileno()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def packed(folder: Path) -> bytes:
    """Return a folder as a gzipped tar. Only regular files and folders are included."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for path in sorted(folder.rglob("*")):
            if not path.is_symlink() and (path.is_dir() or path.is_file()):
                archive.add(path, str(path.relative_to(folder)), recursive=False)
    return buffer.getvalue()


def unpack(files: bytes, folder: Path) -> None:
    """Unpack what `packed` returned.

    Raises:
        OSError: A file cannot be written.
        tarfile.TarError: The tar is damaged.
        ValueError: The tar contains something else than `packed` returns, or more than `MOST_BYTES`.
    """
    with tarfile.open(fileobj=io.BytesIO(files)) as archive:
        extract_files(archive, folder, MOST_BYTES)


def is_local(task: Task) -> bool:
    """Return whether a task's code exists only on this machine."""
    return task.source.kind != "git" or urlsplit(task.source.location).scheme != "https"


def parcel(task: Task, state: Path) -> bytes:
    """Return the code of a task: a bare repository with one commit, as a tar. Blocking; it raises the errors of `codebase`."""
    git = codebase(task, state).path / ".git"
    paths = sorted(path for name in TAKEN for path in [git / name, *(git / name).rglob("*")])
    files = {str(path.relative_to(git)): path.read_bytes() for path in paths if path.is_file()}
    # git recognises a bare repository by these folders, even if they are empty
    return files_as_tar(files, ROOT, folders=[f"{ROOT}/{name}" for name in TAKEN[:2]])


def arrived(task: Task, sent: bytes, state: Path) -> Task:
    """Store the received code and return the task with that code as its source.

    Raises:
        OSError: The code cannot be written.
    """
    folder = state / RECEIVED
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / f"{hashlib.sha256(sent).hexdigest()}.tar"
    if not file.exists():
        write_whole(file, sent)
    source = Source(kind="archive", location=str(file), ref=BRANCH)
    return task.model_copy(update={"source": source})
