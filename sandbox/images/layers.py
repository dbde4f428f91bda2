"""Build images in layers: a layer is what programs leave in containers over the image below it.

The tag of a layer's image is a hash of everything that goes into it. So an image that is here is not built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from m3agent.sandbox.backends.docker_machine import USER, our_labels
from m3agent.sandbox.backends.image import REPOSITORY, Image, installed_on_host, local_image
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images import env_script
from m3agent.sandbox.images.debian import just_built
from m3agent.sandbox.images.image_build import (
    INSTALLING,
    Build,
    build_image,
    engine_failures,
    files_as_tar,
    remove_container,
)
from m3agent.sandbox.images.indexes import Indexes, indexes_here
from m3agent.sandbox.images.kept import Say, folder, one_at_a_time, touch
from m3agent.util.portable_source import portable_files

WORK = "/opt/m3agent-build"
"""Folder of a step's program and files in its container. The program empties it."""
PACKAGE = "m3agent/sandbox/images"
"""Folder of the programs in `WORK`, so that they can import each other as they do here."""
START = (
    "import sys; sys.path.insert(0, '{}'); from m3agent.sandbox.images import {} as program; program.main()"
)
OWNER = 1000
"""User id of the programs that do not run as root."""


@dataclass(frozen=True)
class Step:
    """A program that runs in a container of its own. A layer consists of what its steps leave."""

    program: ModuleType
    """One of this package's programs for build containers."""
    settings: Mapping[str, object]
    """What the program reads from `job.json`."""
    arguments: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Further files by absolute path or by path in `WORK`."""
    folders: tuple[str, ...] = ()
    """Empty folders, the outer ones first."""
    inputs: Callable[[], IO[bytes]] | None = None
    """Returns a tar that is unpacked at the container's root."""
    network: bool = True
    """Whether it reaches what builds may reach."""


@dataclass(frozen=True)
class Layer:
    """The description of a layer."""

    key: str
    """The tag of its image: a hash of what goes into it."""
    what: str
    """Names it in messages, as in "the repository's environment"."""
    steps: Callable[[], Sequence[Step]]
    """Returns its steps; called only if the image is not here."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that its image sets, besides those of the image below."""
    labels: Mapping[str, str] = field(default_factory=dict)
    as_root: bool = False
    """Whether the programs run as root, with the capabilities that installing needs."""
    before: tuple[str, ...] = ()
    """What people are told before the build."""
    after: str = ""
    """What people are told after it, as in "environment ready"."""


