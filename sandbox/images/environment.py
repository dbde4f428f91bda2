"""Find or build the image with a repository's own environment.

The order is: the image of its devcontainer.json or Dockerfile; an image built from a base image and the
dependencies that its files declare; no image if it declares nothing. Upon that, each test suite of another ecosystem than
Python's gets a layer with its dependencies. The name of a built image contains a hash of everything that went into it. Bubblewrap has no images, so this works with engines only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import platform
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.image import DEFAULT_PATH, Image, find_image, local_image
from m3agent.sandbox.declared.build import ProjectBuild, read_build, version_of_tag
from m3agent.sandbox.declared.container import MayBuild
from m3agent.sandbox.declared.declared import Declared, acceptable_pythons, read_declared, with_named
from m3agent.sandbox.declared.dockerfile import Named
from m3agent.sandbox.declared.preparation import Preparation, SuiteNeeds
from m3agent.sandbox.declared.pyproject import UNKNOWN_VERSION
from m3agent.sandbox.declared.tool_versions import asked_versions, older_than_asked
from m3agent.sandbox.declared.types import Files
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images.compilers import with_compilers
from m3agent.sandbox.images.debian import just_built
from m3agent.sandbox.images.env_build import Job, build_environment
from m3agent.sandbox.images.indexes import Indexes, indexes_here
from m3agent.sandbox.images.kept import REPOSITORY, Say, folder, one_at_a_time, touch
from m3agent.sandbox.images.own_image import NOTHING, OwnImage
from m3agent.sandbox.images.project_build import MADE_FROM, ProjectJob, build_project
from m3agent.sandbox.images.pythons import with_python
from m3agent.sandbox.images.suite_build import SuiteJob, build_suite, usable_folder
from m3agent.sandbox.images.system_packages import with_system_packages
from m3agent.sandbox.images.toolchains import toolchains_of, tools_of, with_toolchains
from m3agent.sandbox.store.git import TreeEntry
from m3agent.sandbox.store.workspace import Workspace
from m3agent.sandbox.threads import stoppable

RECIPE = 1  # part of every hash; increase it if the same declarations must give another image
PROJECT_RECIPE = 2  # the same for the project's own build
SUITE_RECIPE = 1  # the same for the dependencies of a suite


async def find_environment(
    workspace: Workspace,
    state: Path,
    say: Say,
    *,
    base: str | None = None,
    exclude_newer: str | None = None,
    tag: str | None = None,
    may_build: MayBuild = lambda *_: False,
    suites: Sequence[SuiteNeeds] = (),
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
        suites: What the repository's test suites need.

    Raises:
        EnvironmentBuildFailed: The image could not be built.
        EngineUnavailable: There is no engine.
        ImageMissing: The base image is missing.
    """

    def work(stop: threading.Event) -> str | None:
        api = connect()
        try:
            return _Finder(api, workspace, state, say, stop).find(base, exclude_newer, tag, may_build, suites)
        finally:
            api.close()

    return await stoppable(work)


def with_suites(
    api: Any,
    workspace: Workspace,
    suites: Sequence[SuiteNeeds],
    state: Path,
    say: Say,
    stop: threading.Event,
) -> str:
    """Return the default image with what test suites need, and nothing else. Blocking; may take minutes.

    What cannot be installed is a note.

    Args:
        api: The engine's client.
        workspace: The repository's files.
        suites: What its test suites need.
        state: Folder for logs, locks and times of last use.
        say: Receives progress lines for the user.
        stop: Ends the work early.

    Raises:
        EnvironmentBuildFailed: `stop` was set.
        ImageMissing: There is no image to start from.
    """
    finder = _Finder(api, workspace, state, say, stop)
    return finder.with_suites(suites, find_image(api, None, say))


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


async def missing_packages(
    image: str | None, suites: Sequence[SuiteNeeds], state: Path
) -> dict[str, tuple[str, ...]]:
    """Return the Debian packages that an image lacks, by the names of the suites that need them.

    Args:
        image: The image; None for the one that a sandbox without an environment starts from.
        suites: The suites.
        state: Folder in which results are kept.

    Raises:
        EnvironmentBuildFailed: The engine failed.
        EngineUnavailable: There is no engine.
        ImageMissing: The image is missing.
    """
    needed = {suite.name: suite.preparation.system_packages for suite in suites}
    every = {package for packages in needed.values() for package in packages}

    def work() -> dict[str, tuple[str, ...]]:
        api = connect()
        try:
            missing = toolchains_of(api, find_image(api, image, lambda _: None), every, state).missing
        finally:
            api.close()
        return {
            name: lacks
            for name, packages in needed.items()
            if (lacks := tuple(package for package in packages if package in missing))
        }

    return await asyncio.to_thread(work) if every else {}


