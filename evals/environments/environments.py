"""Find or build the images of instances, layer by layer. The name of a layer is a hash of all its inputs."""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TypeVar

from m3agent.evals.code.checkout import CODE, codebase
from m3agent.evals.code.code_image import code_image, not_of_the_task
from m3agent.evals.data.files import files_in
from m3agent.evals.data.instance import Environment, Task
from m3agent.evals.environments.recipe import (
    RESOLVED,
    Layer,
    build_layer,
    era_of,
    files_of,
    instance_layer,
    packages_layer,
    prebuilt_layer,
    python_layer,
    resolution,
)
from m3agent.sandbox.backends.docker_machine import LABEL
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.image import REPOSITORY, Image, find_image, local_image, pull
from m3agent.sandbox.backends.sandbox import EQUIPPED
from m3agent.sandbox.errors import ImageMissing
from m3agent.sandbox.images.debian import DEFAULT_PYTHON, base_image, just_built
from m3agent.sandbox.images.environment import with_suites
from m3agent.sandbox.images.kept import folder, touch
from m3agent.sandbox.images.layers import Builder
from m3agent.sandbox.images.prune import make_room
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.python import Pytest
from m3agent.tools.runners.suites import find_suites, needs_of, tree_files
from m3agent.util.atomic_write import write_whole
from m3agent.util.threads import stoppable

RECIPE = 1  # part of every hash: raise it if the same data should give another image
DISK_BUDGET = 60 << 30
"""Limit for all images of the engine, in bytes. Beyond it, the least recently used ones are removed."""

Say = Callable[[str], None]
T = TypeVar("T")


class Environments:
    """Builds the images of instances. Several threads and processes may use it at the same time.

    Args:
        disk_budget: Limit for all images together, in bytes.
    """

    def __init__(self, state: Path, say: Say, *, disk_budget: int = DISK_BUDGET) -> None:
        self._state = state
        self._say = say
        self._budget = disk_budget
        self._used: set[str] = set()

    async def image(self, task: Task) -> str:
        """Return the name of the image with the task's environment and code; build the image if it is not here.

        Raises:
            EnvironmentBuildFailed: The build itself fails; the message names its log.
            EngineUnavailable, SandboxDied: No container engine answers, or it fails.
            ImageMissing: The prebuilt image that the task names is not available.
            DataError, EnvironmentFault: The task's code is not available.
        """
        image = await stoppable(lambda stop: self._built(lambda build: build.run(task), stop))
        self._used.add(image)
        return image

    async def packages(self, task: Task) -> tuple[str, str]:
        """Return the image with the task's packages, without its code, and the minor version of its Python.

        Raises: as `image`, except for those about the code.
        """

        def work(build: _Build) -> tuple[str, str]:
            image, python, _ = build.packages(task)
            return image.name, python

        image, python = await stoppable(lambda stop: self._built(work, stop))
        self._used.add(image)
        return image, python

    async def whole_image(self, task: Task) -> str:
        """Return an image that has the code and a Python of its own, for programs that have no sandboxes of m3agent.

        Raises: as `image`.
        """
        needs = task.environment
        if not (needs.image or needs.python or needs.install or needs.requirements):
            needs = needs.model_copy(update={"python": DEFAULT_PYTHON})
        return await self.image(task.model_copy(update={"environment": needs}))

    def _built(self, work: Callable[[_Build], T], stop: threading.Event) -> T:
        api = connect()
        build = _Build(api, self._state, self._say, stop)
        try:
            with not_of_the_task():
                return work(build)
        finally:
            if build.built:
                make_room(api, self._state, self._budget, keep=self._used)
            api.close()


