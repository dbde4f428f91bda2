"""The image with a repository's own environment, found or built.

In this order: the image of its devcontainer.json or Dockerfile; an image made of a base and the dependencies that its
files declare, named by the hash of all that it is made from; none, where it declares nothing. Bubblewrap has no
images, so this is for engines only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from m3agent.sandbox.container_build import build_container
from m3agent.sandbox.declared.container import read_containers
from m3agent.sandbox.declared.declared import Declared, read_declared
from m3agent.sandbox.declared.found import Files, Found
from m3agent.sandbox.docker_machine import connect
from m3agent.sandbox.env_build import EnvironmentFailed, Job, build_environment
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.image import Image, find_image, local_image
from m3agent.sandbox.in_thread import stoppable
from m3agent.sandbox.indexes import Indexes, find_indexes
from m3agent.sandbox.workspace import Workspace

REPOSITORY = "m3agent-env"
"""The name of every environment image; the tag is a hash."""
RECIPE = 1  # part of every hash: changes when the same declarations are to give another image
# Minor versions of Python 3, the ones that most packages have wheels for first
MINORS = (12, 11, 13, 10, 9, 14, 8, 7, 6)
WAIT = 0.2  # seconds between two tries for a lock that another process holds

Say = Callable[[str], None]


async def find_environment(
    workspace: Workspace,
    state: Path,
    say: Say,
    *,
    base: str | None = None,
    exclude_newer: str | None = None,
) -> str | None:
    """The image to use for a repository; None where it declares nothing that a bare sandbox lacks.

    base: the image to install into, instead of the default one; then the repository's own images do not count.
    exclude_newer: only what was uploaded before this date counts. `state` gets logs and what was used when.

    Raises:
        EnvironmentFailed: it could not be built. EngineUnavailable, ImageMissing: no engine, no base.
    """

    def work(stop: threading.Event) -> str | None:
        api = connect()
        try:
            return _Finder(api, workspace, state, say, stop).find(base, exclude_newer)
        finally:
            api.close()

    return await stoppable(work)


def files_of(workspace: Workspace) -> Files:
    """The plain files of the tree that a workspace starts from."""
    entries = workspace.entries(workspace.base)
    plain = {path: entry for path, entry in entries.items() if entry.mode & 0o170000 == 0o100000}
    return Files(plain.keys(), lambda path: workspace.store.get_blob(plain[path].sha))


def acceptable_pythons(declared: Declared) -> tuple[str, ...]:
    """Minor versions of Python that the repository accepts, best first; empty where it says nothing."""
    if declared.python_pin is not None:
        return (".".join(declared.python_pin.split(".")[:2]),)
    try:
        accepted = SpecifierSet(declared.python or "")
    except InvalidSpecifier:
        return ()
    if not len(accepted):
        return ()
    return tuple(f"3.{n}" for n in MINORS if any(accepted.contains(f"3.{n}.{p}") for p in range(31)))


def touch(state: Path, image: str) -> None:
    """Note that an environment image is used now: the least recently used goes first when room is made."""
    with contextlib.suppress(OSError):  # a state folder that cannot be written costs the order, no more
        (folder(state) / f"{image.partition(':')[2]}.used").touch()


def folder(state: Path) -> Path:
    """Where logs, locks and times of use are."""
    path = state / "environments"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


class _Finder:
    """One search; blocking."""

    def __init__(self, api: Any, workspace: Workspace, state: Path, say: Say, stop: threading.Event) -> None:
        self.api = api
        self.workspace = workspace
        self.state = state
        self.say = say
        self.stop = stop
        self.files = files_of(workspace)

    def find(self, base: str | None, exclude_newer: str | None) -> str | None:
        if base is None and (image := self._own()):
            return image
        declared = read_declared(self.files)
        if declared.empty:
            return None
        below = find_image(self.api, base, self.say)
        job = Job(
            declared.requirements,
            declared.constraints,
            acceptable_pythons(declared),
            declared.project,
            exclude_newer,
            find_indexes(os.environ, Path.home()),
        )
        tag = f"{REPOSITORY}:{_key(job, below)}"
        with self._one_at_a_time(tag):
            if local_image(self.api, tag) is None:
                self._announce(declared, job)
                log = folder(self.state) / f"{tag.partition(':')[2]}.log"
                started = time.monotonic()
                build_environment(self.api, job, below, tag, log=log, say=self.say, stop=self.stop)
                self.say(f"environment ready after {time.monotonic() - started:.0f} s: {tag}")
        touch(self.state, tag)
        return tag

    def _announce(self, declared: Declared, job: Job) -> None:
        for notice in (*declared.notices, *job.indexes.left_out):
            self.say(notice)
        count = len(job.requirements)
        self.say(
            f"building the repository's environment, once ({count} declared "
            f"{'dependency' if count == 1 else 'dependencies'}; this may take minutes)"
        )

    def _own(self) -> str | None:
        """The image of the repository's devcontainer.json or Dockerfile; None if there is none, or none that works."""
        found = Found()
        for container in read_containers(self.files, found):
            while found.notices:
                self.say(found.notices.pop(0))
            try:
                image = build_container(
                    self.api,
                    container,
                    self.workspace,
                    REPOSITORY,
                    log_folder=folder(self.state),
                    say=self.say,
                    stop=self.stop,
                    lock=self._one_at_a_time,
                )
            except SandboxError as error:
                if self.stop.is_set():
                    raise
                self.say(f"{container.source} is not used: {error}")
                continue
            if image.startswith(f"{REPOSITORY}:"):
                touch(self.state, image)
            return image
        for notice in found.notices:
            self.say(notice)
        return None

    def _one_at_a_time(self, tag: str) -> contextlib.AbstractContextManager[None]:
        return one_at_a_time(self.state, tag, self.say, self.stop)


@contextlib.contextmanager
def one_at_a_time(state: Path, tag: str, say: Say, stop: threading.Event) -> Iterator[None]:
    """Hold the lock of an image: of several that need it at once, one builds. Raises EnvironmentFailed on `stop`."""
    told = False
    with (folder(state) / f"{tag.partition(':')[2]}.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if stop.wait(WAIT):
                    raise EnvironmentFailed(
                        "interrupted while another process built the environment"
                    ) from None
                if not told:
                    say("another m3agent is building this environment: waiting for it")
                    told = True
        yield


def _key(job: Job, base: Image) -> str:
    """The hash of all that an environment image is made from."""
    made_from = asdict(replace(job, indexes=Indexes()))
    made_from |= {"recipe": RECIPE, "base": base.ident, "machine": platform.machine()}
    if base.binds:
        made_from["python"] = _host_python()
    return hashlib.sha256(json.dumps(made_from, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _host_python() -> str:
    """The version of the Python that the skeleton lends from this machine."""
    done = subprocess.run(["/usr/bin/python3", "-V"], capture_output=True, check=False, text=True, timeout=60)
    return done.stdout.strip()