@dataclass(frozen=True)
class Builder:
    """Builds layers. Its methods block; they raise EnvironmentBuildFailed."""

    api: Any
    state: Path
    """Folder for logs, locks and times of last use."""
    say: Say
    stop: threading.Event = field(default_factory=threading.Event)
    """Ends the work early."""

    @cached_property
    def indexes(self) -> Indexes:
        """Where packages come from."""
        return indexes_here()

    @property
    def env(self) -> dict[str, str]:
        """Variables with which a step's programs find packages."""
        return self.indexes.environment(f"{WORK}/certificates.pem")

    def go_on(self) -> None:
        """Raise EnvironmentBuildFailed if the work was stopped: then nothing is built or pulled any more."""
        if self.stop.is_set():
            raise EnvironmentBuildFailed("not all of its images are on this machine")

    def lock(self, tag: str) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of an image."""
        return one_at_a_time(self.state, tag, self.say, self.stop)

    def log(self, tag: str) -> Path:
        """Return the path of the log of an image's build."""
        return folder(self.state) / f"{tag.partition(':')[2]}.log"

    def here(self, key: str) -> Image | None:
        """Return the image of a layer; None if it is not here."""
        tag = f"{REPOSITORY}:{key}"
        image = local_image(self.api, tag)
        if image is not None:
            touch(self.state, tag, self.api)
        return image

    def image(self, layer: Layer, below: Image) -> Image:
        """Return the image of a layer over the image `below`; build it if it is not here."""
        tag = f"{REPOSITORY}:{layer.key}"
        with self.lock(tag):
            if local_image(self.api, tag) is None:
                self.go_on()
                for line in layer.before:
                    self.say(line)
                started = time.monotonic()
                self._build(layer, below, tag)
                if layer.after:
                    self.say(f"{layer.after} after {time.monotonic() - started:.0f} s: {tag}")
        touch(self.state, tag, self.api)
        return just_built(self.api, tag)

    def _build(self, layer: Layer, below: Image, tag: str) -> None:
        log = self.log(tag)
        log.unlink(missing_ok=True)
        steps = layer.steps()
        for step in steps:
            last = step is steps[-1]
            start = START.format(WORK, Path(str(step.program.__file__)).stem)
            build = Build(
                what=layer.what,
                base=below,
                command=("python3", "-I", "-S", "-c", start, *step.arguments),
                user="0:0" if layer.as_root else USER,
                folder="/",
                image_env={**below.env, **layer.env},
                image_command="python3",
                capabilities=INSTALLING if layer.as_root else (),
                indexes=self.indexes if step.network else None,
                labels=layer.labels,
            )
            with contextlib.ExitStack() as stack:
                archives: list[bytes | IO[bytes]] = [self._files(step, 0 if layer.as_root else OWNER)]
                if step.inputs is not None:
                    archives.append(stack.enter_context(step.inputs()))
                made = build_image(
                    self.api, build, tag if last else None, archives, log=log, say=self.say, stop=self.stop
                )
            below = Image(made, below.binds, build.image_env, made)

    def _files(self, step: Step, owner: int) -> bytes:
        """Return a step's programs and files as a tar for the container's root."""
        programs = portable_files(env_script, step.program)
        files = {**{f"{PACKAGE}/{name}": text for name, text in programs.items()}, **step.files}
        files["job.json"] = json.dumps(step.settings).encode()
        if self.indexes.certificates is not None:
            files["certificates.pem"] = self.indexes.certificates.read_bytes()
        files = {str(Path(WORK, name)): content for name, content in files.items()}
        parents = {str(parent) for name in files for parent in Path(name).parents}
        inside = sorted(parent for parent in parents if parent.startswith(f"{WORK}/"))
        return files_as_tar(files, folders=(WORK, *inside, *step.folders), owner=owner)

    @contextlib.contextmanager
    def tolerant(self, consequence: str | None) -> Iterator[None]:
        """Turn a build that fails into a note, unless it was stopped.

        Args:
            consequence: The note's end, after the reason; None for no note.
        """
        try:
            yield
        except EnvironmentBuildFailed as error:
            if self.stop.is_set():
                raise
            if consequence is not None:
                self.say(f"{error}; {consequence}" if consequence else str(error))

    def ask(self, image: Image, script: str, arguments: Sequence[str], what: str) -> list[str]:
        """Return the lines that a shell script prints in an image. They are kept; several programs may use them."""
        key = digest([image.ident, installed_on_host() if image.binds else "", script, arguments])
        kept = folder(self.state) / f"probe-{key}.json"
        try:
            return [str(line) for line in json.loads(kept.read_text("utf-8"))]
        except (OSError, ValueError, TypeError):
            lines = self._asked(image, ("sh", "-c", script, "sh", *arguments), what)
            kept.write_text(json.dumps(lines), "utf-8")
            return lines

    def _asked(self, image: Image, command: Sequence[str], what: str) -> list[str]:
        """Return what a command prints in an image. Takes half a second."""
        with engine_failures(what), container_of(self.api, image, command) as container:
            self.api.start(container)
            self.api.wait(container, timeout=60)
            output: bytes = self.api.logs(container, stdout=True, stderr=False)
        return output.decode(errors="replace").splitlines()


def digest(made_from: object) -> str:
    """Return a hash for the tag of an image that is made from this."""
    text = json.dumps(made_from, sort_keys=isinstance(made_from, dict), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def container_of(api: Any, image: Image, command: Sequence[str], **options: object) -> Iterator[str]:
    """Yield a new container without a network, which has not started; remove it afterwards."""
    container = api.create_container(
        image.name,
        command=list(command),
        entrypoint=[],
        user=USER,
        environment={"PATH": image.path},
        network_disabled=True,
        labels=our_labels(),
        host_config=api.create_host_config(
            network_mode="none", cap_drop=["ALL"], binds=image.mounts, **options
        ),
    )["Id"]
    try:
        yield container
    finally:
        remove_container(api, container)