def files_of(workspace: Workspace) -> Files:
    """Return the plain files of the tree that a workspace starts from."""
    entries = workspace.entries(workspace.base)
    plain = {path: entry for path, entry in entries.items() if entry.mode & 0o170000 == 0o100000}
    return Files(plain.keys(), lambda path: workspace.store.get_blob(plain[path].sha))


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
        self,
        base: str | None,
        exclude_newer: str | None,
        tag: str | None,
        may_build: MayBuild,
        suites: Sequence[SuiteNeeds],
    ) -> str | None:
        declared = read_declared(self.files)
        version = None if tag is None else version_of_tag(tag)
        if declared.project is not None and declared.project.version != UNKNOWN_VERSION:
            version = declared.project.version
        elif declared.project is not None and version is not None:
            declared = replace(declared, project=replace(declared.project, version=version))
        build = self._build()
        indexes = indexes_here()
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
        packages = tuple({name: None for suite in suites for name in suite.preparation.system_packages})
        if image is None and (needed or packages or acceptable_pythons(declared)):
            start = find_image(self.api, base, self.say)
            below = self._with_python(start, declared, indexes, replaceable=base is None)
            needed = needed or below != start
            below = self._with_toolchains(packages, below, declared, indexes)
            image = below.name if below != start else named.image
            if needed:
                image = self._python(declared, build, below, named, exclude_newer, indexes, suites) or image
        elif image is None:
            image = named.image
        else:
            below = find_image(self.api, image, self.say)
            below = self._with_toolchains(packages, below, declared, indexes)
            image = self._able_to(build, below, declared, indexes).name if build is not None else below.name
        if image is not None and build is not None:
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
            image = self._with_build(job, image)
        return self._with_suites(suites, image, base, indexes)

    def with_suites(self, suites: Sequence[SuiteNeeds], start: Image) -> str:
        indexes = indexes_here()
        packages = tuple({name: None for suite in suites for name in suite.preparation.system_packages})
        below = self._with_toolchains(packages, start, read_declared(self.files), indexes)
        return self._with_suites(suites, below.name, None, indexes) or below.name

    def _python(
        self,
        declared: Declared,
        build: ProjectBuild | None,
        below: Image,
        named: Named,
        exclude_newer: str | None,
        indexes: Indexes,
        suites: Sequence[SuiteNeeds],
    ) -> str | None:
        """Return the image with what the repository declares for Python.

        If it cannot be built, the other suites' dependencies still count: then the result is None, with a note.
        """
        below = with_system_packages(
            self.api,
            below,
            named.system_packages,
            indexes,
            why="which the Dockerfile names",
            state=self.state,
            say=self.say,
            stop=self.stop,
        )
        if build is not None:
            below = self._able_to(build, below, declared, indexes)
        try:
            return self._declared(declared, below, exclude_newer, indexes)
        except EnvironmentBuildFailed as error:
            if self.stop.is_set() or not any(installs(suite.preparation) for suite in suites):
                raise
            self.say(f"{error}; continuing without the Python dependencies")
            return None

    def _with_python(self, image: Image, declared: Declared, indexes: Indexes, *, replaceable: bool) -> Image:
        """Return an image with a Python that the repository accepts; `replaceable` as for `with_python`."""
        return with_python(
            self.api,
            image,
            acceptable_pythons(declared),
            indexes,
            replaceable=replaceable,
            state=self.state,
            say=self.say,
            stop=self.stop,
        )

    def _with_toolchains(
        self, packages: Sequence[str], image: Image, declared: Declared, indexes: Indexes
    ) -> Image:
        """Return an image with the Debian packages that the suites need."""
        if not packages:
            return image
        return with_toolchains(
            self.api,
            image,
            packages,
            acceptable_pythons(declared),
            indexes,
            state=self.state,
            say=self.say,
            stop=self.stop,
        )

    def _with_suites(
        self, suites: Sequence[SuiteNeeds], image: str | None, base: str | None, indexes: Indexes
    ) -> str | None:
        """Return an image with the dependencies of the suites; `image` itself if they need nothing.

        If those of a suite cannot be installed, a note says so, and the others follow.
        """
        wanted = [suite for suite in suites if needs_anything(suite.preparation)]
        if not wanted:
            return image
        start = below = find_image(self.api, image or base, self.say)
        entries = self.workspace.entries(self.workspace.base)
        self._tell_older(wanted, below)
        done = set()
        for suite in wanted:
            if not installs(suite.preparation):
                for notice in suite.preparation.notices:
                    self.say(f"{suite.name}: {notice}")
                continue
            job = suite_job(suite, entries, indexes)
            same = json.dumps(asdict(replace(job, suite="", indexes=Indexes())), sort_keys=True)
            if same in done:
                continue
            done.add(same)
            try:
                below = self._suite(suite, job, below)
            except EnvironmentBuildFailed as error:
                if self.stop.is_set():
                    raise
                self.say(f"{error}; continuing without the dependencies of {suite.name}")
        return image if below is start else below.name

    def _suite(self, suite: SuiteNeeds, job: SuiteJob, below: Image) -> Image:
        """Return the image with the dependencies of one suite."""
        tag = f"{REPOSITORY}:{_key(job, below, SUITE_RECIPE)}"
        with self._one_at_a_time(tag):
            if local_image(self.api, tag) is None:
                for notice in (*suite.preparation.notices, *job.indexes.registries.left_out):
                    self.say(f"{suite.name}: {notice}")
                self.say(f"preparing the environment of {suite.label} once (this may take minutes)")
                started = time.monotonic()
                build_suite(
                    self.api,
                    job,
                    self.workspace,
                    below,
                    tag,
                    log=self._log(tag),
                    say=self.say,
                    stop=self.stop,
                )
                seconds = time.monotonic() - started
                self.say(f"environment of {suite.label} ready after {seconds:.0f} s: {tag}")
        touch(self.state, tag, self.api)
        return just_built(self.api, tag)

    def _tell_older(self, suites: Sequence[SuiteNeeds], image: Image) -> None:
        """Tell people which toolchains are older than what the repository asks for."""
        asked = {
            version
            for suite in suites
            for version in asked_versions(self.files, suite.root)
            if version.tool in tools_of(suite.preparation.system_packages)
        }
        if asked:
            installed = toolchains_of(self.api, image, (), self.state).versions
            for sentence in older_than_asked(sorted(asked, key=str), installed):
                self.say(sentence)

    def again(self, image: str) -> str:
        labels = self.api.inspect_image(image)["Config"].get("Labels") or {}
        if MADE_FROM not in labels or (build := self._build()) is None:
            return image
        job = ProjectJob.from_label(labels[MADE_FROM])
        inputs = self._hash(build.inputs)
        if inputs == job.inputs:
            return image
        # the cache of downloads holds them by the address of their index
        indexes = indexes_here()
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
        touch(self.state, tag, self.api)
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
        touch(self.state, tag, self.api)
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


