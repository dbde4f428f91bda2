"""Find the container engine for sandboxes, images, `doctor` and benchmarks.

No other code decides which engine is used.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from m3agent.sandbox.errors import EngineUnavailable

DOCKER_SOCKET = "unix:///var/run/docker.sock"
PODMAN_SOCKET = "/run/podman/podman.sock"  # root's socket; other users have theirs below XDG_RUNTIME_DIR
TIMEOUT = 60  # seconds for one response of the engine


@dataclass(frozen=True)
class ContainerEngine:
    """A container engine that answers.

    Attributes:
        address: Its address, in the format of DOCKER_HOST.
        client: A `docker.APIClient` for it.
    """

    address: str
    client: Any


def engine_addresses() -> list[str]:
    """Return the addresses where an engine may answer, best first.

    If DOCKER_HOST is set, it is the only one. Otherwise Docker's local socket comes first, then Podman's
    sockets that exist and that this process may use.
    """
    named = os.environ.get("DOCKER_HOST")
    if named:
        return [named]
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    podman = (f"{runtime}/podman/podman.sock", PODMAN_SOCKET)
    there = [path for path in podman if os.access(path, os.R_OK | os.W_OK)]
    return [DOCKER_SOCKET, *(f"unix://{path}" for path in there)]


def find_engine(timeout: int = TIMEOUT) -> ContainerEngine:
    """Find the first engine that answers (see `engine_addresses`). Blocking.

    Args:
        timeout: Seconds that the engine may take for one response; it also applies to later calls through the
            client.

    Raises:
        EngineUnavailable: No engine answers; the sentence says why and what to do.
    """
    from docker.errors import DockerException

    first: DockerException | None = None
    for address in engine_addresses():
        try:
            return ContainerEngine(address, _client(address, timeout))
        except DockerException as error:
            first = first or error
    host = os.environ.get("DOCKER_HOST") or "the local socket"
    if any(word in str(first) for word in ("Permission denied", "PermissionError")):
        raise EngineUnavailable(
            f"no permission for the Docker engine at {host}: add yourself to the group docker, or use --sandbox bwrap",
            permission_denied=True,
        )
    raise EngineUnavailable(
        f"no Docker engine answers at {host}: start it (`make demo` installs one), or use --sandbox bwrap"
    )


def connect(timeout: int = TIMEOUT) -> Any:
    """Return a `docker.APIClient` for the engine that `find_engine` finds.

    Raises:
        EngineUnavailable: As for `find_engine`.
    """
    return find_engine(timeout).client


def _client(address: str, timeout: int) -> Any:
    import docker
    from docker.tls import TLSConfig
    from docker.utils import kwargs_from_env

    tls = kwargs_from_env().get("tls")
    assert tls is None or isinstance(tls, (bool, TLSConfig))
    return docker.APIClient(base_url=address, tls=tls or False, version="auto", timeout=timeout)


def socket_of(api: Any) -> str | None:
    """Return the path of the Unix socket that a client uses; None if the engine is on another machine."""
    return getattr(
        api._custom_adapter, "socket_path", None
    )  # the docker package has no public attribute for it


def is_podman(version: dict[str, Any]) -> bool:
    """Return whether the response to `/version` comes from Podman's Docker-compatible API."""
    return any(part.get("Name") == "Podman Engine" for part in version.get("Components") or [])
