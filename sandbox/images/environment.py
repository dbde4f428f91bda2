"""Find or build the image with a repository's own environment.

The order is: the image of its devcontainer.json or Dockerfile; an image built from a base image and the
dependencies that its files declare; no image if it declares nothing. The name of a built image contains a
hash of everything that went into it. Bubblewrap has no images, so this works with engines only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.image import Image, find_image, local_image
from m3agent.sandbox.declared.build import ProjectBuild, read_build, version_of_tag
from m3agent.sandbox.declared.container import MayBuild
from m3agent.sandbox.declared.declared import Declared, read_declared, with_named
from m3agent.sandbox.declared.dockerfile import Named
from m3agent.sandbox.declared.pyproject import UNKNOWN_VERSION
from m3agent.sandbox.declared.types import Files
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images.compilers import with_compilers
from m3agent.sandbox.images.env_build import Job, build_environment
from m3agent.sandbox.images.indexes import Indexes, find_indexes
from m3agent.sandbox.images.kept import REPOSITORY, Say, folder, one_at_a_time, touch
from m3agent.sandbox.images.own_image import NOTHING, OwnImage
from m3agent.sandbox.images.project_build import MADE_FROM, ProjectJob, build_project
from m3agent.sandbox.images.system_packages import with_system_packages
from m3agent.sandbox.store.workspace import Workspace
from m3agent.sandbox.threads import stoppable

RECIPE = 1  # part of every hash; increase it if the same declarations must give another image
PROJECT_RECIPE = 2  # the same for the project's own build
# Minor versions of Python 3; those for which most packages have wheels come first.
MINORS = (12, 11, 13, 10, 9, 14, 8, 7, 6)


async def find_environment(
    workspace: Workspace,
    state: Path,
    say: Say,
    *,
    base: str | None = None,
    exclude_newer: str | None = None,
    tag: str | None = None,
    may_build: MayBuild = lambda *_: False,
) -> str | None:
    """Return the image for a repository, or None if it needs nothing beyond a bare sandbox.

    Args:
        workspace: The repository's files.
        state: Folder for logs, locks and times of last use.
        say: Receives progress lines for the user.
        base: Image to install into, instead of the default one; the repository's own images are then ignored.
        exclude_newer: Ignore packages that were uploaded after this date.
        tag: The repository's last tag; its version counts where only a build could determine the version.
        may_build: Returns whether the user agrees to the build of a Dockerfile of the repository. Without it, only the
            image and the packages that the Dockerfile names are used.

    Raises:
        EnvironmentBuildFailed: The image could not be built.
        EngineUnavailable: There is no engine.
        ImageMissing: The base image is missing.
    """

    def work(stop: threading.Event) -> str | None:
        api = connect()
        try:
            return _Finder(api, workspace, state, say, stop).find(base, exclude_newer, tag, may_build)
        finally:
            api.close()

    return await stoppable(work)


async def image_of_tree(workspace: Workspace, image: str, state: Path, say: Say) -> str:
    """Return the image for another tree of a repository that has an environment.

    That is the same image, unless the tree changes what the project's own build reads: then the project is built anew from
    the tree, in a container without a network.

    Args:
        workspace: The tree.
        image: The environment's image.
        state: Folder for logs, locks and times of last use.
        say: Receives progress lines for the user.

    Raises:
        EnvironmentBuildFailed: The engine failed.
        EngineUnavailable: There is no engine.
        ImageMissing: The image is missing.
    """

    def work(stop: threading.Event) -> str:
        api = connect()
        try:
            return _Finder(api, workspace, state, say, stop).again(image)
        finally:
            api.close()

    return await stoppable(work)


def files_of(workspace: Workspace) -> Files:
    """Return the plain files of the tree that a workspace starts from."""
    entries = workspace.entries(workspace.base)
    plain = {path: entry for path, entry in entries.items() if entry.mode & 0o170000 == 0o100000}
    return Files(plain.keys(), lambda path: workspace.store.get_blob(plain[path].sha))


def acceptable_pythons(declared: Declared) -> tuple[str, ...]:
    """Return the minor versions of Python that the repository accepts, best first; empty if it names none."""
    if declared.python_pin is not None:
        return (".".join(declared.python_pin.split(".")[:2]),)
    try:
        accepted = SpecifierSet(declared.python or "")
    except InvalidSpecifier:
        return ()
    if not len(accepted):
        return ()
    return tuple(f"3.{n}" for n in MINORS if any(accepted.contains(f"3.{n}.{p}") for p in range(31)))


class _Finder:
    """One search for an environment; its methods block."""

    def __init__(self, api: Any, workspace: Workspace, state: Path, say: Say, stop: threading.Event) -> None:
        self.api = api
        self.workspace = workspace
        self.state = state
        self.say = say
        self.stop = stop
        self.files = files_of(workspace)

    def find(
        self, base: str | None, exclude_newer: str | None, tag: str | None, may_build: MayBuild
    ) -> str | None:
        declared = read_declared(self.files)
        version = None if tag is None else version_of_tag(tag)
        if declared.project is not None and declared.project.version != UNKNOWN_VERSION:
            version = declared.project.version
        elif declared.project is not None and version is not None:
            declared = replace(declared, project=replace(declared.project, version=version))
        build = self._build()
        indexes = find_indexes(os.environ, Path.home())
        image, named = (None, NOTHING) if base is not None else self._own(indexes, may_build)
        declared = with_named(declared, named.requirements)
        base = base or named.image
        needed = (
            bool(named.system_packages)
            or not declared.empty
            or declared.test_options
            or declared.import_folders
            or build is not None
        )
        if image is None and needed:
            below = find_image(self.api, base, self.say)
            below = with_system_packages(
                self.api,
                below,
                named.system_packages,
                indexes,
                state=self.state,
                say=self.say,
                stop=self.stop,
            )
            if build is not None:
                below = self._able_to(build, below, declared, indexes)
            image = self._declared(declared, below, exclude_newer, indexes)
        elif image is None:
            image = named.image
        elif build is not None:
            image = self._able_to(build, find_image(self.api, image, self.say), declared, indexes).name
        if image is None or build is None:
            return image
        job = ProjectJob(
            self._hash(build.inputs),
            build.version_files,
            build.extensions,
            version or UNKNOWN_VERSION,
            tag,
            build.rust,
            exclude_newer,
            indexes,
        )
        return self._with_build(job, image)

    def again(self, image: str) -> str:
        labels = self.api.inspect_image(image)["Config"].get("Labels") or {}
        if MADE_FROM not in labels or (build := self._build()) is None:
            return image
        job = ProjectJob.from_label(labels[MADE_FROM])
        inputs = self._hash(build.inputs)
        if inputs == job.inputs:
            return image
        # the cache of downloads holds them by the address of their index
        indexes = find_indexes(os.environ, Path.home())
        job = replace(job, inputs=inputs, extensions=build.extensions, indexes=indexes)
        return self._with_build(job, image, again=True)

    def _hash(self, inputs: Sequence[str]) -> str:
        """Return the hash of files by path and content."""
        entries = self.workspace.entries(self.workspace.base)
        named = [(path, entries[path].sha) for path in inputs]
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()

    def _build(self) -> ProjectBuild | None:
        """Return what the project's build makes; without the files that git would not ignore."""
        build = read_build(self.files)
        if build is None:
            return None
        unseen = set(build.version_files) - set(self.workspace.wanted(build.version_files, set()))
        kept = tuple(path for path in build.version_files if path in unseen)
        return replace(build, version_files=kept) if kept or build.extensions else None

    def _able_to(self, build: ProjectBuild, below: Image, declared: Declared, indexes: Indexes) -> Image:
        """Return an image with the compilers that the project's build needs."""
        if not build.extensions:
            return below
        return with_compilers(
            self.api,
            below,
            build.rust is not None,
            acceptable_pythons(declared),
            indexes,
            state=self.state,
            say=self.say,
            stop=self.stop,
        )

    def _declared(self, declared: Declared, below: Image, exclude_newer: str | None, indexes: Indexes) -> str:
        """Return the image with the declared dependencies."""
        job = Job(
            declared.requirements,
            declared.constraints,
            declared.optional,
            acceptable_pythons(declared),
            declared.project,
            declared.django_settings,
            declared.test_options,
            declared.import_folders,
            exclude_newer,
            indexes,
        )
        tag = f"{REPOSITORY}:{_key(job, below)}"
        with self._one_at_a_time(tag):
            if local_image(self.api, tag) is None:
                self._announce(declared, job)
                log = self._log(tag)
                started = time.monotonic()
                build_environment(self.api, job, below, tag, log=log, say=self.say, stop=self.stop)
                self.say(f"environment ready after {time.monotonic() - started:.0f} s: {tag}")
        touch(self.state, tag)
        return tag

    def _with_build(self, job: ProjectJob, image: str, *, again: bool = False) -> str:
        """Return an image with what the project's own build makes; `image` itself if the build fails.

        `again` has the same meaning as for `build_project`.
        """
        below = find_image(self.api, image, self.say)
        tag = f"{REPOSITORY}:{_key(job, below, PROJECT_RECIPE)}"
        with self._one_at_a_time(tag):
            if local_image(self.api, tag) is None:
                named = ", ".join(job.version_files)
                made = filter(None, (named, "its extension modules" if job.extensions else ""))
                once = "anew, without a network," if again else "once"
                self.say(f"building the project {once} for {' and '.join(made)}")
                started = time.monotonic()
                try:
                    build_project(
                        self.api,
                        job,
                        self.workspace,
                        below,
                        tag,
                        log=self._log(tag),
                        say=self.say,
                        stop=self.stop,
                        again=again,
                    )
                except EnvironmentBuildFailed as error:
                    if self.stop.is_set() or again:
                        raise
                    self.say(f"{error}; continuing without these files")
                    return image
                self.say(f"project built after {time.monotonic() - started:.0f} s: {tag}")
        touch(self.state, tag)
        return tag

    def _log(self, tag: str) -> Path:
        return folder(self.state) / f"{tag.partition(':')[2]}.log"

    def _announce(self, declared: Declared, job: Job) -> None:
        for notice in (*declared.notices, *job.indexes.left_out):
            self.say(notice)
        count = len(job.requirements)
        self.say(
            f"building the repository's environment once ({count} declared "
            f"{'dependency' if count == 1 else 'dependencies'}; this may take minutes)"
        )

    def _own(self, indexes: Indexes, may_build: MayBuild) -> tuple[str | None, Named]:
        own = OwnImage(self.api, self.workspace, self.files, indexes, self.state, self.say, self.stop)
        return own.find(may_build)

    def _one_at_a_time(self, tag: str) -> contextlib.AbstractContextManager[None]:
        return one_at_a_time(self.state, tag, self.say, self.stop)


def _key(job: Job | ProjectJob, base: Image, recipe: int = RECIPE) -> str:
    """Return the hash of everything that goes into an environment image."""
    made_from = asdict(replace(job, indexes=Indexes()))
    made_from |= {"recipe": recipe, "base": base.ident, "machine": platform.machine()}
    if base.binds:
        made_from["python"] = _host_python()
    return hashlib.sha256(json.dumps(made_from, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _host_python() -> str:
    """Return the version of this machine's Python, which the skeleton image borrows."""
    done = subprocess.run(["/usr/bin/python3", "-V"], capture_output=True, check=False, text=True, timeout=60)
    return done.stdout.strip()