def needs_anything(preparation: Preparation) -> bool:
    """Return whether a suite needs something in the image, or has something to say about it."""
    return bool(preparation.system_packages or preparation.notices) or installs(preparation)


def installs(preparation: Preparation) -> bool:
    """Return whether a suite needs a layer of its own."""
    return bool(preparation.commands or preparation.offline_commands or preparation.env)


def suite_job(suite: SuiteNeeds, entries: Mapping[str, TreeEntry], indexes: Indexes) -> SuiteJob:
    """Return what to install for a suite, from the files of the tree by path."""
    preparation = suite.preparation
    prefix = f"{suite.root}/" if suite.root else ""
    keep = tuple(
        path if path.startswith("/") else f"{prefix}{path}"
        for path in preparation.keep
        if usable_folder(path if path.startswith("/") else f"{prefix}{path}")
    )
    inputs = sorted(set(preparation.inputs) & entries.keys())
    return SuiteJob(
        suite.name,
        suite.root,
        preparation.commands,
        preparation.offline_commands,
        tuple((path, entries[path].sha) for path in inputs if entries[path].mode & 0o170000 == 0o100000),
        keep,
        tuple(folder for folder in keep if not any(path.startswith(f"{folder}/") for path in entries)),
        dict(preparation.env),
        indexes,
    )


def _key(job: Job | ProjectJob | SuiteJob, base: Image, recipe: int = RECIPE) -> str:
    """Return the hash of everything that goes into an environment image."""
    made_from = asdict(replace(job, indexes=Indexes()))
    made_from |= {"recipe": recipe, "base": base.ident, "machine": platform.machine()}
    if base.binds:
        made_from["python"] = _host_python()
    if base.binds and isinstance(job, SuiteJob):
        made_from["tools"] = _host_programs(*job.commands, *job.offline_commands)
    return hashlib.sha256(json.dumps(made_from, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _host_programs(*commands: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the programs of commands with size and time of change: the skeleton image borrows this machine's."""
    found = (shutil.which(argv[0], path=DEFAULT_PATH) for argv in commands)
    times = {path: Path(path).stat() for path in found if path is not None}
    return sorted((path, info.st_size, info.st_mtime_ns) for path, info in times.items())


def _host_python() -> str:
    """Return the version of this machine's Python, which the skeleton image borrows."""
    done = subprocess.run(["/usr/bin/python3", "-V"], capture_output=True, check=False, text=True, timeout=60)
    return done.stdout.strip()
