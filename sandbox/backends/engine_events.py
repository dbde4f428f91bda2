"""Find out from the engine's events why a container ended.

A container removes itself when it ends, so its state is not available afterwards. The engine's recent events
are: Docker keeps the last 256.
"""

from __future__ import annotations

import time
from typing import Any

from m3agent.sandbox.errors import EngineUnavailable, OutOfMemory, SandboxDied, SandboxError

PATIENCE = 3.0  # seconds until the engine must have noticed the end
OOM_WINDOW = 3.0  # an out-of-memory kill within these seconds before the end counts as its cause
SIGKILLED = 137  # exit status of a container if its first process was killed


def why_ended(api: Any, container: str, memory: int) -> SandboxError:
    """Return an error that says why the container ended.

    Args:
        api: A `docker.APIClient`.
        container: Id of the container.
        memory: Memory limit of the container in bytes.

    Returns:
        OutOfMemory; EngineUnavailable if the engine itself no longer answers; otherwise SandboxDied.
    """
    from docker.errors import DockerException
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        events = _events(api, container)
    except (DockerException, RequestException, HTTPError, OSError):
        return EngineUnavailable(
            "the Docker engine stopped, and the sandbox with it: start the engine and try again"
        )
    return explain(events, memory)


def explain(events: list[dict[str, Any]], memory: int) -> SandboxError:
    """Derive the error from the container's events, in order and in the format of Docker's `/events`."""
    ooms: list[float] = []
    removed = False
    for event in events:
        what, when = event.get("Action") or event.get("status"), event.get("timeNano", 0) / 1e9
        if what == "oom":
            ooms.append(when)
        elif what in {"kill", "remove"}:
            removed = True
        elif what in {"die", "died"}:
            code = int(event.get("Actor", {}).get("Attributes", {}).get("exitCode", -1))
            if removed:
                break
            if code == SIGKILLED and any(when - each < OOM_WINDOW for each in ooms):
                return OutOfMemory(
                    f"the sandbox used more than its {memory / (1 << 30):.3g} GiB of memory and was "
                    "killed: raise the limit with M3AGENT_MEMORY"
                )
            return SandboxDied(f"the sandbox's first process ended (status {code})")
    if removed:
        return SandboxDied("someone stopped or removed the sandbox's container")
    return SandboxDied("the sandbox's container ended (removed by someone, or the Docker engine stopped)")


def _events(api: Any, container: str) -> list[dict[str, Any]]:
    """Return the container's events up to its end, or all events within a few seconds."""
    wanted = ["oom", "kill", "die", "died"]
    found = []
    # one second after the epoch: all events that the engine remembers, whatever its clock shows
    until = int(time.time() + PATIENCE)
    stream = api.events(
        since=1, until=until, filters={"container": [container], "event": wanted}, decode=True
    )
    try:
        for event in stream:
            found.append(event)
            if event.get("Action", event.get("status")) in {"die", "died"}:
                break
    finally:
        stream.close()
    return found
