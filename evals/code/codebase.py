"""Keep a read-only checkout of each base commit in the state folder, made once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from m3agent.evals.code.checkout import checkout
from m3agent.evals.code.code_image import code_image
from m3agent.evals.code.leak_proof import LeakProof
from m3agent.evals.data.instance import DataError, Task
from m3agent.util.errors import EnvironmentFault

WORK, PROOF = "work", "proof.json"
CODE = Path("evals", "code")
"""Folder below the state folder for checkouts, unpacked archives and fetched commits."""


@dataclass(frozen=True)
class Codebase:
    """A checkout and the proof that it contains no other history."""

    path: Path
    proof: LeakProof


def codebase(task: Task, state: Path) -> Codebase:
    """Return the checkout of a task's base commit; create it if it is missing. This function blocks.

    Raises:
        EnvironmentFault: The checkout cannot be created.
        DataError: The data names a wrong commit, or the checkout contains more than its own commit.
        EngineUnavailable, EnvironmentBuildFailed, ImageMissing: The image that has the code is not available.
    """
    kept = state / CODE
    try:
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"{kept} cannot be made ({error.strerror}).") from None
    folder = kept / _key(task, kept)
    with (kept / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := _read(folder)) is None:
            shutil.rmtree(folder, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=kept, prefix="unfinished-") as temporary:
                new = Path(temporary) / "new"
                new.mkdir()
                proof = checkout(task, new / WORK, cache=kept)
                (new / PROOF).write_text(proof.model_dump_json(), "utf-8")
                new.rename(folder)
            found = Codebase(folder / WORK, proof)
    if not found.proof.clean:
        raise DataError(
            f"{task.instance_id}: its checkout holds more than its own commit, so an agent could find the fix there."
        )
    return found


def _read(folder: Path) -> Codebase | None:
    try:
        return Codebase(folder / WORK, LeakProof.model_validate_json((folder / PROOF).read_bytes()))
    except (OSError, ValidationError):
        return None


def _key(task: Task, kept: Path) -> str:
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
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_symlink():
            digest.update(f"{file.relative_to(path)} -> {file.readlink()}\0".encode())
        elif file.is_file():
            digest.update(f"{file.relative_to(path)}\0{file.stat().st_mode}\0".encode() + file.read_bytes())
    return [digest.hexdigest()]
