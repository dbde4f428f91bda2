"""Choose the backend of a sandbox on this host, and create the sandbox."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from m3agent.sandbox.backends import kinds
from m3agent.sandbox.backends.bwrap_machine import BwrapMachine, barred_by, command
from m3agent.sandbox.backends.docker_machine import DockerMachine
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.here_machine import HereMachine
from m3agent.sandbox.backends.sandbox import Machine, Sandbox, SandboxLimits
from m3agent.sandbox.errors import EngineUnavailable
from m3agent.sandbox.network.allow_list import AllowedHost
from m3agent.sandbox.network.network import Network
from m3agent.sandbox.network.proxy import NetworkRequest, Proxy
from m3agent.sandbox.network.upstream import Upstream
from m3agent.sandbox.store.workspace import Workspace

Backend: TypeAlias = kinds.Backend
UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True)
class SandboxSpec:
    """The sandbox that the user wants."""

    backend: Backend | None = None
    """The backend; None for the best one that works on this host."""
    image: str | None = None
    """The image to start from; None for the default."""
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    allow_net: tuple[AllowedHost, ...] = ()
    """The hosts that commands may reach; empty for no network at all."""
    image_of: Callable[[Workspace, str], Awaitable[str]] | None = field(default=None, compare=False)
    """Returns the image for a tree, from the tree and `image`. None if `image` suits all trees."""
    source: Path | None = None
    """The user's folder, for sandboxes without isolation."""
    ignored: tuple[str, ...] = ()
    """Ignored files and folders there that a work tree needs, such as what was built or installed."""
    python_folders: tuple[str, ...] = ()
    """Folders of the work tree from which Python imports before installed packages, besides its root and `src`."""
    variables: tuple[tuple[str, str], ...] = ()
    """Names and values of variables that the repository declares for all commands."""


def parse_bytes(text: str) -> int:
    """Return the number of bytes in a size like `4g`, `512m` or a plain number.

    Raises:
        ValueError: With a sentence for the user.
    """
    match = re.fullmatch(r"(\d+)([bkmg]?)b?", text.strip().lower())
    if match is None or not int(match[1]):
        raise ValueError(f"'{text}' is not a size: write it like 4g or 512m")
    return int(match[1]) * UNITS[match[2]]


def allowed_backends(backend: Backend | None, image: str | None) -> tuple[Backend, ...]:
    """Return the backends that a sandbox may use, best first. The first one that works on this host is used."""
    if backend is not None:
        return (backend,)
    return tuple(kind for kind in kinds.ISOLATED if image is None or kind not in kinds.IMAGELESS)


def image_conflict(backend: Backend | None, image: str | None) -> str | None:
    """Return a sentence for the user if the backend that they named cannot start from their image, otherwise None."""
    if image is None or backend not in kinds.IMAGELESS:
        return None
    return (
        f"--sandbox {backend} has no images, so it cannot use {image}: leave out --image (setting `image`), "
        "or use --sandbox docker."
    )


async def choose_backend(spec: SandboxSpec, say: Callable[[str], None]) -> Backend:
    """Return the backend to use. A backend that the user named is not tried out.

    Raises:
        EngineUnavailable: No backend works here; the sentence says what to do.
    """
    if spec.backend is not None:
        return spec.backend
    try:
        api = await asyncio.to_thread(connect)
        api.close()
    except EngineUnavailable as docker_error:
        if "bwrap" not in allowed_backends(spec.backend, spec.image) or sys.platform != "linux":
            raise
        try:
            command(spec.limits)
        except EngineUnavailable as bwrap_error:
            raise EngineUnavailable(f"{docker_error}; and {bwrap_error}") from None
        if setting := barred_by():
            raise EngineUnavailable(
                f"{docker_error}; and bubblewrap cannot work here: the kernel forbids user namespaces ({setting})"
            ) from None
        say(f"{docker_error}: using bubblewrap")
        return "bwrap"
    return "docker"


def new_sandbox(
    backend: Backend,
    spec: SandboxSpec,
    workspace: Workspace,
    say: Callable[[str], None],
    on_request: Callable[[NetworkRequest], None] = lambda _: None,
) -> Sandbox:
    """Return a sandbox over a workspace. It starts when it is entered as a context."""
    network = None
    if spec.allow_net:
        upstream = Upstream.of_environment(os.environ)
        if unusable := upstream.unusable():
            names = ", ".join(unusable)
            say(
                f"network: {names} not used: write a proxy as http://HOST:PORT; socks and https are not possible"
            )
        network = Network(Proxy(spec.allow_net, log=on_request, upstream=upstream))
    machine: Machine
    match backend:
        case "docker":
            choose = None
            if spec.image is not None and spec.image_of is not None:
                choose = partial(spec.image_of, workspace, spec.image)
            machine = DockerMachine(spec.image, spec.limits, say, choose)
        case "bwrap":
            machine = BwrapMachine(spec.limits)
        case "here":
            machine = HereMachine(spec.limits, spec.source, spec.ignored)
    return Sandbox(machine, workspace, network, spec.python_folders, dict(spec.variables), say)
