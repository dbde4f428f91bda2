"""Gives a sandbox the repository's own environment, where there is an engine to build it with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from m3agent.agent.settings import Settings
from m3agent.sandbox.declared.declared import read_declared
from m3agent.sandbox.env_build import EnvironmentFailed
from m3agent.sandbox.environment import REPOSITORY, files_of, find_environment, touch
from m3agent.sandbox.open import Backend, SandboxSpec
from m3agent.sandbox.workspace import Workspace


async def with_environment(
    spec: SandboxSpec,
    backend: Backend,
    workspace: Workspace,
    settings: Settings,
    state: Path,
    say: Callable[[str], None],
) -> SandboxSpec:
    """The sandbox to start: with the image of the repository's environment, which may take minutes to build.

    Where it cannot be had, `say` is told and the bare image serves. An image the user named is never replaced.

    Raises:
        EngineUnavailable, ImageMissing: there is no engine, or no image at all to start from.
    """
    if spec.image is not None:
        if spec.image.startswith(f"{REPOSITORY}:"):
            touch(state, spec.image)
        return spec
    if settings.environment == "off":
        return spec
    if backend == "bwrap":
        declared = await asyncio.to_thread(lambda: read_declared(files_of(workspace)))
        if not declared.empty:
            say(
                "bubblewrap has no images: the repository's dependencies are not there, unless this machine has them"
            )
        return spec
    try:
        image = await find_environment(workspace, state, say)
    except EnvironmentFailed as error:
        say(f"{error}; going on without the repository's dependencies")
        return spec
    return spec if image is None else replace(spec, image=image)
