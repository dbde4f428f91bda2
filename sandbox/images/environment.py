"""Find or build the image with a repository's own environment.

The order is: the image of its devcontainer.json or Dockerfile; an image built from a base image and the
dependencies that its files declare; no image if it declares nothing. Upon that, each test suite of another ecosystem than
Python's gets a layer with its dependencies. The name of a built image contains a hash of everything that went into it.
Bubblewrap has no images, so this works with engines only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.image import Image, find_image
from m3agent.sandbox.declared.build import ProjectBuild, read_build, version_of_tag
from m3agent.sandbox.declared.container import MayBuild
from m3agent.sandbox.declared.declared import Declared, acceptable_pythons, read_declared, with_named
from m3agent.sandbox.declared.dockerfile import Named
from m3agent.sandbox.declared.preparation import Preparation, SuiteNeeds
from m3agent.sandbox.declared.pyproject import UNKNOWN_VERSION
from m3agent.sandbox.declared.tool_versions import AskedVersion, asked_versions, is_older, older_than_asked
from m3agent.sandbox.declared.types import Files
from m3agent.sandbox.images.dockerfile_build import NOTHING, own_image
from m3agent.sandbox.images.kept import Say
from m3agent.sandbox.images.layers import Builder
from m3agent.sandbox.images.repository_layers import (
    MADE_FROM,
    environment_layer,
    project_layer,
    suite_job,
    suite_layer,
)
from m3agent.sandbox.images.toolchains import (
    libraries_for,
    toolchains_of,
    tools_of,
    with_compilers,
    with_python,
    with_system_packages,
    with_toolchains,
)
from m3agent.sandbox.store.workspace import Workspace
from m3agent.util.threads import stoppable


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
    build: bool = True,
) -> str | None:
    """Return the image for a repository, or None if it needs nothing beyond a bare sandbox.

    Args:
        base: Image to install into, instead of the default one; the repository's own images are then ignored.
        exclude_newer: Ignore packages that were uploaded after this date.
        tag: The repository's last tag; its version counts where only a build could determine the version.
        may_build: Returns whether the user agrees to the build of a Dockerfile of the repository. Without it, only the
            image and the packages that the Dockerfile names are used.
        build: Whether images that are not here are built or pulled.

    Raises:
        EnvironmentBuildFailed: The image could not be built, or is not here.
        EngineUnavailable: There is no engine.
        ImageMissing: The base image is missing.
    """

    def work(stop: threading.Event) -> str | None:
        if not build:
            stop.set()  # it ends the search where a build would begin
        with contextlib.closing(connect()) as api:
            finder = _Finder(Builder(api, state, say, stop), workspace)
            return finder.find(base, exclude_newer, tag, may_build, suites)

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

    What cannot be installed is a note. The arguments are those of `Builder` and `find_environment`.

    Raises:
        EnvironmentBuildFailed: `stop` was set.
        ImageMissing: There is no image to start from.
    """
    finder = _Finder(Builder(api, state, say, stop), workspace)
    pythons = acceptable_pythons(read_declared(finder.files))
    start = find_image(api, None, say)
    newest = finder.newest_asked(suites)
    image = with_toolchains(finder.builder, start, _system_packages(suites), pythons, newest)
    return finder.with_suites(suites, image).name


async def image_of_tree(workspace: Workspace, image: str, state: Path, say: Say) -> str:
    """Return the image for another tree of a repository that has an environment.

    That is the same image, unless the tree changes what the project's own build reads: then the project is built anew from
    the tree, in a container without a network.

    Raises:
        EnvironmentBuildFailed: The engine failed.
        EngineUnavailable: There is no engine.
        ImageMissing: The image is missing.
    """

    def work(stop: threading.Event) -> str:
        with contextlib.closing(connect()) as api:
            return _Finder(Builder(api, state, say, stop), workspace).again(image)

    return await stoppable(work)


