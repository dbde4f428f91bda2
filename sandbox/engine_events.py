"""Why a container ended, as its engine tells it afterwards.

The container is gone by then (it removes itself), so its state cannot be asked for; the engine's events of the last
minutes can. Docker keeps the last 256 of them.
"""

from __future__ import annotations

import time
from typing import Any

from m3agent.sandbox.errors import EngineUnavailable, OutOfMemory, SandboxDied, SandboxError

PATIENCE = 3.0  # seconds for the engine to notice the end
OOM_WINDOW = 3.0  # seconds before the end in which an out-of-memory kill counts as its reason
SIGKILLED = 137  # the exit status of a container whose first process was killed


def why_ended(api: Any, container: str, memory: int) -> SandboxError:
    """The reason as an error to raise; `api` is a `docker.APIClient`, `memory` the container's limit in bytes.

    Returns:
        OutOfMemory; EngineUnavailable where the engine itself does not answer any more; else SandboxDied.
    """
    from docker.errors import DockerException
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        events = _events(api, container)
    except (DockerException, RequestException, HTTPError, OSError):
        return EngineUnavailable(
            "the Docker engine went away, and the sandbox with it: start it and try again"
        )
    return explain(events, memory)


def explain(events: list[dict[str, Any]], memory: int) -> SandboxError:
    """The reason, from the container's events in their order (as Docker's `/events` has them)."""
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
                    f"the sandbox needed more than its {memory / (1 << 30):.3g} GiB of memory and was killed: "
                    "give it more with --memory"
                )
            return SandboxDied(f"the sandbox's first process ended (status {code})")
    if removed:
        return SandboxDied("someone stopped or removed the sandbox's container")
    return SandboxDied("the sandbox's container ended (removed by someone, or the Docker engine stopped)")


def _events(api: Any, container: str) -> list[dict[str, Any]]:
    """The container's events up to its end, or as many as there are after a few seconds."""
    wanted = ["oom", "kill", "die", "died"]
    found = []
    # a second from the epoch: all that the engine remembers, whatever its clock says
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
