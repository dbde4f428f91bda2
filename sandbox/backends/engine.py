"""Find the container engine for sandboxes, images, `doctor` and benchmarks.

No other code decides which engine is used.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m3agent.sandbox.errors import EngineUnavailable
from m3agent.util.json_value import json_object

DOCKER_SOCKET = "unix:///var/run/docker.sock"
PODMAN_SOCKET = "/run/podman/podman.sock"  # root's socket; other users have theirs below XDG_RUNTIME_DIR
TIMEOUT = 60  # seconds for one response of the engine


@dataclass(frozen=True)
class ContainerEngine:
    """A container engine that answers."""

    address: str
    """Its address, in the format of DOCKER_HOST."""
    client: Any
    """A `docker.APIClient` for it."""


@dataclass(frozen=True)
class NamedEngine:
    """The container engine that the user's environment names. No other one is tried."""

    address: str
    """Its address, in the format of DOCKER_HOST."""
    named_by: str
    """What names it, for messages."""
    tls: Any = None
    """Its `docker.tls.TLSConfig`, or None."""


def named_engine() -> NamedEngine | None:
    """Return the engine that DOCKER_HOST or a Docker context names, or None.

    The order is that of Docker's command line: DOCKER_HOST, DOCKER_CONTEXT, `docker context use`. Docker Desktop,
    Colima and rootless Docker create a context for their sockets.

    Raises:
        EngineUnavailable: The context does not exist, or cannot be read.
    """
    if host := os.environ.get("DOCKER_HOST"):
        return NamedEngine(host, f"DOCKER_HOST={host}")
    folder = Path(os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"))  # noqa: PTH111  # never raises
    name = (
        os.environ.get("DOCKER_CONTEXT") or _fields(folder / "config.json").get("currentContext") or "default"
    )
    if name == "default":
        return None
    # Not the docker package's ContextAPI: without a config.json, it reads contexts from the current folder, which may
    # belong to a hostile repository.
    ident = hashlib.sha256(str(name).encode()).hexdigest()
    try:
        address = _fields(folder / "contexts" / "meta" / ident / "meta.json")["Endpoints"]["docker"]["Host"]
    except (KeyError, TypeError):
        address = None
    if not isinstance(address, str):
        raise EngineUnavailable(
            f"the Docker context {name!r} does not exist or cannot be read: choose another with `docker context use`"
        )
    return NamedEngine(
        address, f"{address} (Docker context {name!r})", _tls(folder / "contexts" / "tls" / ident)
    )


def _fields(path: Path) -> dict[str, Any]:
    """Return a JSON object of Docker's command line; empty if the file is absent or has another form."""
    try:
        return json_object(path.read_bytes())
    except OSError:
        return {}


def _tls(folder: Path) -> Any:
    """Return the `docker.tls.TLSConfig` of a context's folder of certificates, or None."""
    ca, certificate, key = (str(folder / "docker" / f"{name}.pem") for name in ("ca", "cert", "key"))
    if not Path(ca).exists():
        return None
    from docker.tls import TLSConfig

    return TLSConfig(client_cert=(certificate, key), ca_cert=ca, verify=True)


def engine_addresses() -> list[str]:
    """Return the addresses where an engine may answer if none is named, best first.

    Docker's local socket comes first, then Podman's sockets that exist and that this process may use.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    podman = (f"{runtime}/podman/podman.sock", PODMAN_SOCKET)
    there = [path for path in podman if os.access(path, os.R_OK | os.W_OK)]
    return [DOCKER_SOCKET, *(f"unix://{path}" for path in there)]


def find_engine(timeout: int = TIMEOUT) -> ContainerEngine:
    """Find the named engine, else the first one that answers (see `engine_addresses`). Blocking.

    Args:
        timeout: Seconds that the engine may take for one response; it also applies to later calls through the
            client.

    Raises:
        EngineUnavailable: No engine answers; the sentence says why and what to do.
    """
    from docker.errors import DockerException

    named = named_engine()
    first: DockerException | None = None
    for address in [named.address] if named else engine_addresses():
        try:
            return ContainerEngine(address, _client(address, timeout, named.tls if named else None))
        except DockerException as error:
            first = first or error
    host = named.named_by if named else "the local socket"
    if any(word in str(first) for word in ("Permission denied", "PermissionError")):
        raise EngineUnavailable(
            f"no permission for the Docker engine at {host}: add yourself to the group docker, or use --sandbox bwrap",
            permission_denied=True,
        )
    remedy = "start it (`make demo` installs one), or use --sandbox bwrap"
    if sys.platform != "linux":
        remedy = "start Docker Desktop, Colima, OrbStack or Podman"
    raise EngineUnavailable(f"no Docker engine answers at {host}: {remedy}")


def connect(timeout: int = TIMEOUT) -> Any:
    """Return a `docker.APIClient` for the engine that `find_engine` finds.

    Raises:
        EngineUnavailable: As for `find_engine`.
    """
    return find_engine(timeout).client


def _client(address: str, timeout: int, tls: Any) -> Any:
    import docker
    from docker.tls import TLSConfig
    from docker.utils import kwargs_from_env

    tls = tls or kwargs_from_env().get("tls")
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