async def missing_packages(
    image: str | None, suites: Sequence[SuiteNeeds], state: Path
) -> dict[str, tuple[str, ...]]:
    """Return the Debian packages that an image lacks, by the names of the suites that need them.

    Args:
        image: The image; None for the one that a sandbox without an environment starts from.

    Raises:
        EnvironmentBuildFailed: The engine failed.
        EngineUnavailable: There is no engine.
        ImageMissing: The image is missing.
    """
    every = _system_packages(suites)

    def work() -> dict[str, tuple[str, ...]]:
        with contextlib.closing(connect()) as api:
            builder = Builder(api, state, lambda _: None)
            missing = toolchains_of(builder, find_image(api, image, builder.say), every).missing
        needed = {suite.name: suite.preparation.system_packages for suite in suites}
        lacks = {name: tuple(one for one in packages if one in missing) for name, packages in needed.items()}
        return {name: packages for name, packages in lacks.items() if packages}

    return await asyncio.to_thread(work) if every else {}


def files_of(workspace: Workspace) -> Files:
    """Return the plain files of the tree that a workspace starts from."""
    entries = workspace.entries(workspace.base)
    plain = {path: entry for path, entry in entries.items() if entry.mode & 0o170000 == 0o100000}
    store = workspace.store
    return Files(
        plain.keys(),
        lambda path: store.get_blob(plain[path].sha),
        lambda paths: store.each_blob([plain[path].sha for path in paths]),
    )


