"""Find the image of the repository's own devcontainer.json or Dockerfile, or what its Dockerfile names."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from m3agent.sandbox.declared.container import Container, MayBuild, read_containers
from m3agent.sandbox.declared.dockerfile import Named, read_named
from m3agent.sandbox.declared.types import Files, ScanResult
from m3agent.sandbox.errors import EnvironmentBuildFailed, ImageMissing, SandboxError
from m3agent.sandbox.images.container_build import build_container, usable
from m3agent.sandbox.images.indexes import Indexes
from m3agent.sandbox.images.kept import REPOSITORY, Say, folder, one_at_a_time, touch
from m3agent.sandbox.store.workspace import Workspace

NOTHING = Named(None, (), ())


class OwnImage:
    """One search; its methods block."""

    def __init__(
        self,
        api: Any,
        workspace: Workspace,
        files: Files,
        indexes: Indexes,
        state: Path,
        say: Say,
        stop: threading.Event,
    ) -> None:
        self.api = api
        self.workspace = workspace
        self.files = files
        self.indexes = indexes
        self.state = state
        self.say = say
        self.stop = stop

    def find(self, may_build: MayBuild) -> tuple[str | None, Named]:
        """Return the repository's own image; without one, what the first Dockerfile names that may not be built.

        Raises:
            SandboxError: The search was stopped.
        """
        found, named = ScanResult(), NOTHING
        for container in read_containers(self.files, found):
            while found.notices:
                self.say(found.notices.pop(0))
            try:
                text = self._text(container)
                if text is not None and not may_build(container, text):
                    named = named if named != NOTHING else self._named(container, text)
                    continue
                return self._built(container), NOTHING
            except SandboxError as error:
                if self.stop.is_set():
                    raise
                self.say(f"{container.source} is not used: {error}")
        for notice in found.notices:
            self.say(notice)
        return None, named

    def _text(self, container: Container) -> str | None:
        """Return the text of the Dockerfile; None if the image is not built."""
        if container.dockerfile is None:
            return None
        text = self.files.text(container.dockerfile, ScanResult())
        if text is None:
            raise EnvironmentBuildFailed(f"{container.dockerfile} is too large, or is no text")
        return text

    def _built(self, container: Container) -> str:
        image = build_container(
            self.api,
            container,
            self.workspace,
            REPOSITORY,
            self.indexes,
            log_folder=folder(self.state),
            say=self.say,
            stop=self.stop,
            lock=lambda tag: one_at_a_time(self.state, tag, self.say, self.stop),
        )
        if image.startswith(f"{REPOSITORY}:"):
            touch(self.state, image, self.api)
        return image

    def _named(self, container: Container, text: str) -> Named:
        """Return what a Dockerfile names; without its image if that cannot run a sandbox."""
        try:
            named = read_named(text, container.target, container.args)
        except ValueError as error:
            self.say(f"nothing is read from {container.dockerfile}: {error}")
            return NOTHING
        if named.image is None:
            return named
        try:
            return replace(named, image=usable(self.api, named.image, self.say))
        except ImageMissing as error:
            self.say(f"the image {named.image} of {container.dockerfile} is not used: {error}")
            return replace(named, image=None)