@dataclass(frozen=True)
class _Build(Builder):
    """Build one image; blocking."""

    built: list[str] = field(default_factory=list[str])
    """Ids of instances for which something was built."""

    def run(self, task: Task) -> str:
        environment = task.environment
        name = environment.image
        if task.source.kind == "image" or environment.dockerfile is not None:
            return self._with_code(task)
        if name is not None and (image := self._prebuilt(name, own=environment.install is not None)):
            if REPOSITORY in image.name:
                return image.name
            return self._layer(prebuilt_layer(image.path, environment.folder), image, task.instance_id).name
        if environment.python is None and not environment.install and not environment.requirements:
            return self._of_code(task)
        below, _, era = self.packages(task)
        code = codebase(task, self.state)
        layer = instance_layer(task, era, code.proof.head)
        image = self._layer(layer, below, task.instance_id, code.path)
        if name is not None:
            from docker.utils import parse_repository_tag

            self.api.tag(image.name, *parse_repository_tag(name), force=True)
        return image.name

    def packages(self, task: Task) -> tuple[Image, str, date | None]:
        """Return the image with a task's packages, the minor version of its Python, and the date of the packages."""
        environment = task.environment
        base = base_image(self.api, environment.python, state=self.state, say=self.say, stop=self.stop)
        era = era_of(task, base.python)
        below = self._layer(python_layer(environment, base.python), base.image, task.instance_id)
        return self._layer(self._packages(environment, era, below), below, task.instance_id), base.python, era

    def _with_code(self, task: Task) -> str:
        """Return the image with a task's code, in which sandboxes can work."""
        kept = self.state / CODE
        image = code_image(task.environment, kept, self.say, self.stop)
        touch(self.state, image.name, self.api)
        if EQUIPPED in image.env and image.name == task.environment.image:  # m3agent built it for an instance
            return image.name
        work = codebase(task, self.state).path
        layer = prebuilt_layer(image.path, task.environment.folder, files_in(work, links=True))
        self.built.append(task.instance_id)
        return self._layer(layer, image, task.instance_id).name

    def _packages(self, environment: Environment, era: date | None, below: Image) -> Layer:
        """Return the layer with the packages; what a date means for them is found once and kept."""
        if era is None:
            return packages_layer(environment, None)
        asked = resolution(environment, era)
        key = _key(asked, below)
        kept = folder(self.state) / f"{key}.resolved"
        with self.lock(f"{REPOSITORY}:{key}"):
            if not kept.exists():
                log = kept.with_suffix(".log")
                files = files_of(self, asked, below, RESOLVED, log=log)
                texts = {name: content.decode(errors="replace") for name, content in files.items()}
                write_whole(kept, json.dumps(texts).encode())
                log.unlink()
        resolved = {name: text.encode() for name, text in json.loads(kept.read_text("utf-8")).items()}
        return packages_layer(environment, era, resolved)

    def _of_code(self, task: Task) -> str:
        """Return the default image, with what the code's own tests need if none of them is in Python."""
        code = codebase(task, self.state)
        with tempfile.TemporaryDirectory(prefix="m3agent-suites-") as temporary:
            git_dir = code.path.absolute() / ".git"
            store = TreeStore(Path(temporary) / "trees.git", git_dir / "objects")
            files = tree_files(store, code.proof.head)
            suites = needs_of(files, find_suites(files))
            if suites and all(suite.language != Pytest.language for suite in suites):
                workspace = Workspace(store, code.proof.head)
                self.built.append(task.instance_id)
                return with_suites(self.api, workspace, suites, self.state, self.say, self.stop)
        return find_image(self.api, None, self.say).name

    def _prebuilt(self, name: str, *, own: bool) -> Image | None:
        """Return the prebuilt image with this name; None if the image must be built under this name.

        Args:
            own: Whether the row says how to build the image. An image that m3agent built under this name does not count
                then.
        """
        image = local_image(self.api, name)
        if image is None and not own and pull(name, self.say):
            image = local_image(self.api, name)
        if image is None:
            if own:
                return None
            raise ImageMissing(f"no registry has {name}, and the row does not say how to build it")
        labels = (self.api.inspect_image(name).get("Config") or {}).get("Labels") or {}
        return None if own and labels.get(f"{LABEL}.environment") else image

    def _layer(self, layer: Layer, below: Image, what: str, work_tree: Path | None = None) -> Image:
        tag = f"{REPOSITORY}:{_key(layer, below)}"
        if (image := local_image(self.api, tag)) is None:
            with self.lock(tag):
                if local_image(self.api, tag) is None:
                    self.say(f"{what}: building its {layer.name}, which is kept (this may take minutes)")
                    started = time.monotonic()
                    build_layer(self, layer, below, tag, work_tree=work_tree, log=self.log(tag))
                    self.built.append(what)
                    self.say(f"{what}: {layer.name} ready after {time.monotonic() - started:.0f} s: {tag}")
            image = just_built(self.api, tag)
        touch(self.state, tag, self.api)
        return image


def _key(layer: Layer, below: Image) -> str:
    files = {name: hashlib.sha256(content).hexdigest() for name, content in layer.files.items()}
    made_from = [RECIPE, below.ident, layer.script, files, layer.commit, dict(layer.env)]
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]