class _Finder:
    """One search for an environment; its methods block."""

    def __init__(self, builder: Builder, workspace: Workspace) -> None:
        self.builder = builder
        self.workspace = workspace
        self.entries = workspace.entries(workspace.base)
        self.files = files_of(workspace)

    def find(
        self,
        base: str | None,
        exclude_newer: str | None,
        tag: str | None,
        may_build: MayBuild,
        suites: Sequence[SuiteNeeds],
    ) -> str | None:
        declared, version = self._declared(tag)
        build = self._build()
        own, named = None, NOTHING
        if base is None:
            own, named = own_image(self.builder, self.workspace, self.files, may_build)
            declared = with_named(declared, named.requirements)
        if own is not None:
            pythons = acceptable_pythons(declared)
            equipped = with_toolchains(self.builder, self._image(own), _system_packages(suites), pythons)
            image: Image | None = self._with_compilers(equipped, build, pythons)
        else:
            image = self._with_declared(base, named, declared, build, suites, exclude_newer)
        if image is not None and build is not None:
            job = {
                "inputs": self._hash(build.inputs),
                "version_files": build.version_files,
                "extensions": build.extensions,
                "version": version,
                "tag": tag,
                "rust": build.rust,
                "exclude_newer": exclude_newer,
            }
            with self.builder.tolerant("continuing without these files"):
                image = self.builder.image(project_layer(self.builder, job, self.workspace, image), image)
        if any(needs_anything(suite.preparation) for suite in suites):
            start = image or self._image(base or named.image)
            done = self.with_suites(suites, start)
            image = image if done is start else done
        return None if image is None else image.name

    def _with_declared(
        self,
        base: str | None,
        named: Named,
        declared: Declared,
        build: ProjectBuild | None,
        suites: Sequence[SuiteNeeds],
        exclude_newer: str | None,
    ) -> Image | None:
        """Return the image with what the files declare, over a base; None if a bare sandbox has it already."""
        builder, start_from = self.builder, base or named.image
        pythons = acceptable_pythons(declared)
        packages = (*_system_packages(suites), *libraries_for(declared.requirements))
        listed = (named.system_packages, declared.test_options, declared.import_folders)
        needed = any(listed) or not declared.empty or build is not None
        if not (named.image or needed or packages or pythons):
            return None
        start = self._image(start_from)
        below = with_python(builder, start, pythons, replaceable=start_from is None)
        needed = needed or below != start
        newest = self.newest_asked(suites) if start_from is None else {}
        below = with_toolchains(builder, below, packages, pythons, newest)
        without = below if below != start or named.image is not None else None
        if not needed:
            return without
        below = with_system_packages(builder, below, named.system_packages, why="which the Dockerfile names")
        below = self._with_compilers(below, build, pythons)
        layer = environment_layer(builder, declared, below, exclude_newer)
        others = any(installs(suite.preparation) for suite in suites)  # which count without it, too
        note = builder.tolerant("continuing without the Python dependencies")
        with note if others else contextlib.nullcontext():
            return builder.image(layer, below)
        return without

    def with_suites(self, suites: Sequence[SuiteNeeds], image: Image) -> Image:
        """Return an image with the dependencies of the suites; `image` itself if they need nothing.

        If those of a suite cannot be installed, a note says so, and the others follow.
        """
        builder, done = self.builder, set[str]()
        self._tell_older(suites, image)
        for suite in suites:
            if not installs(suite.preparation):
                for notice in suite.preparation.notices:
                    builder.say(f"{suite.name}: {notice}")
                continue
            job = suite_job(suite, self.entries)
            same = json.dumps([{**job, "suite": ""}, suite.preparation.warm], sort_keys=True)
            if same not in done:
                done.add(same)
                with builder.tolerant(f"continuing without the dependencies of {suite.name}"):
                    image = builder.image(suite_layer(builder, suite, job, self.workspace, image), image)
                    if suite.preparation.warm:
                        job |= {"commands": (), "offline_commands": suite.preparation.warm}
                        image = builder.image(suite_layer(builder, suite, job, self.workspace, image), image)
        return image

    def again(self, image: str) -> str:
        """Return the image of this tree, from that of another tree."""
        below = self._image(image)
        labels = self.builder.api.inspect_image(image)["Config"].get("Labels") or {}
        if MADE_FROM not in labels or (build := self._build()) is None:
            return image
        job = json.loads(labels[MADE_FROM])
        inputs = self._hash(build.inputs)
        if inputs == job["inputs"]:
            return image
        job |= {"inputs": inputs, "extensions": build.extensions}
        layer = project_layer(self.builder, job, self.workspace, below, again=True)
        return self.builder.image(layer, below).name

    def _image(self, name: str | None) -> Image:
        return find_image(self.builder.api, name, self.builder.say)

    def _declared(self, tag: str | None) -> tuple[Declared, str]:
        """Return what the files declare, and the version that a build backend is told."""
        declared = read_declared(self.files)
        version = None if tag is None else version_of_tag(tag)
        project = declared.project
        if project is not None and project.version != UNKNOWN_VERSION:
            version = project.version
        elif project is not None and version is not None:
            declared = replace(declared, project=replace(project, version=version))
        return declared, version or UNKNOWN_VERSION

    def _with_compilers(self, image: Image, build: ProjectBuild | None, pythons: Sequence[str]) -> Image:
        """Return an image with the compilers that the project's build needs."""
        if build is None or not build.extensions:
            return image
        return with_compilers(self.builder, image, pythons, rust=build.rust is not None)

    def _tell_older(self, suites: Sequence[SuiteNeeds], image: Image) -> None:
        """Tell people which toolchains are older than what the repository asks for."""
        if asked := self._asked(suites):
            installed = toolchains_of(self.builder, image, ()).versions
            for sentence in older_than_asked(sorted(asked, key=str), installed):
                self.builder.say(sentence)

    def newest_asked(self, suites: Sequence[SuiteNeeds]) -> dict[str, str]:
        """Return the newest version of each toolchain that a suite asks for, by language."""
        newest = dict[str, str]()
        for each in self._asked(suites):
            if each.tool not in newest or is_older(newest[each.tool], each.version):
                newest[each.tool] = each.version
        return newest

    def _asked(self, suites: Sequence[SuiteNeeds]) -> set[AskedVersion]:
        return {
            version
            for suite in suites
            for version in asked_versions(self.files, suite.root)
            if version.tool in tools_of(suite.preparation.system_packages)
        }

    def _hash(self, inputs: Sequence[str]) -> str:
        """Return the hash of files by path and content."""
        named = [(path, self.entries[path].sha) for path in inputs]
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()

    def _build(self) -> ProjectBuild | None:
        """Return what the project's build makes; without the files that git would not ignore."""
        build = read_build(self.files)
        if build is None:
            return None
        unseen = set(build.version_files) - set(self.workspace.wanted(build.version_files, set()))
        kept = tuple(path for path in build.version_files if path in unseen)
        return replace(build, version_files=kept) if kept or build.extensions else None


def needs_anything(preparation: Preparation) -> bool:
    """Return whether a suite needs something in the image, or has something to say about it."""
    return bool(preparation.system_packages or preparation.notices) or installs(preparation)


def installs(preparation: Preparation) -> bool:
    """Return whether a suite needs a layer of its own."""
    return bool(preparation.commands or preparation.offline_commands or preparation.env)


def _system_packages(suites: Sequence[SuiteNeeds]) -> tuple[str, ...]:
    return tuple({name: None for suite in suites for name in suite.preparation.system_packages})
